//! Whose certificates are believed, and which keys and certificates are good no more: two lists of an administrator,
//! read again whenever their files change.
//!
//! A list that cannot be read closes the door instead of opening it: of a file of authorities none is believed, and
//! without the list of what is revoked no certificate is.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use russh::keys::ssh_key::Fingerprint;
use russh::keys::{HashAlg, PublicKey};

use super::cert::print;

/// The first bytes of OpenSSH's binary lists.
const KRL_MAGIC: &[u8] = b"SSHKRL\n\0";
/// A list longer than this is taken for something else.
const FILE_MAX: u64 = 16 << 20;

/// Where the lists are; see `GatewayConfig`.
#[derive(Clone, Debug, Default)]
pub struct TrustFiles {
    /// Public keys of authorities.
    pub user_ca: Vec<PathBuf>,
    /// What is revoked.
    pub revoked_keys: Option<PathBuf>,
}

/// Why a list is not used.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("it cannot be read: {0}")]
    File(#[from] io::Error),
    #[error("it is larger than {} MiB", FILE_MAX >> 20)]
    Large,
    #[error(
        "it is a binary list of OpenSSH (KRL); write a text list instead: one line for each SHA256:FINGERPRINT, \
         public key, `serial CA-FINGERPRINT NUMBER[-NUMBER]` or `id CA-FINGERPRINT KEY-ID`"
    )]
    Binary,
    #[error("line {0}: {1}")]
    Line(usize, &'static str),
    #[error("there is no key in it")]
    Empty,
}

/// The lists as they were read last.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    authorities: HashSet<String>,
    revoked: Revoked,
    is_list_lost: bool,
    is_whole: bool,
}

#[derive(Clone, Debug, Default)]
struct Revoked {
    keys: HashSet<String>,
    serials: HashMap<String, Vec<RangeInclusive<u64>>>,
    ids: HashSet<(String, String)>,
}

impl Trust {
    /// Whether certificates that this key signed are believed.
    pub fn knows(&self, ca: &str) -> bool {
        self.authorities.contains(ca)
    }

    /// Whether there is any authority: only then can an unknown key be that of a certificate.
    pub fn has_authorities(&self) -> bool {
        !self.authorities.is_empty()
    }

    /// Whether the list of what is revoked cannot be read.
    pub const fn is_list_lost(&self) -> bool {
        self.is_list_lost
    }

    /// Whether all files could be read.
    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether this key is revoked, a member's or an authority's.
    pub fn has_revoked_key(&self, print: &str) -> bool {
        self.revoked.keys.contains(print)
    }

    /// Whether the authority's certificate of this number is revoked.
    pub fn has_revoked_serial(&self, ca: &str, serial: u64) -> bool {
        self.revoked.serials.get(ca).is_some_and(|ranges| ranges.iter().any(|range| range.contains(&serial)))
    }

    /// Whether the authority's certificates of this name are revoked.
    pub fn has_revoked_id(&self, ca: &str, key_id: &str) -> bool {
        self.revoked.ids.contains(&(ca.to_owned(), key_id.to_owned()))
    }

    /// Reads all files; whatever is wrong is logged, with its file.
    fn read(files: &TrustFiles) -> Self {
        let mut trust = Self { is_whole: true, ..Self::default() };
        for path in &files.user_ca {
            match read(path).and_then(|text| authorities(&text)) {
                Ok(keys) => trust.authorities.extend(keys),
                Err(error) => {
                    trust.is_whole = false;
                    tracing::error!(path = %path.display(), %error, "none of these authorities is believed");
                }
            }
        }
        if let Some(path) = &files.revoked_keys {
            match read(path).and_then(|text| revoked(&text)) {
                Ok(list) => trust.revoked = list,
                Err(error) => {
                    (trust.is_whole, trust.is_list_lost) = (false, true);
                    tracing::error!(path = %path.display(), %error, "without the list of what is revoked no certificate is taken");
                }
            }
        }
        tracing::info!(
            authorities = trust.authorities.len(),
            revoked_keys = trust.revoked.keys.len(),
            revoked_serials = trust.revoked.serials.values().map(Vec::len).sum::<usize>(),
            revoked_ids = trust.revoked.ids.len(),
            "lists of certificates read"
        );
        trust
    }
}

