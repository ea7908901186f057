//! Signed heads of the record.
//!
//! A head is signed only where the record goes on from the one before it as it was written: a record that somebody
//! edited gets no new head, and the log says so.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::auth::headkey::HeadKey;
use crate::auth::policy::Permit;
use crate::manager::{Manager, ManagerError, Result, error};
use crate::model::record::check::{Chain, Fault, Wrong};
use crate::model::record::head::{Head, Key, SignedHead};
use crate::store::{commit, record};

/// The key's file in the state directory.
const KEY_FILE: &str = "record.key";
/// Entries after which a head is signed before its time.
const MANY: u64 = 1000;
/// How often it is looked whether there are so many.
const LOOK: Duration = Duration::from_secs(10);

/// What is told of heads.
#[derive(Clone, Debug)]
pub struct HeadFacts {
    /// The newest.
    pub newest: Option<SignedHead>,
    /// The key that heads are signed with now.
    pub key: Key,
    /// The last entry.
    pub last: u64,
}

impl Manager {
    /// The key of heads, made where there is none.
    pub(super) fn head_key(&self) -> Result<&HeadKey> {
        if let Some(key) = self.record.key.get() {
            return Ok(key);
        }
        let made = HeadKey::ensure(&self.config.manager.state_dir.join(KEY_FILE));
        let made = made.map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        Ok(self.record.key.get_or_init(|| made))
    }

    /// The newest head, and the key.
    ///
    /// # Errors
    /// Where the store fails, or the key cannot be read.
    pub async fn head(&self, _permit: &Permit) -> Result<HeadFacts> {
        let (newest, last) = tokio::try_join!(self.store.newest_head(), self.store.record_tip())?;
        Ok(HeadFacts { newest, key: self.head_key()?.public(), last: last.seq })
    }

    /// Signs a head where entries came since the last one; a copy goes to the log.
    ///
    /// # Errors
    /// Where the store fails, or the record does not go on from the last head.
    pub async fn sign_head(&self) -> Result<Option<SignedHead>> {
        let _one = self.record.signing.lock().await;
        let (tip, before) = tokio::try_join!(self.store.record_tip(), self.store.newest_head())?;
        let first = before.as_ref().map_or(Chain::START, |signed| signed.head.place());
        if tip == first {
            return Ok(None);
        }
        let refuse = |fault: Fault| {
            ManagerError::conflict(format!("no head of the record is signed: {fault}")).hint("gvm audit verify")
        };
        if tip.seq <= first.seq {
            let seq = tip.seq.saturating_add(1).min(first.seq);
            return Err(refuse(Fault { seq, wrong: Wrong::CutOff { head: first.seq } }));
        }
        let (last, _) = self.store.check_entries(first, tip.seq, &[]).await?.map_err(refuse)?;
        if last != tip {
            return Err(refuse(Fault { seq: tip.seq, wrong: Wrong::Edited }));
        }
        let now = Timestamp::now();
        // No finer than it is written.
        let at = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let head = Head { seq: tip.seq, hash: tip.hash, at, host: self.host().id };
        let signed = self.head_key()?.sign(head);
        let mut tx = self.store.write().await?;
        record::keep_head(&mut tx, &signed).await?;
        commit(tx).await?;
        tracing::info!(head = %signed, "the record's head");
        Ok(Some(signed))
    }

    /// Signs heads from time to time, until the manager is told to stop.
    ///
    /// # Errors
    /// Where the key cannot be made or read.
    pub fn spawn_head_signing(self: &Arc<Self>) -> Result<()> {
        self.head_key()?;
        let manager = self.clone();
        self.tasks.spawn(async move {
            let stop = manager.stop.clone();
            let _: Option<()> = stop.run_until_cancelled(manager.sign_from_time_to_time()).await;
        });
        Ok(())
    }

    async fn sign_from_time_to_time(&self) {
        let every = Duration::from_secs(self.config.audit.sign_every.saturating_mul(60));
        let mut signed_at: Option<tokio::time::Instant> = None;
        loop {
            let is_time = signed_at.is_none_or(|at| at.elapsed() >= every);
            if is_time || self.are_many_unsigned().await {
                self.sign_or_say().await;
                signed_at = Some(tokio::time::Instant::now());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn are_many_unsigned(&self) -> bool {
        let both = tokio::try_join!(self.store.record_tip(), self.store.newest_head());
        let Ok((tip, newest)) = both else { return false };
        tip.seq >= newest.map_or(0, |signed| signed.head.seq).saturating_add(MANY)
    }

    /// Signs a head; what goes wrong is told to the log.
    pub async fn sign_or_say(&self) {
        if let Err(e) = self.sign_head().await {
            tracing::error!(error = %error::chain(&e), "the record's head is not signed");
        }
    }
}
