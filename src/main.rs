//! gvm
fn main() {}
