//! What several suites need.

pub mod own_process;
