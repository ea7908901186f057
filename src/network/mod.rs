//! The members' network: addresses and their allocation.
