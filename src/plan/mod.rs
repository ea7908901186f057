//! What to do next: pure functions over the model. Every decision takes `now` as an argument.

pub mod address;
pub mod choose;
pub mod doctor;
pub mod fabric;
pub mod health;
pub mod inventory;
pub mod layout;
pub mod mig;
pub mod pages;
pub mod place;
pub mod shape;
pub mod share;
pub mod subnet;
pub mod vgpu;
pub mod vm;
pub mod window;
