//! From TOML as written to a valid policy per pool.
