//! What an administrator decides of a card, and what a crash left half done.

use std::sync::Arc;

use jiff::Timestamp;

use super::super::{Manager, ManagerError, Result, error, hold};
use super::health::SelfTest;
use super::steps::{GivenBack, add_former, give_back, why, withhold, withhold_stuck};
use crate::auth::policy::Permit;
use crate::gpu::BindError;
use crate::model::card::Card;
use crate::model::event::Outcome;
use crate::model::gpu::GpuId;
use crate::model::inventory::{KnownGpu, Shape, Withheld};
use crate::plan::inventory::{Entry, functions, functions_of, obstacles};
use crate::store::gpus::Decision;
use crate::store::{Write, commit, gpus, leases, vms};

/// What a card is to be between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedMode {
    /// With VFIO, so that a machine has it at once.
    Passthrough,
    /// With the host's own driver.
    Host,
    /// Divided into vGPUs that share it by time.
    Vgpu,
    /// Divided by MIG, with a vGPU on each instance.
    Mig,
}

impl WantedMode {
    /// As typed.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Host => "host",
            Self::Vgpu => "vgpu",
            Self::Mig => "mig",
        }
    }
}

/// What may be decided of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuChange {
    /// What it is between machines.
    Mode(WantedMode),
    /// No machine is given it from now on; the one that has it keeps it.
    Withhold {
        /// Why, for those who look.
        why: String,
    },
    /// It may be given to machines again, if it passes its self-test.
    Readmit,
    /// The same without a test: for what an administrator knows better.
    ReadmitUntested,
}

impl GpuChange {
    const fn action(&self) -> &'static str {
        match self {
            Self::Mode(_) => "gpu.mode",
            Self::Withhold { .. } => "gpu.withhold",
            Self::Readmit | Self::ReadmitUntested => "gpu.readmit",
        }
    }
}

impl Manager {
    /// Decides something about a card, which is named by its address or id. What was begun is finished even where the one
    /// who asked does not wait for it: dividing a card takes minutes.
    ///
    /// # Errors
    /// Where there is no such card, it is in use, or the kernel does not do it.
    pub async fn change_gpu(self: &Arc<Self>, permit: &Permit, name: &str, change: &GpuChange) -> Result<()> {
        let (manager, permit, name, change) = (self.clone(), permit.clone(), name.to_owned(), change.clone());
        let work = self.tasks.spawn(async move { manager.change_gpu_now(&permit, &name, &change).await });
        work.await.unwrap_or_else(|_| Err(ManagerError::unavailable("the manager stops; ask again when it is back")))
    }

    async fn change_gpu_now(&self, permit: &Permit, name: &str, change: &GpuChange) -> Result<()> {
        let seen = self.look_at_gpus().await?;
        let entry = find(&seen.entries, name)?;
        let row = entry.known.clone().ok_or_else(|| {
            ManagerError::invalid(format!("{name} is a virtual function of another card, not a card of its own"))
        })?;
        let _hands = self.gpus.hands_on(&row.id).await;
        let detail = match change {
            GpuChange::Mode(WantedMode::Vgpu) => {
                let card = entry.card.as_ref().ok_or_else(|| gone(name))?;
                self.divide(&row, card, Shape::Vgpu { types: Vec::new() }).await?
            }
            GpuChange::Mode(WantedMode::Mig) => {
                let card = entry.card.as_ref().ok_or_else(|| gone(name))?;
                self.divide(&row, card, Shape::Mig { instances: None, types: Vec::new() }).await?
            }
            GpuChange::Mode(WantedMode::Passthrough) => {
                self.undivide(&row, entry.card.as_ref().ok_or_else(|| gone(name))?).await?;
                let seen = self.look_at_gpus().await?;
                let entry = find(&seen.entries, name)?;
                let card = entry.card.as_ref().ok_or_else(|| gone(name))?;
                let cards = seen.entries.iter().filter_map(|entry| entry.card.as_ref());
                let obstacles = obstacles(card, &functions(cards), None);
                self.keep(&row, card, &obstacles).await?
            }
            GpuChange::Mode(WantedMode::Host) => {
                let card = entry.card.as_ref().ok_or_else(|| gone(name))?;
                self.undivide(&row, card).await?;
                self.unkeep(&row, card).await?
            }
            GpuChange::Withhold { why } => {
                let withheld = Withheld::Quarantined { why: why.clone(), at: Timestamp::now() };
                let mut tx = self.store.write().await?;
                gpus::decide(&mut tx, &row.id, &Decision::Withhold(Some(withheld))).await?;
                commit(tx).await?;
                format!("withheld: {why}")
            }
            GpuChange::Readmit => self.readmit(&row, entry.card.as_ref(), SelfTest::Made).await?,
            GpuChange::ReadmitUntested => self.readmit(&row, entry.card.as_ref(), SelfTest::LeftOut).await?,
        };
        self.record_gpu(permit, change.action(), &row, detail).await?;
        self.look_at_gpus().await.map(|_| ())
    }

