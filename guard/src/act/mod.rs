//! Carrying plans out. The only room that changes anything on disk.
