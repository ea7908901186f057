//! Cards that are divided otherwise: when an administrator says so, and again after a restart of the host, which forgets it.
//!
//! What was decided is in the store before the first change. After a crash in the middle the next start goes on, since
//! only a shape that came into force carries the boot's id. Within one boot nothing is done again by itself: whoever
//! changes a card beside gvm is told, and not fought.

use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::time::Instant;

use super::super::{Manager, ManagerError, Result, error, hold};
use super::Seen;
use super::change::must_be_free;
use super::steps::{why, withhold};
use crate::gpu::BindError;
use crate::model::card::Card;
use crate::model::card::blockers::BlockerKind;
use crate::model::gpu::{GpuId, GpuLease};
use crate::model::inventory::{KnownGpu, Shape, Shaped, Withheld};
use crate::plan::shape::{Next, Target, next};
use crate::store::gpus::Decision;
use crate::store::{commit, gpus};

/// For drivers and virtual functions to come by themselves; after a start of the host some come minutes late.
const PATIENCE: Duration = Duration::from_secs(180);

/// Between two looks at something that comes by itself.
const PAUSE: Duration = Duration::from_millis(500);

/// More jobs no card needs: seven instances away, seven new ones, functions and mode off and on.
const MAX_JOBS: usize = 40;

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Undone {
    /// It cannot be, as things are; nothing hangs.
    Cannot(String),
    /// The kernel does not come back from it.
    Stuck(String),
}

/// What is done with a refusal: an administrator is told at once; at the start of the host whoever has a card open may let
/// go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusals {
    Told,
    WaitedOut,
}

/// A card that is being divided otherwise, until this is dropped.
struct Reshaping<'m> {
    manager: &'m Manager,
    gpu: GpuId,
}

impl Drop for Reshaping<'_> {
    fn drop(&mut self) {
        super::super::lock(&self.manager.gpus.reshaping).remove(&self.gpu);
    }
}

/// The virtual functions of a card in a look.
pub(super) fn functions<'s>(seen: &'s Seen, card: &Card) -> Vec<&'s Card> {
    let all = seen.entries.iter().filter_map(|entry| entry.card.as_ref());
    all.filter(|other| other.physfn == Some(card.address)).collect()
}

impl Manager {
    /// Divides a card that nobody uses; the caller has its lock.
    pub(super) async fn divide(&self, row: &KnownGpu, card: &Card, shape: Shape) -> Result<String> {
        self.must_be_free(row).await?;
        let address = card.address;
        if let Some(withheld) = &row.withheld {
            let message = format!("GPU {address} is out of service: {}", why(withheld));
            return Err(ManagerError::conflict(message).hint(format!("gvm gpu readmit {address}")));
        }
        if let Some(foreign) = card.blockers.iter().find(|blocker| blocker.kind == BlockerKind::Foreign) {
            return Err(ManagerError::conflict(format!("GPU {address} is not gvm's to divide: {}", foreign.text)));
        }
        if row.is_kept || (card.is_vfio && !row.former.is_empty()) {
            self.unkeep(row, card).await?;
        }
        let seen = self.look_at_gpus().await?;
        let Some((_, card)) = seen.card(&row.id) else {
            return Err(ManagerError::conflict(format!("GPU {address} is gone from this host")));
        };
        let cannot = |why: String| ManagerError::conflict(format!("GPU {address} cannot be divided: {why}"));
        if let Next::Stop(why) = next(card, &functions(&seen, card), Target::Shape(&shape)) {
            return Err(cannot(why));
        }
        let word = shape.word();
        // Before it is looked whether it is free: whoever is admitted later sees this.
        let _reshaping = self.reshaping(&row.id);
        self.decide_shape(row, Some(Shaped { shape: shape.clone(), boot_id: None })).await?;
        hold::point("gpu-shape-recorded").await;
        match self.bring(&row.id, Target::Shape(&shape), Refusals::Told).await {
            Ok(()) => {
                self.decide_shape(row, Some(Shaped { shape, boot_id: Some(self.host().boot_id) })).await?;
                Ok(word.to_owned())
            }
            Err(undone) => {
                self.decide_shape(row, row.shape.clone()).await?;
                Err(self.undone(row, undone).await.hint(format!(
                    "`gvm gpu show {address}` says how far it came; `gvm gpu mode {address} host` puts it together again"
                )))
            }
        }
    }

