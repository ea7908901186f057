//! What several test modules need.

pub mod ssh;