    /// Takes a card for VFIO for good.
    async fn keep(&self, row: &KnownGpu, card: &Card, obstacles: &[String]) -> Result<String> {
        self.must_be_free(row).await?;
        let address = card.address;
        if let Some(withheld) = &row.withheld {
            let message = format!("GPU {address} is out of service: {}", why(withheld));
            return Err(ManagerError::conflict(message).hint(format!("gvm gpu readmit {address}")));
        }
        if !obstacles.is_empty() {
            let message = format!("GPU {address} cannot be taken from the host: {}", obstacles.join("; "));
            return Err(ManagerError::conflict(message).hint("`gvm doctor` says what mends it"));
        }
        let states = self.gpus.backend.functions(&functions_of(card)).await;
        let states = states.map_err(|e| ManagerError::unavailable(e.to_string()))?;
        let mut tx = self.store.write().await?;
        must_be_free(&mut tx, row).await?;
        add_former(&mut tx, &row.id, &states).await?;
        gpus::decide(&mut tx, &row.id, &Decision::Keep { is_kept: true }).await?;
        commit(tx).await?;
        hold::point("gpu-mode-recorded").await;
        if let Err(fault) = self.gpus.backend.bind(&functions_of(card)).await {
            return Err(self.mode_failed(row, card, fault).await);
        }
        Ok("passthrough".to_owned())
    }

    /// Gives up keeping it; what was bound goes back at the next tidying, unless the kernel hangs on it.
    async fn mode_failed(&self, row: &KnownGpu, card: &Card, fault: BindError) -> ManagerError {
        let address = card.address;
        let undone = async {
            let mut tx = self.store.write().await?;
            gpus::decide(&mut tx, &row.id, &Decision::Keep { is_kept: false }).await?;
            commit(tx).await?;
            if let BindError::Stuck(why) = &fault {
                withhold_stuck(self, &row.id, why).await?;
            }
            Ok::<_, crate::store::StoreError>(())
        };
        if let Err(e) = undone.await {
            return e.into();
        }
        match fault {
            BindError::Stuck(why) => ManagerError::unavailable(format!("GPU {address} is stuck: {why}"))
                .hint("it is kept out of use until the host restarts; everything else goes on"),
            BindError::Transient(why) => ManagerError::unavailable(format!("GPU {address}: {why}")),
            BindError::Refused(why) | BindError::Failed(why) => {
                ManagerError::conflict(format!("GPU {address} cannot be taken from the host: {why}"))
            }
        }
    }

