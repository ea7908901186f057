//! Composition root of `gvm serve`.
