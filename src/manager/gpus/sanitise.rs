//! Between two machines: what is done to a partition before it is free, on the record.
//!
//! ```text
//!   claimed for a machine: used_by, in the transaction of the claim
//!   given back: lease sanitising --> reset | configured command | VFIO's own reset --> point gpu-sanitised
//!                 --> recorded, used_by nobody --> back with its drivers, and checked
//!                  \-- failed: on the record, quarantined
//! ```
//!
//! `used_by` is on the card's row and not on the lease: whichever way a lease ends, the card is nobody's before it was
//! sanitised. A manager that is killed before it has recorded that does it again.

use jiff::Timestamp;

use super::super::{Manager, hold};
use super::health::own_record;
use super::steps::{GivenBack, why};
use crate::gpu::BindError;
use crate::model::card::function::FunctionState;
use crate::model::card::history::{GpuHistory, SanitiseJob, SanitiseMethod, SanitiseWay, Sanitised};
use crate::model::event::Outcome;
use crate::model::gpu::GpuId;
use crate::model::id::VmId;
use crate::model::inventory::{KnownGpu, Withheld};
use crate::store::gpus::Decision;
use crate::store::{Write, audit, commit, gpus};

/// Seconds that the configured command has where nothing else is set.
const COMMAND_SECONDS: u64 = 300;

/// Writes down that a machine is given a whole card.
pub(super) async fn mark_used(tx: &mut Write, gpu: &GpuId, vm: VmId) -> crate::store::Result<()> {
    set_user(tx, gpu, Some(vm)).await
}

/// The cards that this machine had and that nobody had since: within this transaction they count as sanitised, since it may
/// have them again as they are. Whoever calls must mark them again.
pub(super) async fn lend(tx: &mut Write, vm: VmId) -> crate::store::Result<Vec<GpuId>> {
    let rows = gpus::read(tx).await?;
    let own: Vec<GpuId> = rows.into_iter().filter(|row| row.history.used_by == Some(vm)).map(|row| row.id).collect();
    for gpu in &own {
        set_user(tx, gpu, None).await?;
    }
    Ok(own)
}

async fn set_user(tx: &mut Write, gpu: &GpuId, used_by: Option<VmId>) -> crate::store::Result<()> {
    let row = gpus::read(tx).await?.into_iter().find(|row| row.id == *gpu);
    let history = GpuHistory { used_by, ..row.map(|row| row.history).unwrap_or_default() };
    gpus::decide(tx, gpu, &Decision::History(Box::new(history))).await.map(|_| ())
}

/// Sanitises a whole card that nobody has open, where a machine has used it. What it gives keeps the card out of use; an
/// error means: again later.
pub(super) async fn ensure(
    manager: &Manager,
    gpu: &GpuId,
    states: &[FunctionState],
) -> Result<Option<Withheld>, String> {
    let rows = manager.store.gpus().await.map_err(|e| super::super::error::chain(&e))?;
    let Some(row) = rows.into_iter().find(|row| row.id == *gpu).filter(|row| row.history.used_by.is_some()) else {
        return Ok(None);
    };
    let Some(state) = states.first().filter(|state| state.is_there) else { return Ok(None) };
    let settings = &manager.config.gpu;
    let seconds = settings.sanitise_seconds.unwrap_or(COMMAND_SECONDS);
    let way = match settings.sanitise_command.clone() {
        words if words.is_empty() => SanitiseWay::Reset,
        words => SanitiseWay::Command { words, seconds },
    };
    let (mut method, mut note, mut fault) = (SanitiseMethod::VfioClose, String::new(), None);
    match (&way, state.is_vfio) {
        (SanitiseWay::Reset, false) => "it was not with VFIO".clone_into(&mut note),
        _ => {
            manager.tell_holders(gpu, &format!("sanitising {} at {}", row.model, state.address)).await;
            let job = SanitiseJob { card: state.address, way: way.clone() };
            match manager.gpus.backend.sanitise(&job).await {
                Ok(done) => method = done,
                Err(BindError::Refused(why)) if way == SanitiseWay::Reset => note = format!("not reset by gvm: {why}"),
                Err(BindError::Transient(why) | BindError::Refused(why)) => return Err(why),
                Err(error @ (BindError::Failed(_) | BindError::Stuck(_))) => {
                    method = attempted(&way);
                    fault = Some(error);
                }
            }
        }
    }
    hold::point("gpu-sanitised").await;
    let at = Timestamp::now();
    let withheld = fault.map(|error| match error {
        BindError::Stuck(why) => Withheld::Stuck { why, at, boot_id: manager.host().boot_id },
        error => Withheld::Quarantined { why: format!("it was not sanitised after its VM: {error}"), at },
    });
    let end = Sanitised { method, at, note, fault: withheld.as_ref().map(|withheld| why(withheld).to_owned()) };
    let recorded = async {
        let mut tx = manager.store.write().await?;
        record(&mut tx, &row, row.history.used_by, end).await?;
        commit(tx).await
    };
    recorded.await.map_err(|e: crate::store::StoreError| super::super::error::chain(&e))?;
    Ok(withheld)
}

fn attempted(way: &SanitiseWay) -> SanitiseMethod {
    match way {
        SanitiseWay::Reset => SanitiseMethod::Reset("not known".to_owned()),
        SanitiseWay::Command { words, .. } => SanitiseMethod::Command(words.first().cloned().unwrap_or_default()),
    }
}

/// Writes down how the vGPU of a machine ended, in the transaction that ends its lease.
pub(super) async fn record_slice(
    tx: &mut Write,
    row: &KnownGpu,
    vm: VmId,
    end: &GivenBack,
) -> crate::store::Result<()> {
    let fault = match end {
        GivenBack::Well => None,
        GivenBack::Withheld(withheld) => Some(why(withheld).to_owned()),
    };
    let end = Sanitised { method: SanitiseMethod::VgpuRemoved, at: Timestamp::now(), note: String::new(), fault };
    record(tx, row, Some(vm), end).await
}

async fn record(tx: &mut Write, row: &KnownGpu, vm: Option<VmId>, end: Sanitised) -> crate::store::Result<()> {
    let fresh = gpus::read(tx).await?.into_iter().find(|fresh| fresh.id == row.id);
    let mut history = fresh.map(|fresh| fresh.history).unwrap_or_default();
    let outcome = if end.fault.is_none() { Outcome::Success } else { Outcome::Failure };
    let is_whole = end.method != SanitiseMethod::VgpuRemoved;
    if is_whole && end.fault.is_none() {
        history.used_by = None;
    }
    if matches!(end.method, SanitiseMethod::Reset(_)) && end.fault.is_none() {
        // What a reset was asked for has had one. What it did not help against is seen again.
        (history.draining, history.noted) = (None, None);
    }
    audit::begin(tx, &own_record("gpu.sanitise", row, vm, outcome, end.words()), None).await?;
    history.sanitised = Some(end);
    gpus::decide(tx, &row.id, &Decision::History(Box::new(history))).await.map(|_| ())
}
