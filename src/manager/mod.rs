//! Use cases and the reconciler.
