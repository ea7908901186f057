//! What tests share.

pub mod own_process;
pub mod ssh;
pub mod world;
