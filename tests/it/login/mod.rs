//! Logins that another service vouches for, with real services: oidc-provider, slapd, PAM. What honest ones never send
//! comes from small liars of the tests' own.

mod browser;
mod cli;
mod forged;
mod forger;
mod house;
mod ldap;
mod liar;
mod oidc;
mod pam;
mod slapd;
