//! The record: what is put on it, by whom it is read.
//!
//! ```text
//!   use case:   pending -> audit::begin in the transaction of the change     refusal, login: a transaction of its own
//!   reconciler: audit::finish when the effect is proven
//!   heads:      every so often, and at the end of the process: tip -> signed -> row, journal
//! ```

mod heads;

use std::sync::OnceLock;

use futures_util::{Stream, stream};
use jiff::Timestamp;

pub use self::heads::HeadFacts;
use super::{Kind, Manager, ManagerError, Result, error};
use crate::auth::headkey::HeadKey;
use crate::auth::policy::{self, Action, Permit};
use crate::model::event::{AuditEvent, Operation, Outcome};
use crate::model::id::{OpId, UserId, VmId};
use crate::model::name::UserName;
use crate::model::principal::{Origin, Principal};
use crate::model::record::Entry;
use crate::model::record::check::{Chain, Fault, Heads};
use crate::model::record::export::Line;
use crate::model::record::head::{Key, SignedHead};
use crate::model::secret::without_secrets;
use crate::store::audit::Whose;
pub use crate::store::record::query::Filter;
use crate::store::{Write, audit};

/// Longest target of a refusal, and longest reason: both are words of strangers.
const LONGEST: (usize, usize) = (200, 1000);
/// Entries of an export that are held at once.
const EXPORT_PAGE: u32 = 1000;

/// What belongs to the record beside the store.
#[derive(Debug, Default)]
pub(super) struct Record {
    key: OnceLock<HeadKey>,
    /// One signs at a time.
    signing: tokio::sync::Mutex<()>,
    /// One verifies at a time: it takes most of the readers.
    verifying: tokio::sync::Mutex<()>,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The last entry, or the first bad one.
    pub found: std::result::Result<Chain, Fault>,
    /// Heads that it was held against.
    pub heads: usize,
}

/// Somebody who shows who they are, or tries to.
#[derive(Clone, Debug)]
pub struct Login<'a> {
    /// The name that was given, or that was proven.
    pub name: &'a str,
    /// The person, where they are known.
    pub user: Option<UserId>,
    /// From where, and by what.
    pub origin: Origin,
    /// Whether it was let in.
    pub outcome: Outcome,
    /// Reason, in plain words.
    pub detail: &'a str,
}

impl Manager {
    /// The first half of the record of an accepted change.
    pub(super) fn pending(permit: &Permit, action: &str, target: String, vm: Option<VmId>) -> AuditEvent {
        let principal = permit.principal();
        AuditEvent { target, vm, ..event(principal, action, Outcome::Pending) }
    }

    /// Records something that is done within this transaction.
    pub(super) async fn put_on_record(
        &self,
        tx: &mut Write,
        permit: &Permit,
        action: &str,
        target: &str,
    ) -> Result<()> {
        self.put_on_record_with(tx, permit, action, target, String::new()).await
    }

    /// The same with what it was in particular.
    pub(super) async fn put_on_record_with(
        &self,
        tx: &mut Write,
        permit: &Permit,
        action: &str,
        target: &str,
        detail: String,
    ) -> Result<()> {
        let event = Self::pending(permit, action, target.to_owned(), None);
        Ok(audit::begin(tx, &event.ended(Outcome::Success, &detail), None).await?)
    }

    /// Puts a refusal or failure on the record.
    pub async fn record_refusal(&self, principal: &Principal, action: &str, target: &str, error: &ManagerError) {
        let denied = !matches!(error.kind, Kind::Internal | Kind::Unavailable);
        let outcome = if denied { Outcome::Denied } else { Outcome::Failure };
        self.record_by_itself(event(principal, action, outcome), target, &error.to_string()).await;
    }

    /// Puts a login on the record, or the try of one.
    pub async fn record_login(&self, login: Login<'_>) {
        let event = AuditEvent {
            actor: foreign(login.name, LONGEST.0),
            actor_id: login.user,
            origin: login.origin,
            ..AuditEvent::own(Timestamp::now(), "login", String::new(), login.outcome)
        };
        self.record_by_itself(event, login.name, login.detail).await;
    }

    async fn record_by_itself(&self, event: AuditEvent, target: &str, detail: &str) {
        let (longest_target, longest_detail) = LONGEST;
        let (target, detail) = (foreign(target, longest_target), foreign(detail, longest_detail));
        let event = AuditEvent { target, detail, ..event };
        if let Err(fault) = self.store.record(&event).await {
            let action = event.action;
            tracing::error!(%action, error = %error::chain(&fault), "cannot put a refusal or login on the record");
        }
    }

    /// One operation, of the one who asks or with a permit for everybody's.
    ///
    /// # Errors
    /// Not there and not yours are the same.
    pub async fn operation(&self, permit: &Permit, id: OpId) -> Result<Operation> {
        let found = self.store.operation(id).await?;
        let own = permit.user().map(|user| user.id);
        found
            .filter(|(_, actor)| sees_all(permit) || own.is_some() && *actor == own)
            .map(|(operation, _)| operation)
            .ok_or_else(|| ManagerError::not_found(format!("there is no operation {id}")))
    }

