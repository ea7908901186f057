//! A directory: finds the one entry of a login, and lets the directory judge the password.
//!
//! ```text
//!   connect (TLS) --> bind as searcher --> search: exactly one entry --> bind as that entry --> Proven
//! ```
//!
//! Whoever runs the directory can vouch for anybody: a server that says yes to every password cannot be told from an
//! honest one. What can be told is told: no answer, half an answer, two entries, an entry without a name. Answers are
//! measured before the library sees them ([`wire`]), and what makes the library give up is an error like any other.

mod wire;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use ldap3::{
    DerefAliases, Ldap as Session, LdapConnAsync, LdapConnSettings, LdapError as LibraryError, LdapResult, Scope,
    SearchEntry, SearchOptions, StdStream, ldap_escape,
};

use super::secret_file::{self, SecretError};
use crate::config::LdapConfig;
use crate::model::login::{MAX_GROUPS, MAX_WORD, Proven};
use crate::model::principal::Provider;
use crate::model::secret::Secret;

/// One login, from the first packet to the last.
const DEADLINE: Duration = Duration::from_secs(10);
/// What the directory itself may take to search, seconds.
const SEARCH_SECONDS: i32 = 5;
/// Longest login that is searched for, bytes.
const MAX_LOGIN: usize = 256;
/// Longest password, bytes.
const MAX_PASSWORD: usize = 1024;

/// The directory's numbers that mean something here (RFC 4511, 4.1.9).
mod code {
    pub const SUCCESS: u32 = 0;
    pub const SIZE_LIMIT: u32 = 4;
    pub const REFERRAL: u32 = 10;
    pub const CONSTRAINT: u32 = 19;
    pub const NO_SUCH_OBJECT: u32 = 32;
    pub const INAPPROPRIATE: u32 = 48;
    pub const CREDENTIALS: u32 = 49;
    pub const ACCESS: u32 = 50;
    pub const UNWILLING: u32 = 53;
}

/// Why nobody is known after all.
#[derive(Debug, thiserror::Error)]
pub enum LdapError {
    /// No such login, or another password, or one that may not be used.
    #[error("the directory refuses it: {0}")]
    Refused(String),
    /// The directory does not answer, or not in time, or with what makes no sense.
    #[error("the directory {0}")]
    Directory(String),
    /// What was configured cannot be used.
    #[error("the directory is not set up right: {0}")]
    Setup(String),
    /// The searcher's password cannot be read.
    #[error("the directory is not set up right")]
    Secret(#[from] SecretError),
}

impl From<LibraryError> for LdapError {
    fn from(error: LibraryError) -> Self {
        match error {
            LibraryError::FilterParsing => Self::Setup("login.ldap.user_filter is no filter".into()),
            other => Self::Directory(format!("ended the conversation: {other}")),
        }
    }
}

/// Asks the directory.
#[derive(Debug)]
pub struct Ldap {
    config: LdapConfig,
}

/// An entry, as far as it is of use.
struct Entry {
    dn: String,
    proven: Proven,
}

impl Ldap {
    /// With this directory; nothing is asked yet.
    pub const fn new(config: LdapConfig) -> Self {
        Self { config }
    }

    /// Who it is that has this login and password.
    ///
    /// # Errors
    /// See [`LdapError`].
    pub async fn login(&self, user: &str, password: &Secret<String>) -> Result<Proven, LdapError> {
        // A bind with an empty password succeeds for anybody: it means "nobody in particular" (RFC 4513, 5.1.2).
        let is_usable = |text: &str, max: usize| !text.is_empty() && text.len() <= max;
        if !is_usable(user, MAX_LOGIN) || !is_usable(password.expose(), MAX_PASSWORD) {
            return Err(LdapError::Refused("empty or too long".into()));
        }
        let secret = self.config.bind_password_file.as_deref().map(secret_file::read).transpose()?;
        // The library gives up with a panic on some answers that are no LDAP.
        let talk = AssertUnwindSafe(self.talk(user, password, secret.as_ref())).catch_unwind();
        match tokio::time::timeout(DEADLINE, talk).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(LdapError::Directory("sent an answer that cannot be read".into())),
            Err(_) => Err(LdapError::Directory(format!("did not answer within {} s", DEADLINE.as_secs()))),
        }
    }

    async fn talk(
        &self,
        user: &str,
        password: &Secret<String>,
        secret: Option<&Secret<String>>,
    ) -> Result<Proven, LdapError> {
        let (ours, pump) = wire::open(&self.config).await?;
        let settings = LdapConnSettings::new().set_std_stream(StdStream::Unix(ours));
        let (connection, session) = LdapConnAsync::with_settings(settings, "ldapi:///").await?;
        let driven = async {
            // Its end reaches the dialogue as an error of what was asked last.
            let _ = connection.drive().await;
            std::future::pending().await
        };
        tokio::select! {
            biased;
            done = self.converse(session, user, password, secret) => done,
            why = pump => Err(why),
            never = driven => never,
        }
    }

