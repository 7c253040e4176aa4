//! Carrying plans out. The only room that changes anything on disk.
//!
//! [`checkpoint_dir`] is the one door through which anything is deleted, [`executor`] walks a plan through it,
//! [`pin`] writes and removes the markers that keep it shut. Nothing here knows how it is reported: the executor
//! speaks to a [`journal::Journal`].

pub mod brake;
pub mod checkpoint_dir;
pub mod command;
pub mod executor;
pub mod extent_size;
mod freeing;
pub mod journal;
pub mod permissions;
pub mod pin;
pub mod refusal;
