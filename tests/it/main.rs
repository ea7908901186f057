//! The one integration-test binary. Each file beside this one is a module below.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "skips are said, and long tests report")]

mod access;
mod backup;
mod cli;
mod e2e;
mod gateway;
mod gpu_claim;
mod gpu_race;
mod gpu_sanitise;
mod gpus;
mod house;
mod hypervisor;
mod login;
mod mock_cards;
mod people;
mod profiles;
mod quota;
mod reconcile;
mod reconcile_random;
mod record;
mod support;
