//! Layout files: all cards of a host divided as a file says, and a file of how they are.
//!
//! A file is judged as a whole before any card is touched: one that does not fit, or a card that is in use, and nothing
//! is done. Then card after card is divided; one that fails is told, and the others go on.

use std::sync::Arc;

use super::super::{Manager, ManagerError, Result};
use super::Seen;
use crate::auth::policy::Permit;
use crate::model::card::Card;
use crate::model::gpu::layout::{CardLayout, LayoutFile, LayoutFormat};
use crate::model::inventory::{KnownGpu, Shape};
use crate::model::pci::PciAddress;
use crate::plan::layout::{Exported, PlannedCard, export, layouts, numbered};

/// What became of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaidOut {
    /// Where it is.
    pub address: PciAddress,
    /// Its name.
    pub model: String,
    /// What it is to be.
    pub layout: CardLayout,
    /// How it went.
    pub outcome: LayoutOutcome,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutOutcome {
    /// It is so already.
    AsWished,
    /// It would be changed; nothing was.
    WouldChange,
    /// It was changed.
    Changed,
    /// It was not, or not wholly.
    Failed(String),
}

/// A layout file as an administrator hands it in.
#[derive(Clone, Debug)]
pub struct LayoutRequest {
    /// The file.
    pub text: String,
    /// Which of its configs; the only one where none is named.
    pub config: Option<String>,
    /// Only say what would be done.
    pub is_rehearsal: bool,
}

impl Manager {
    /// Divides cards as a layout file says.
    ///
    /// # Errors
    /// Where the file is not understood or does not fit the cards, or a card that would change is in use; nothing is done
    /// then.
    pub async fn import_layout(self: &Arc<Self>, permit: &Permit, request: LayoutRequest) -> Result<Vec<LaidOut>> {
        let (manager, permit) = (self.clone(), permit.clone());
        let work = self.tasks.spawn(async move { manager.import_layout_now(&permit, &request).await });
        work.await.unwrap_or_else(|_| Err(ManagerError::unavailable("the manager stops; ask again when it is back")))
    }

    async fn import_layout_now(&self, permit: &Permit, request: &LayoutRequest) -> Result<Vec<LaidOut>> {
        let file = LayoutFile::read(&request.text).map_err(|e| ManagerError::invalid(e.to_string()))?;
        let seen = self.look_at_gpus().await?;
        let cards: Vec<Card> = seen.entries.iter().filter_map(|entry| entry.card.clone()).collect();
        let planned = layouts(&file, request.config.as_deref(), &numbered(&cards));
        let planned = planned.map_err(|e| ManagerError::invalid(e.to_string()))?;
        let mut all = Vec::new();
        for PlannedCard { address, layout, .. } in planned {
            let (row, card) = at(&seen, address)?;
            let outcome = match is_so(row, card, &layout) {
                true => LayoutOutcome::AsWished,
                false => {
                    self.must_be_free(row).await?;
                    LayoutOutcome::WouldChange
                }
            };
            all.push(LaidOut { address, model: row.model.clone(), layout, outcome });
        }
        if request.is_rehearsal {
            return Ok(all);
        }
        // Those without MIG first: a reset for MIG disturbs others of the same board.
        all.sort_by_key(|one| (matches!(one.layout, CardLayout::Mig { .. }), one.address));
        for one in all.iter_mut().filter(|one| one.outcome == LayoutOutcome::WouldChange) {
            one.outcome = match self.lay_out(permit, one.address, &one.layout).await {
                Ok(()) => LayoutOutcome::Changed,
                Err(e) => LayoutOutcome::Failed(e.to_string()),
            };
        }
        all.sort_by_key(|one| one.address);
        Ok(all)
    }

    async fn lay_out(&self, permit: &Permit, address: PciAddress, layout: &CardLayout) -> Result<()> {
        let seen = self.look_at_gpus().await?;
        let (row, _) = at(&seen, address)?;
        let _hands = self.gpus.hands_on(&row.id).await;
        // What is remembered may have changed while the lock was waited for.
        let seen = self.look_at_gpus().await?;
        let (row, card) = at(&seen, address)?;
        let detail = match shape_of(layout) {
            Some(shape) => self.divide(row, card, shape).await?,
            None => {
                self.undivide(row, card).await?;
                "host".to_owned()
            }
        };
        self.record_gpu(permit, "gpu.layout", row, detail).await
    }

    /// A layout file of the cards as they are.
    ///
    /// # Errors
    /// Where the host does not answer.
    pub async fn export_layout(&self, _permit: &Permit, format: LayoutFormat, config: &str) -> Result<String> {
        let seen = self.look_at_gpus().await?;
        let cards: Vec<Card> = seen.entries.iter().filter_map(|entry| entry.card.clone()).collect();
        let cards = numbered(&cards);
        let exported: Vec<Exported> = (0_u32..).zip(&cards).map(|(index, card)| Exported::new(index, card)).collect();
        let (file, notes) = export(format, config, &exported);
        Ok(file.write(&notes))
    }
}

fn at(seen: &Seen, address: PciAddress) -> Result<(&KnownGpu, &Card)> {
    let mut both = seen.entries.iter().filter_map(|entry| Some((entry.known.as_ref()?, entry.card.as_ref()?)));
    let gone = || ManagerError::conflict(format!("GPU {address} is gone from this host"));
    both.find(|(_, card)| card.address == address).ok_or_else(gone)
}

fn shape_of(layout: &CardLayout) -> Option<Shape> {
    match layout {
        CardLayout::Host => None,
        CardLayout::Vgpu { types } => Some(Shape::Vgpu { types: types.clone() }),
        CardLayout::Mig { instances, vgpus } => {
            Some(Shape::Mig { instances: Some(instances.clone()), types: vgpus.clone() })
        }
    }
}

/// True where nothing is to be decided and nothing to be done.
fn is_so(row: &KnownGpu, card: &Card, layout: &CardLayout) -> bool {
    match shape_of(layout) {
        None => row.shape.is_none() && !card.is_divided(),
        Some(shape) => {
            let is_decided = row.shape.as_ref().is_some_and(|shaped| shaped.shape == shape && shaped.boot_id.is_some());
            let is_there = match layout {
                CardLayout::Mig { instances, .. } => card.mig().is_some_and(|mig| {
                    mig.is_on
                        && instances.iter().all(|instance| mig.instances.iter().any(|made| made.instance == *instance))
                }),
                CardLayout::Vgpu { .. } | CardLayout::Host => true,
            };
            is_decided && card.is_divided() && is_there
        }
    }
}
