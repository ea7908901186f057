//! Who is this, and may they?
//!
//! ```text
//!   socket peer (uid) --peercred--> Account --manager--> Principal --policy--> Permit --> use case in manager/
//! ```
//!
//! What other services vouch for ([`oidc`], [`ldap`], [`pam`]) is turned into a [`crate::model::login::Proven`]; which user that
//! is, the manager knows.
//! And the key that signs how far the record of it all went: [`headkey`].
//!
//! A [`policy::Permit`] has private fields and is made in `policy.rs` alone, so that no use case can be
//! called without the question having been asked.

pub mod headkey;
pub mod ldap;
pub mod oidc;
pub mod pam;
pub mod peercred;
pub mod policy;
pub mod random;
pub mod secret_file;
pub mod sshkey;
