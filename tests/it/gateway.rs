//! The SSH gateway, driven by the real OpenSSH clients against a real OpenSSH server.

mod audit;
mod certificates;
mod endings;
mod errors;
mod forwards;
mod keys;
mod limits;
mod manager;
mod people;
mod sessions;
mod transfers;
