//! OpenSSH certificates of members: whether one is good, and what it lets its holder do. A pure decision: whom we
//! believe, the client's address and the time are arguments.
//!
//! The library has verified before that the signature in the certificate is of the key that it names as its
//! authority's, and that the client holds the key that it is over. Everything else is looked at here.

use std::net::IpAddr;

use jiff::Timestamp;
use russh::keys::ssh_key::certificate::CertType;
use russh::keys::{Algorithm, Certificate, HashAlg, PublicKey};

use super::ssh::{self, WeakKey};
use super::trust::Trust;
use crate::api::types::CertificateFacts;
use crate::model::name::UserName;

/// Principals of one certificate; as many as OpenSSH reads.
const PRINCIPALS_MAX: usize = 256;
/// Bytes of an authority's name for a certificate.
const KEY_ID_MAX: usize = 1024;
/// Where the certificate's holder may come from.
const SOURCE_ADDRESS: &str = "source-address";
/// The one command that the holder may run.
const FORCE_COMMAND: &str = "force-command";

/// What a login lets its holder do at the gateway, beside logging in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    /// Have a terminal.
    pub has_pty: bool,
    /// Forward ports and sockets; a jump is a forward.
    pub has_forwards: bool,
    /// Lend an agent to the machine.
    pub has_agent: bool,
}

impl Rights {
    /// Those of a registered key.
    pub const ALL: Self = Self { has_pty: true, has_forwards: true, has_agent: true };

    /// Those that a certificate's extensions name. An extension that is not known means nothing.
    fn of(certificate: &Certificate) -> Self {
        let has = |name: &str| certificate.extensions().contains_key(name);
        Self {
            has_pty: has("permit-pty"),
            has_forwards: has("permit-port-forwarding"),
            has_agent: has("permit-agent-forwarding"),
        }
    }
}

/// Why a certificate is not taken; for the log, the client hears nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WhyNot {
    /// Signed by nobody we know.
    #[error("its authority {0} is none of gateway.user_ca")]
    Authority(String),
    /// For machines.
    #[error("it is a host's certificate")]
    Host,
    /// Not yet.
    #[error("it is good from {0} on, and this host's clock says {1}: compare both clocks")]
    NotYet(Moment, Timestamp),
    /// Not any more.
    #[error("it was good until {0}, and this host's clock says {1}")]
    Over(Moment, Timestamp),
    /// For everybody, or nobody.
    #[error("it names nobody: it must be signed for its holder's name in gvm, ssh-keygen -n NAME")]
    NoPrincipal,
    /// A restriction that the gateway does not enforce.
    #[error("it is for one command only (force-command), and the gateway cannot hold its holder to that")]
    ForceCommand,
    /// A restriction that the gateway does not know.
    #[error("it has the critical option {0:?}, which is not known here")]
    Option(String),
    /// From elsewhere.
    #[error("it is good from other addresses only ({0})")]
    Address(String),
    /// The key that it is over.
    #[error("the key that it is over: {0}")]
    Key(WeakKey),
    /// The key or the signature of its authority.
    #[error("its authority's signature: {0}")]
    Signature(WeakKey),
    /// On the list.
    #[error("{0} is on the list gateway.revoked_keys")]
    Revoked(&'static str),
    /// Nobody can say.
    #[error("the list gateway.revoked_keys cannot be read, so no certificate is taken")]
    NoList,
    /// Larger than any that is of use.
    #[error("it is too large")]
    Large,
}

/// A time in a certificate, which may be beyond any calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(u64);

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match i64::try_from(self.0).ok().and_then(|second| Timestamp::from_second(second).ok()) {
            Some(time) => write!(f, "{time}"),
            None => write!(f, "second {}", self.0),
        }
    }
}

/// A certificate that was found good at its holder's login.
#[derive(Clone, Debug)]
pub(super) struct Certified {
    /// What the manager is told.
    pub facts: CertificateFacts,
    /// What its holder may do.
    pub rights: Rights,
    certificate: Box<Certificate>,
}

