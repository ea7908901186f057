//! What to do next: pure functions over the model.

pub mod doctor;
pub mod subnet;