    /// The newest operations, of the one who asks or with a permit for everybody's.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn operations(&self, permit: &Permit, limit: u32) -> Result<Vec<Operation>> {
        let whose = match permit.user() {
            _ if sees_all(permit) => Whose::Everybody,
            Some(user) => Whose::User(user.id),
            None => return Ok(Vec::new()),
        };
        Ok(self.store.operations(whose, limit).await?)
    }

    /// The newest entries that are wanted, newest first: of the one who asks, or with a permit for everybody's. Of a
    /// person who is known by the name that is asked for, what they did under other names is found as well.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn entries(&self, permit: &Permit, filter: Filter, limit: u32) -> Result<Vec<Entry>> {
        let named = match filter.actor.as_deref().map(str::parse::<UserName>) {
            Some(Ok(name)) => self.store.user_by_name(&name).await?.map(|user| user.id),
            _ => None,
        };
        let filter = match (named, permit.user()) {
            (Some(id), _) if sees_all(permit) => Filter { actor_id: Some(id), actor: None, ..filter },
            _ if sees_all(permit) => filter,
            (named, Some(user)) if filter.actor.is_none() || named == Some(user.id) => {
                Filter { actor_id: Some(user.id), actor: None, ..filter }
            }
            // Another's, or nobody's.
            _ => return Ok(Vec::new()),
        };
        Ok(self.store.entries(&filter, limit).await?)
    }

    /// The record as lines of JSON, from a time on: pages of text, read as they are wanted. What is written meanwhile
    /// is left out.
    ///
    /// # Errors
    /// Where the store fails; so do the pages.
    pub async fn export(
        &self,
        _permit: &Permit,
        since: Option<Timestamp>,
    ) -> Result<impl Stream<Item = Result<String>> + Send + use<>> {
        let end = self.store.record_tip().await?;
        let first = match since {
            Some(since) => self.store.entry_before(since).await?,
            None => Chain::START,
        };
        let heads = self.store.record_heads(first.seq).await?.map_err(|fault| conflict(&fault))?;
        let store = self.store.clone();
        let begin = Pages { after: first.seq, heads: heads.into(), is_begun: false, is_over: false };
        Ok(stream::try_unfold(begin, move |mut pages| {
            let store = store.clone();
            async move {
                if pages.is_over {
                    return Ok(None);
                }
                let mut text = String::new();
                if !pages.is_begun {
                    put(&mut text, &Line::start(first));
                    pages.put_heads(&mut text);
                    pages.is_begun = true;
                }
                let entries = store.entries_behind(pages.after, end.seq, EXPORT_PAGE).await?;
                for entry in &entries {
                    put(&mut text, entry);
                    pages.after = entry.seq;
                    pages.put_heads(&mut text);
                }
                if entries.is_empty() || pages.after >= end.seq {
                    put(&mut text, &Line::End { seq: pages.after.max(end.seq) });
                    pages.is_over = true;
                }
                Ok(Some((text, pages)))
            }
        }))
    }

    /// Holds the record against itself, its signed heads, and what the one who asks has kept elsewhere: heads, and the
    /// key that must have signed all (the manager's own where none is given).
    ///
    /// # Errors
    /// Where the store fails, or a verification is under way.
    pub async fn verify_record(&self, _permit: &Permit, kept: Vec<SignedHead>, key: Option<Key>) -> Result<Verified> {
        let _one = self.record.verifying.try_lock().map_err(|_| {
            ManagerError::conflict("the record is being verified already").hint("try again when that is done")
        })?;
        let key = match key {
            Some(key) => key,
            None => self.head_key()?.public(),
        };
        let own = match self.store.record_heads(0).await? {
            Ok(own) => own,
            Err(fault) => return Ok(Verified { found: Err(fault), heads: 0 }),
        };
        let heads = match Heads::trusted([own, kept].concat(), Some(&key)) {
            Ok(heads) => heads,
            Err(fault) => return Ok(Verified { found: Err(fault), heads: 0 }),
        };
        let found = self.store.verify_record(&heads).await?;
        if let Err(fault) = &found {
            tracing::error!(%fault, "the record is not what was written");
        }
        Ok(Verified { found, heads: heads.len() })
    }
}

/// How far an export is.
struct Pages {
    after: u64,
    /// Those that are not written yet, in order.
    heads: std::collections::VecDeque<SignedHead>,
    is_begun: bool,
    is_over: bool,
}

impl Pages {
    /// The heads of the last entry.
    fn put_heads(&mut self, text: &mut String) {
        while let Some(signed) = self.heads.pop_front_if(|signed| signed.head.seq <= self.after) {
            put(text, &Line::Head(signed.to_string()));
        }
    }
}

fn put(text: &mut String, line: &impl serde::Serialize) {
    // Our own types have string keys and no failing serialisers.
    text.push_str(&serde_json::to_string(line).unwrap_or_default());
    text.push('\n');
}

fn conflict(fault: &Fault) -> ManagerError {
    ManagerError::conflict(fault.to_string()).hint("see what else is wrong with it: gvm audit verify")
}

fn sees_all(permit: &Permit) -> bool {
    permit.action() == Action::AuditSeeAll
}

fn event(principal: &Principal, action: &str, outcome: Outcome) -> AuditEvent {
    AuditEvent {
        actor: policy::actor(principal),
        actor_id: principal.user().map(|user| user.id),
        origin: principal.origin.clone(),
        ..AuditEvent::own(Timestamp::now(), action, String::new(), outcome)
    }
}

/// Words of strangers, fit to be kept: bounded, without control characters, without what looks like a secret.
fn foreign(text: &str, longest: usize) -> String {
    let plain = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    without_secrets(text).chars().take(longest).map(plain).collect()
}
