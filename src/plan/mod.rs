//! What to do next: pure functions over the model.
