//! Use cases and the reconciler.

pub mod profiles;