    /// Gives a card back to the host for good.
    pub(super) async fn unkeep(&self, row: &KnownGpu, card: &Card) -> Result<String> {
        let mut tx = self.store.write().await?;
        must_be_free(&mut tx, row).await?;
        gpus::decide(&mut tx, &row.id, &Decision::Keep { is_kept: false }).await?;
        commit(tx).await?;
        if row.former.is_empty() {
            if card.is_vfio {
                let message = format!(
                    "GPU {} was with {} when gvm first saw it, so gvm knows of no other driver for it",
                    card.address,
                    card.driver.as_deref().unwrap_or("VFIO")
                );
                return Err(ManagerError::conflict(message).hint(
                    "it was bound at boot (vfio-pci.ids, modprobe.d, driverctl); change that and restart the host",
                ));
            }
            return Ok("host".to_owned());
        }
        let row = KnownGpu { is_kept: false, ..row.clone() };
        match give_back(self, &row, &functions_of(card)).await {
            Ok(GivenBack::Well) => {
                let mut tx = self.store.write().await?;
                gpus::decide(&mut tx, &row.id, &Decision::Former(Vec::new())).await?;
                commit(tx).await?;
                Ok("host".to_owned())
            }
            Ok(GivenBack::Withheld(withheld)) => {
                withhold(self, &row.id, withheld.clone()).await?;
                Err(ManagerError::unavailable(format!("GPU {}: {}", card.address, why(&withheld)))
                    .hint("it is kept out of use; look at the kernel's log (dmesg)"))
            }
            Err(why) => Err(ManagerError::unavailable(format!("GPU {}: {why}", card.address)).hint("try again")),
        }
    }

    pub(super) async fn must_be_free(&self, row: &KnownGpu) -> Result<()> {
        let mut tx = self.store.write().await?;
        must_be_free(&mut tx, row).await?;
        // Virtual functions that go to machines as they are have rows of their own.
        let seen = self.gpus.last_seen();
        let is_part = |entry: &&Entry| {
            entry.card.as_ref().is_some_and(|card| card.is_part() && card.physfn == Some(row.identity.address))
        };
        for part in seen.iter().flat_map(|seen| &seen.entries).filter(is_part).filter_map(|entry| entry.known.as_ref())
        {
            must_be_free(&mut tx, part).await?;
        }
        Ok(())
    }

    pub(super) async fn record_gpu(&self, permit: &Permit, action: &str, row: &KnownGpu, detail: String) -> Result<()> {
        let event = Self::pending(permit, action, super::health::label(row), None);
        Ok(self.store.record(&event.ended(Outcome::Success, detail)).await?)
    }

    /// Looks, and puts back what is left of machines that are gone.
    pub async fn keep_gpus_tidy(&self) {
        match self.look_at_gpus().await {
            Ok(_) => self.tidy_gpus().await,
            Err(e) => tracing::warn!(error = %error::chain(&e), "cannot look at the GPUs"),
        }
    }

    /// Puts back what a crash left: cards with VFIO and MIG instances that nobody holds and that are not kept.
    async fn tidy_gpus(&self) {
        let Some(seen) = self.gpus.last_seen() else { return };
        for entry in &seen.entries {
            if let Err(e) = self.tidy_left(entry).await {
                tracing::warn!(gpu = %entry.id, error = %error::chain(&e), "cannot take away what is left");
            }
            if let Err(e) = self.tidy_instances(entry).await {
                tracing::warn!(gpu = %entry.id, error = %error::chain(&e), "cannot end MIG instances");
            }
            if let Err(e) = self.tidy(entry).await {
                tracing::warn!(gpu = %entry.id, error = %error::chain(&e), "cannot give a GPU back");
            }
        }
    }

    async fn tidy(&self, entry: &Entry) -> Result<()> {
        let Some(card) = &entry.card else { return Ok(()) };
        if entry.known.as_ref().is_none_or(|row| row.former.is_empty() && row.history.used_by.is_none()) {
            return Ok(());
        }
        let Some(_hands) = self.gpus.free_hands_on(&entry.id) else { return Ok(()) };
        // Looked at under the card's lock: a machine may have been given it meanwhile.
        let rows = self.store.gpus().await?;
        let Some(row) = rows.into_iter().find(|row| row.id == entry.id) else { return Ok(()) };
        let is_held = self.store.leases().await?.iter().any(|lease| *lease.partition.gpu() == row.id);
        let is_left = row.history.used_by.is_some() || !row.is_kept && !row.former.is_empty();
        if is_held || row.withheld.is_some() || !is_left {
            return Ok(());
        }
        tracing::info!(gpu = %row.id, "nobody holds this GPU: sanitised where it was used, and back to its driver");
        match give_back(self, &row, &functions_of(card)).await {
            Ok(GivenBack::Well) if row.is_kept => Ok(()),
            Ok(GivenBack::Well) => {
                let mut tx = self.store.write().await?;
                must_be_free(&mut tx, &row).await?;
                gpus::decide(&mut tx, &row.id, &Decision::Former(Vec::new())).await?;
                Ok(commit(tx).await?)
            }
            Ok(GivenBack::Withheld(withheld)) => Ok(withhold(self, &row.id, withheld).await?),
            Err(why) => Err(ManagerError::unavailable(why)),
        }
    }

