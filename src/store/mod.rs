//! The store: what should be. The only place with SQL.