fn read(path: &Path) -> Result<String, ListError> {
    let file = fs::File::open(path)?;
    let facts = file.metadata()?;
    if facts.len() > FILE_MAX {
        return Err(ListError::Large);
    }
    if !facts.is_file() {
        return Err(ListError::File(io::ErrorKind::InvalidInput.into()));
    }
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, FILE_MAX), &mut bytes)?;
    if bytes.starts_with(KRL_MAGIC) {
        return Err(ListError::Binary);
    }
    String::from_utf8(bytes).map_err(|_| ListError::Line(1, "this is no text"))
}

/// Lines that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// The fingerprints of the keys in a file of authorities.
fn authorities(text: &str) -> Result<Vec<String>, ListError> {
    let keys: Result<Vec<_>, _> = lines(text)
        .map(|(at, line)| {
            PublicKey::from_openssh(line)
                .map(|key| print(&key))
                .map_err(|_| ListError::Line(at, "this is no public key"))
        })
        .collect();
    keys.and_then(|keys| if keys.is_empty() { Err(ListError::Empty) } else { Ok(keys) })
}

/// The list of what is revoked. An empty one is one.
fn revoked(text: &str) -> Result<Revoked, ListError> {
    let mut list = Revoked::default();
    for (at, line) in lines(text) {
        let wrong = |what| ListError::Line(at, what);
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let of_ca = || {
            let (ca, rest) = rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest, ""));
            let ca =
                fingerprint(ca).ok_or(wrong("the fingerprint of the authority, SHA256:..., is missing or wrong"))?;
            Ok::<_, ListError>((ca, rest.trim()))
        };
        match word {
            "serial" => {
                let (ca, numbers) = of_ca()?;
                let range = range(numbers).ok_or(wrong("use: serial CA-FINGERPRINT NUMBER[-NUMBER]"))?;
                list.serials.entry(ca).or_default().push(range);
            }
            "id" => match of_ca()? {
                (_, "") => return Err(wrong("use: id CA-FINGERPRINT KEY-ID")),
                (ca, key_id) => {
                    list.ids.insert((ca, key_id.to_owned()));
                }
            },
            word if word.starts_with("SHA256:") => {
                list.keys.insert(fingerprint(word).ok_or(wrong("this fingerprint is damaged"))?);
            }
            _ => {
                let key = PublicKey::from_openssh(line);
                list.keys.insert(
                    key.map(|key| print(&key))
                        .map_err(|_| wrong("this is no fingerprint, no public key, no `serial` and no `id`"))?,
                );
            }
        }
    }
    Ok(list)
}

/// A fingerprint, as we write it ourselves.
fn fingerprint(text: &str) -> Option<String> {
    let print: Fingerprint = text.parse().ok()?;
    (print.algorithm() == HashAlg::Sha256).then(|| print.to_string())
}

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    // `u64` would also read "+1".
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    (first <= last).then_some(first..=last)
}

/// What tells that a file is another one than it was.
type Stamp = Option<(u64, u64, i64, i64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let facts = fs::metadata(path).ok()?;
    Some((facts.ino(), facts.size(), facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec()))
}

/// The lists, and of which files they are.
type Held = Mutex<Option<(Vec<Stamp>, Arc<Trust>)>>;

/// Keeps the lists at hand.
#[derive(Debug)]
pub(super) struct Truster {
    files: Arc<TrustFiles>,
    held: Arc<Held>,
}

impl Truster {
    pub fn new(files: TrustFiles) -> Self {
        Self { files: Arc::new(files), held: Arc::default() }
    }

    /// The lists as their files are now.
    pub async fn current(&self) -> Arc<Trust> {
        let files = Arc::clone(&self.files);
        if files.user_ca.is_empty() && files.revoked_keys.is_none() {
            return Arc::new(Trust { is_whole: true, ..Trust::default() });
        }
        let held = Arc::clone(&self.held);
        // Whoever is let in by a list that could not be looked at would be let in by none.
        tokio::task::spawn_blocking(move || look(&files, &held)).await.unwrap_or_default()
    }
}

fn look(files: &TrustFiles, held: &Held) -> Arc<Trust> {
    let stamps: Vec<Stamp> = files.user_ca.iter().chain(&files.revoked_keys).map(|path| stamp(path)).collect();
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    match held.as_ref() {
        Some((known, trust)) if *known == stamps => Arc::clone(trust),
        _ => {
            let trust = Arc::new(Trust::read(files));
            *held = Some((stamps, Arc::clone(&trust)));
            trust
        }
    }
}