    /// After a restart of the host: takes the cards that are kept with VFIO.
    pub(super) async fn keep_gpus(&self) {
        let Ok(seen) = self.look_at_gpus().await else { return };
        let mates = functions(seen.entries.iter().filter_map(|entry| entry.card.as_ref()));
        for entry in &seen.entries {
            let (Some(row), Some(card)) = (&entry.known, &entry.card) else { continue };
            if !row.is_kept || card.is_vfio || row.withheld.is_some() {
                continue;
            }
            let obstacles = obstacles(card, &mates, None);
            let outcome = match obstacles.is_empty() {
                true => self.keep_again(&row.id, card).await,
                false => Err(obstacles.join("; ")),
            };
            if let Err(why) = outcome {
                tracing::warn!(gpu = %row.id, %why, "a GPU of mode passthrough cannot be taken from the host");
            }
        }
    }

    async fn keep_again(&self, gpu: &GpuId, card: &Card) -> std::result::Result<(), String> {
        let _hands = self.gpus.hands_on(gpu).await;
        let states = self.gpus.backend.functions(&functions_of(card)).await.map_err(|e| e.to_string())?;
        let recorded = async {
            let mut tx = self.store.write().await?;
            add_former(&mut tx, gpu, &states).await?;
            commit(tx).await
        };
        recorded.await.map_err(|e| error::chain(&e))?;
        match self.gpus.backend.bind(&functions_of(card)).await {
            Ok(()) => Ok(()),
            Err(BindError::Stuck(why)) => {
                withhold_stuck(self, gpu, &why).await.map_err(|e| error::chain(&e))?;
                Err(why)
            }
            Err(BindError::Transient(why) | BindError::Refused(why) | BindError::Failed(why)) => Err(why),
        }
    }
}

pub(super) async fn must_be_free(tx: &mut Write, row: &KnownGpu) -> Result<()> {
    let leases = leases::read(tx).await?;
    let Some(lease) = leases.iter().find(|lease| *lease.partition.gpu() == row.id) else { return Ok(()) };
    let vm = vms::read(tx, lease.vm).await?.map(|vm| vm.name.to_string()).unwrap_or_default();
    Err(ManagerError::conflict(format!("GPU {} is held by VM {vm}", row.identity.address))
        .hint(format!("gvm list --all; gvm stop {}", lease.vm)))
}

fn gone(name: &str) -> ManagerError {
    ManagerError::conflict(format!("GPU {name} is gone from this host"))
}

/// The card with this address or id.
pub(super) fn find<'e>(entries: &'e [Entry], name: &str) -> Result<&'e Entry> {
    let address = name.parse().ok();
    let is_it = |entry: &&Entry| entry.id.0 == name || address.is_some() && entry.address() == address;
    // One that is here goes before one that was at the same place once.
    let mut fitting: Vec<&Entry> = entries.iter().filter(is_it).collect();
    fitting.sort_by_key(|entry| entry.card.is_none());
    fitting.into_iter().next().ok_or_else(|| {
        ManagerError::not_found(format!("there is no GPU {name:?} on this host"))
            .hint("see `gvm gpu list`; a GPU is named by its PCI address, such as 0000:41:00.0, or by its id")
    })
}
