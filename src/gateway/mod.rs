//! The SSH gateway: an unprivileged process that asks the manager where a key leads.