impl Certified {
    /// Looks at everything about a certificate whose holder logs in now.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn at_login(certificate: &Certificate, trust: &Trust, from: IpAddr, now: Timestamp) -> Result<Self, WhyNot> {
        let ca = print(&certificate.signature_key().clone().into());
        if !trust.knows(&ca) {
            return Err(WhyNot::Authority(ca));
        }
        if trust.is_list_lost() {
            return Err(WhyNot::NoList);
        }
        check_form(certificate)?;
        check_signature(certificate)?;
        check_time(certificate, now)?;
        let principals = members(certificate)?;
        check_restrictions(certificate, from)?;
        let facts =
            CertificateFacts { principals, key_id: certificate.key_id().to_owned(), serial: certificate.serial(), ca };
        let certified = Self { facts, rights: Rights::of(certificate), certificate: Box::new(certificate.clone()) };
        certified.check_revoked(trust)?;
        Ok(certified)
    }

    /// Whether what was let in is still wanted. Its time may have run out meanwhile: as with sshd, that ends logins
    /// and not sessions. While a file cannot be read, nothing is ended for what may be in it.
    ///
    /// # Errors
    /// Says what has changed.
    pub fn still(&self, trust: &Trust) -> Result<(), WhyNot> {
        if !trust.is_whole() {
            return Ok(());
        }
        if !trust.knows(&self.facts.ca) {
            return Err(WhyNot::Authority(self.facts.ca.clone()));
        }
        self.check_revoked(trust)
    }

    fn check_revoked(&self, trust: &Trust) -> Result<(), WhyNot> {
        let facts = &self.facts;
        if trust.has_revoked_key(&facts.ca) {
            return Err(WhyNot::Revoked("its authority"));
        }
        if trust.has_revoked_key(&print(&self.certificate.public_key().clone().into())) {
            return Err(WhyNot::Revoked("its key"));
        }
        if trust.has_revoked_serial(&facts.ca, facts.serial) {
            return Err(WhyNot::Revoked("its serial number"));
        }
        if trust.has_revoked_id(&facts.ca, &facts.key_id) {
            return Err(WhyNot::Revoked("its key id"));
        }
        Ok(())
    }
}

/// `SHA256:...`
pub(super) fn print(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

fn check_form(certificate: &Certificate) -> Result<(), WhyNot> {
    if certificate.cert_type() != CertType::User {
        return Err(WhyNot::Host);
    }
    if certificate.valid_principals().len() > PRINCIPALS_MAX || certificate.key_id().len() > KEY_ID_MAX {
        return Err(WhyNot::Large);
    }
    let key = PublicKey::from(certificate.public_key().clone());
    // With which hash an RSA key signs was looked at when it was offered.
    let algorithm = match key.algorithm() {
        Algorithm::Rsa { .. } => Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        other => other,
    };
    ssh::check_user_key(&key, &algorithm).map_err(WhyNot::Key)
}

fn check_signature(certificate: &Certificate) -> Result<(), WhyNot> {
    let key = PublicKey::from(certificate.signature_key().clone());
    ssh::check_user_key(&key, &certificate.signature().algorithm()).map_err(WhyNot::Signature)
}

/// `valid_after <= now < valid_before`, in whole seconds since 1970.
fn check_time(certificate: &Certificate, now: Timestamp) -> Result<(), WhyNot> {
    let (after, before) = (certificate.valid_after(), certificate.valid_before());
    // A clock before 1970 is no clock; nothing is good yet.
    let second = u64::try_from(now.as_second()).unwrap_or(0);
    if second < after {
        return Err(WhyNot::NotYet(Moment(after), now));
    }
    if second >= before {
        return Err(WhyNot::Over(Moment(before), now));
    }
    Ok(())
}

/// The principals that can be a member's name, each once. The others are for other hosts.
fn members(certificate: &Certificate) -> Result<Vec<String>, WhyNot> {
    let mut names: Vec<String> = Vec::new();
    for name in certificate.valid_principals() {
        if name.parse::<UserName>().is_ok() && !names.contains(name) {
            names.push(name.clone());
        }
    }
    if names.is_empty() { Err(WhyNot::NoPrincipal) } else { Ok(names) }
}

fn check_restrictions(certificate: &Certificate, from: IpAddr) -> Result<(), WhyNot> {
    for (name, value) in certificate.critical_options().iter() {
        match name.as_str() {
            SOURCE_ADDRESS if is_within(value, from) => {}
            SOURCE_ADDRESS => return Err(WhyNot::Address(shown(value))),
            FORCE_COMMAND => return Err(WhyNot::ForceCommand),
            _ => return Err(WhyNot::Option(shown(name))),
        }
    }
    Ok(())
}

/// What somebody else wrote, for the log.
fn shown(text: &str) -> String {
    text.chars().take(80).collect::<String>().escape_debug().to_string()
}

/// Whether `from` is in a list such as `10.0.0.0/8,2001:db8::1`. A list with a fault contains nobody.
fn is_within(list: &str, from: IpAddr) -> bool {
    let nets: Option<Vec<(IpAddr, u32)>> = list.split(',').map(net).collect();
    nets.is_some_and(|nets| nets.into_iter().any(|net| contains(net, from.to_canonical())))
}

fn net(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) => length.parse().ok().filter(|length| *length <= most)?,
        None => most,
    };
    Some((address, length))
}

fn contains((net, length): (IpAddr, u32), address: IpAddr) -> bool {
    match (net, address) {
        (IpAddr::V4(net), IpAddr::V4(address)) => {
            (net.to_bits() ^ address.to_bits()).checked_shr(32 - length).unwrap_or(0) == 0
        }
        (IpAddr::V6(net), IpAddr::V6(address)) => {
            (net.to_bits() ^ address.to_bits()).checked_shr(128 - length).unwrap_or(0) == 0
        }
        _ => false,
    }
}
