//! What tests share.

pub mod ssh;
pub mod world;