    async fn converse(
        &self,
        mut session: Session,
        user: &str,
        password: &Secret<String>,
        secret: Option<&Secret<String>>,
    ) -> Result<Proven, LdapError> {
        if let (Some(dn), Some(secret)) = (&self.config.bind_dn, secret) {
            let result = session.simple_bind(dn, secret.expose()).await?;
            match result.rc {
                code::SUCCESS => {}
                code::CREDENTIALS | code::INAPPROPRIATE => {
                    return Err(LdapError::Setup("it refuses login.ldap.bind_dn with its password".into()));
                }
                _ => return Err(odd("binding", &result)),
            }
        }
        let entry = self.find(&mut session, user).await?;
        let result = session.simple_bind(&entry.dn, password.expose()).await?;
        match result.rc {
            code::SUCCESS => Ok(entry.proven),
            code::CREDENTIALS | code::INAPPROPRIATE | code::CONSTRAINT | code::ACCESS | code::UNWILLING => {
                Err(LdapError::Refused(format!("code {}", result.rc)))
            }
            _ => Err(odd("judging a password", &result)),
        }
    }

    /// The one entry of a login.
    async fn find(&self, session: &mut Session, user: &str) -> Result<Entry, LdapError> {
        let config = &self.config;
        let filter = config.user_filter.replace("{user}", &ldap_escape(user));
        let mut wanted = vec![&config.name_attribute, &config.full_name_attribute, &config.group_attribute];
        wanted.extend(&config.subject_attribute);
        // Two are enough to know that there is more than one.
        let options = SearchOptions::new().deref(DerefAliases::Never).sizelimit(2).timelimit(SEARCH_SECONDS);
        let found = session.with_search_options(options).search(&config.base, Scope::Subtree, &filter, wanted).await?;
        let (entries, result) = (found.0, found.1);
        // References to other directories are never followed.
        let mut entries = entries.into_iter().filter(|entry| !entry.is_ref() && !entry.is_intermediate());
        match result.rc {
            code::SUCCESS => {}
            code::SIZE_LIMIT => return Err(several()),
            code::NO_SUCH_OBJECT => return Err(LdapError::Setup("there is no login.ldap.base in it".into())),
            code::REFERRAL => return Err(LdapError::Directory("sends us to another one, where we do not go".into())),
            _ => return Err(odd("searching", &result)),
        }
        let Some(entry) = entries.next() else { return Err(LdapError::Refused("no such login".into())) };
        if entries.next().is_some() {
            return Err(several());
        }
        self.read(SearchEntry::construct(entry))
    }

    fn read(&self, entry: SearchEntry) -> Result<Entry, LdapError> {
        let config = &self.config;
        // Names of attributes differ in case between what is asked and what is answered.
        let values = |name: &str| -> Vec<String> {
            let texts = entry.attrs.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            let bytes = entry.bin_attrs.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            let texts = texts.flat_map(|(_, values)| values.iter().cloned());
            let all = texts.chain(bytes.flat_map(|(_, values)| values.iter().map(hex::encode)));
            all.filter(|value| !value.is_empty() && value.len() <= MAX_WORD).take(MAX_GROUPS).collect()
        };
        let lacks =
            |name: &str| LdapError::Directory(format!("has an entry for that login without the attribute {name}"));
        let first = |name: &str| values(name).into_iter().next();
        if entry.dn.is_empty() || entry.dn.len() > MAX_WORD {
            return Err(LdapError::Directory("has an entry for that login without a name".into()));
        }
        let subject = match &config.subject_attribute {
            Some(name) => first(name).ok_or_else(|| lacks(name))?,
            // Names that differ in case are one.
            None => entry.dn.to_lowercase(),
        };
        let proven = Proven {
            provider: Provider::Ldap,
            subject,
            name: first(&config.name_attribute).ok_or_else(|| lacks(&config.name_attribute))?,
            full_name: first(&config.full_name_attribute).unwrap_or_default(),
            groups: values(&config.group_attribute),
        };
        Ok(Entry { proven, dn: entry.dn })
    }
}

fn several() -> LdapError {
    LdapError::Refused("login.ldap.user_filter finds more than one entry for that login".into())
}

fn odd(doing: &str, result: &LdapResult) -> LdapError {
    let text: String = result.text.chars().filter(|c| !c.is_control()).take(200).collect();
    LdapError::Directory(format!("answered {doing} with code {} {text}", result.rc))
}
