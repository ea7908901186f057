//! Who is this, and may they?