    /// Puts a card together that nobody uses; the caller has its lock.
    pub(super) async fn undivide(&self, row: &KnownGpu, card: &Card) -> Result<()> {
        let is_divided = card.is_divided();
        if row.shape.is_none() && !is_divided {
            return Ok(());
        }
        let _reshaping = self.reshaping(&row.id);
        self.must_be_free(row).await?;
        if is_divided {
            must_be_idle(card, &functions(&*self.look_at_gpus().await?, card))?;
        }
        self.decide_shape(row, None).await?;
        if is_divided && let Err(undone) = self.bring(&row.id, Target::Whole, Refusals::Told).await {
            let address = card.address;
            return Err(self
                .undone(row, undone)
                .await
                .hint(format!("`gvm gpu show {address}` says how far it came; the same command goes on from there")));
        }
        Ok(())
    }

    fn reshaping(&self, gpu: &GpuId) -> Reshaping<'_> {
        super::super::lock(&self.gpus.reshaping).insert(gpu.clone());
        Reshaping { manager: self, gpu: gpu.clone() }
    }

    async fn decide_shape(&self, row: &KnownGpu, shaped: Option<Shaped>) -> Result<()> {
        let mut tx = self.store.write().await?;
        must_be_free(&mut tx, row).await?;
        gpus::decide(&mut tx, &row.id, &Decision::Shape(shaped)).await?;
        Ok(commit(tx).await?)
    }

    async fn undone(&self, row: &KnownGpu, undone: Undone) -> ManagerError {
        let address = row.identity.address;
        match undone {
            Undone::Cannot(why) => {
                ManagerError::conflict(format!("GPU {address} is not divided as it should be: {why}"))
            }
            Undone::Stuck(why) => {
                if let Err(e) = super::steps::withhold_stuck(self, &row.id, &why).await {
                    return e.into();
                }
                ManagerError::unavailable(format!("GPU {address} is stuck: {why}"))
            }
        }
    }

    /// One job after the other until the card is as it should be.
    async fn bring(&self, gpu: &GpuId, target: Target<'_>, refusals: Refusals) -> std::result::Result<(), Undone> {
        let until = Instant::now() + PATIENCE;
        let mut last = None;
        let mut done = 0;
        while done < MAX_JOBS {
            let job = match self.next_job(gpu, target, until).await? {
                Some(job) => job,
                None => return Ok(()),
            };
            if last.as_ref() == Some(&job) {
                return Err(Undone::Cannot(format!("{job} had no effect")));
            }
            tracing::info!(%gpu, %job, "dividing a GPU");
            hold::point("gpu-shape-step").await;
            match self.gpus.backend.reshape(&job).await {
                Ok(()) => done += 1,
                Err(BindError::Stuck(why)) => return Err(Undone::Stuck(why)),
                Err(BindError::Refused(why)) if refusals == Refusals::WaitedOut && Instant::now() < until => {
                    tracing::info!(%gpu, %why, "trying again");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(BindError::Transient(why)) if Instant::now() < until => {
                    tracing::info!(%gpu, %why, "trying again");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(BindError::Transient(why) | BindError::Refused(why) | BindError::Failed(why)) => {
                    return Err(Undone::Cannot(why));
                }
            }
            last = Some(job);
        }
        Err(Undone::Cannot(format!("it is not there after {MAX_JOBS} changes")))
    }

    /// What is to be done next, once what comes by itself has come.
    async fn next_job(
        &self,
        gpu: &GpuId,
        target: Target<'_>,
        until: Instant,
    ) -> std::result::Result<Option<crate::model::card::shape::ShapeJob>, Undone> {
        loop {
            let waits = match self.look_at_gpus().await {
                Err(e) => e.to_string(),
                Ok(seen) => match seen.card(gpu) {
                    None => "it is not there".to_owned(),
                    Some((_, card)) => match next(card, &functions(&seen, card), target) {
                        Next::Done => return Ok(None),
                        Next::Do(job) => return Ok(Some(job)),
                        Next::Stop(why) => return Err(Undone::Cannot(why)),
                        Next::Wait(why) => why,
                    },
                },
            };
            if Instant::now() >= until {
                return Err(Undone::Cannot(format!("after {} s {waits}", PATIENCE.as_secs())));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// After a restart of the host: divides the cards again as they were. Cards without MIG go first, since a reset for
    /// MIG disturbs others of the same board. One that does not come back is kept out of use, and no other waits for it
    /// longer than its turn.
    pub(super) async fn restore_shapes(&self) {
        let rows = match self.store.gpus().await {
            Ok(rows) => rows,
            Err(e) => return tracing::error!(error = %error::chain(&e), "cannot read what GPUs are divided into"),
        };
        let boot_id = self.host().boot_id;
        let is_due = |row: &&KnownGpu| {
            row.withheld.is_none()
                && row.shape.as_ref().is_some_and(|shaped| shaped.boot_id.as_deref() != Some(boot_id.as_str()))
        };
        let due: Vec<&KnownGpu> = rows.iter().filter(is_due).collect();
        let is_mig =
            |row: &&&KnownGpu| matches!(row.shape.as_ref().map(|shaped| &shaped.shape), Some(Shape::Mig { .. }));
        join_all(due.iter().filter(|row| !is_mig(row)).map(|row| self.restore_shape(row, &boot_id))).await;
        for row in due.iter().filter(is_mig) {
            self.restore_shape(row, &boot_id).await;
        }
    }

    async fn restore_shape(&self, row: &KnownGpu, boot_id: &str) {
        let Some(Shaped { shape, .. }) = &row.shape else { return };
        let _hands = self.gpus.hands_on(&row.id).await;
        let is_whole = |lease: &GpuLease| lease.partition.vgpu().is_none() && *lease.partition.gpu() == row.id;
        if self.store.leases().await.is_ok_and(|leases| leases.iter().any(is_whole)) {
            return tracing::warn!(gpu = %row.id, shape = shape.word(), "a VM has all of this GPU, so it is not divided again");
        }
        let outcome = self.bring(&row.id, Target::Shape(shape), Refusals::WaitedOut).await;
        let recorded = async {
            let at = Timestamp::now();
            let why =
                |why: &str| format!("it was not divided again ({}) after the start of the host: {why}", shape.word());
            match &outcome {
                Ok(()) => {
                    tracing::info!(gpu = %row.id, shape = shape.word(), "a GPU is divided as it was");
                    let mut tx = self.store.write().await?;
                    let shaped = Shaped { shape: shape.clone(), boot_id: Some(boot_id.to_owned()) };
                    gpus::decide(&mut tx, &row.id, &Decision::Shape(Some(shaped))).await?;
                    commit(tx).await
                }
                Err(Undone::Cannot(text)) => {
                    withhold(self, &row.id, Withheld::Quarantined { why: why(text), at }).await
                }
                Err(Undone::Stuck(text)) => super::steps::withhold_stuck(self, &row.id, &why(text)).await,
            }
        };
        if let Err(e) = recorded.await {
            tracing::error!(gpu = %row.id, error = %error::chain(&e), "cannot record how a GPU is divided");
        }
    }
}

/// Refuses to put a card together while processes of the host use it: idle instances would be gone before the first one
/// that is in use keeps its own, and an administrator may have made them for something else than machines.
fn must_be_idle(card: &Card, functions: &[&Card]) -> Result<()> {
    let address = card.address;
    let refused = |why: &str| {
        let message = format!("GPU {address} is left divided as it is: {why}");
        Err(ManagerError::conflict(message).hint("end what uses it first"))
    };
    if let Some(foreign) = card.blockers.iter().find(|blocker| blocker.kind == BlockerKind::Foreign) {
        return refused(&format!("it is not gvm's ({})", foreign.text));
    }
    let holder = [card].into_iter().chain(functions.iter().copied()).find_map(|function| function.holders.first());
    holder.map_or(Ok(()), |holder| refused(&holder.words()))
}
