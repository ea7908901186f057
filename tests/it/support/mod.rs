//! What tests share.

pub mod world;
