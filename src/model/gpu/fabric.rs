//! The fabric of a board with NVSwitches: which cards can work together in one machine, and what there is on the host to
//! make them.
//!
//! ```text
//!   HGX board:  8 GPUs -- NVLink -- NVSwitches          partitions: all 8; 4+4; 2+2+2+2; each alone
//!               (physical ids)   (stay with the host)   fixed sets that overlap; active or not
//! ```
//! In the shared NVSwitch model the host keeps the switches, and NVIDIA's fabric manager programs them: a *partition* is a
//! fixed set of cards, activated before its machine starts and deactivated after it has stopped. A card outside of an active
//! partition has no NVLink, and CUDA in its machine fails (Fabric Manager User Guide, "Shared NVSwitch", `FABRIC_MODE=1`).
//! Cards are named by their *physical id*, which is NVML's module id and not their order on the bus; since H100 the
//! manager tells no other name (same guide, "Data Structures").
//!
//! gvm does not speak with the fabric manager: its interface is a closed library (`libnvfm`). So nothing here is read from
//! it; [`FabricTable`] is what it would say.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Most partitions and most cards that the manager knows (`FM_MAX_FABRIC_PARTITIONS`, `FM_MAX_NUM_GPUS`).
const MAX_PARTITIONS: usize = 64;
const MAX_CARDS: usize = 16;

/// Where the manager's socket is by the documents that speak of one.
const USUAL_SOCKET: &str = "/run/nvidia-fabricmanager/socket";

/// One partition, as the manager tells it (`fmFabricPartitionInfo_t`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricPartition {
    /// The manager's number for it.
    pub id: u32,
    /// Its cards by physical id.
    pub modules: BTreeSet<u32>,
    /// Whether it is activated.
    pub is_active: bool,
}

impl FabricPartition {
    /// True where both have a card in common, so that one of them at most can be active.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.modules.intersection(&other.modules).next().is_some()
    }
}

/// The partitions of a board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<FabricPartition>", into = "Vec<FabricPartition>")]
pub struct FabricTable(Vec<FabricPartition>);

/// Why what was told of a board's partitions cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricTableError {
    /// More than the manager knows.
    #[error("{0} partitions of the fabric; at most {MAX_PARTITIONS} are understood")]
    Many(usize),
    /// One number for two.
    #[error("the fabric's partition {0} is told twice")]
    Twice(u32),
    /// No cards, or more than a board has.
    #[error("the fabric's partition {id} has {cards} cards; 1 to {MAX_CARDS} are understood")]
    Cards {
        /// Which.
        id: u32,
        /// So many.
        cards: usize,
    },
    /// Two are active and share a card.
    #[error("the fabric's partitions {0} and {1} are both active and share a card")]
    Active(u32, u32),
}

impl FabricTable {
    /// Partitions by their numbers.
    ///
    /// # Errors
    /// Where they contradict each other.
    pub fn new(mut partitions: Vec<FabricPartition>) -> Result<Self, FabricTableError> {
        if partitions.len() > MAX_PARTITIONS {
            return Err(FabricTableError::Many(partitions.len()));
        }
        partitions.sort_by_key(|partition| partition.id);
        for (at, one) in partitions.iter().enumerate() {
            let (id, cards) = (one.id, one.modules.len());
            if cards == 0 || cards > MAX_CARDS {
                return Err(FabricTableError::Cards { id, cards });
            }
            for other in partitions.iter().skip(at + 1) {
                if other.id == id {
                    return Err(FabricTableError::Twice(id));
                }
                if one.is_active && other.is_active && one.overlaps(other) {
                    return Err(FabricTableError::Active(id, other.id));
                }
            }
        }
        Ok(Self(partitions))
    }

    /// The partitions by their numbers.
    pub fn partitions(&self) -> &[FabricPartition] {
        &self.0
    }

    /// The partition of this number.
    pub fn get(&self, id: u32) -> Option<&FabricPartition> {
        self.0.iter().find(|partition| partition.id == id)
    }
}

impl TryFrom<Vec<FabricPartition>> for FabricTable {
    type Error = FabricTableError;

    fn try_from(partitions: Vec<FabricPartition>) -> Result<Self, FabricTableError> {
        Self::new(partitions)
    }
}

impl From<FabricTable> for Vec<FabricPartition> {
    fn from(table: FabricTable) -> Self {
        table.0
    }
}

/// What there is of the fabric manager on the host, by its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricManager {
    /// Its file of settings, of those that were looked for; `None` where there is none.
    pub settings: Option<String>,
    /// Where that was looked for.
    pub looked_for: Vec<String>,
    /// `FABRIC_MODE`: 0 is the host's own, 1 shared NVSwitch, 2 vGPU.
    pub mode: Option<u32>,
    /// `FM_CMD_UNIX_SOCKET_PATH`: where it takes orders; it opens a TCP port where none is set.
    pub socket: Option<String>,
    /// Whether a socket is there.
    pub is_socket_there: bool,
    /// Version of the NVIDIA driver, where it is loaded; the manager must be of the same.
    pub driver: Option<String>,
}

impl FabricManager {
    /// What is missing before partitions could be activated, in one sentence without its end; the first thing first.
    pub fn missing(&self) -> String {
        let Some(settings) = &self.settings else {
            let version =
                self.driver.as_ref().map_or_else(|| "the driver's version".to_owned(), |of| format!("version {of}"));
            let places = self.looked_for.join(" or ");
            return format!("no fabric manager is installed (no {places}; it has to be of {version})");
        };
        match self.mode {
            Some(1) => {}
            Some(mode) => {
                return format!("FABRIC_MODE is {mode} in {settings}, and partitions need 1 (shared NVSwitch)");
            }
            None => return format!("FABRIC_MODE is not set in {settings}, and partitions need 1 (shared NVSwitch)"),
        }
        match &self.socket {
            None => format!("FM_CMD_UNIX_SOCKET_PATH is not set in {settings} ({USUAL_SOCKET} is usual)"),
            Some(socket) if !self.is_socket_there => {
                format!("no socket is at {socket}, where {settings} has it: the fabric manager does not run")
            }
            Some(socket) => format!(
                "the fabric manager is there (FABRIC_MODE=1, socket {socket}), but this gvm has no way to speak with it: \
                 that takes NVIDIA's closed library libnvfm"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(id: u32, modules: &[u32], is_active: bool) -> FabricPartition {
        FabricPartition { id, modules: modules.iter().copied().collect(), is_active }
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let fault = |partitions: Vec<FabricPartition>| FabricTable::new(partitions).unwrap_err().to_string();
        assert!(FabricTable::new(vec![partition(1, &[1, 2], true), partition(0, &[1, 2, 3, 4], false)]).is_ok());
        insta::assert_snapshot!(fault(vec![partition(1, &[1], false), partition(1, &[2], false)]), @"the fabric's partition 1 is told twice");
        insta::assert_snapshot!(fault(vec![partition(1, &[], false)]), @"the fabric's partition 1 has 0 cards; 1 to 16 are understood");
        insta::assert_snapshot!(fault(vec![partition(1, &[1, 2], true), partition(2, &[2, 3], true)]), @"the fabric's partitions 1 and 2 are both active and share a card");
        assert!(fault((0..65).map(|id| partition(id, &[id], false)).collect()).contains("at most 64"));
        let text = serde_json::to_string(&FabricTable::new(vec![partition(7, &[3, 4], true)]).unwrap()).unwrap();
        assert_eq!(text, r#"[{"id":7,"modules":[3,4],"is_active":true}]"#);
        assert_eq!(serde_json::from_str::<FabricTable>(&text).unwrap().get(7), Some(&partition(7, &[3, 4], true)));
        assert!(serde_json::from_str::<FabricTable>(r#"[{"id":7,"modules":[],"is_active":true}]"#).is_err());
    }

    #[test]
    fn what_is_missing_is_told_with_its_place() {
        let mut manager =
            FabricManager { looked_for: vec!["/a.cfg".to_owned(), "/b.cfg".to_owned()], ..Default::default() };
        insta::assert_snapshot!(manager.missing(), @"no fabric manager is installed (no /a.cfg or /b.cfg; it has to be of the driver's version)");
        manager.driver = Some("580.95.05".to_owned());
        insta::assert_snapshot!(manager.missing(), @"no fabric manager is installed (no /a.cfg or /b.cfg; it has to be of version 580.95.05)");
        manager.settings = Some("/b.cfg".to_owned());
        insta::assert_snapshot!(manager.missing(), @"FABRIC_MODE is not set in /b.cfg, and partitions need 1 (shared NVSwitch)");
        manager.mode = Some(0);
        insta::assert_snapshot!(manager.missing(), @"FABRIC_MODE is 0 in /b.cfg, and partitions need 1 (shared NVSwitch)");
        manager.mode = Some(1);
        insta::assert_snapshot!(manager.missing(), @"FM_CMD_UNIX_SOCKET_PATH is not set in /b.cfg (/run/nvidia-fabricmanager/socket is usual)");
        manager.socket = Some("/run/fm.sock".to_owned());
        insta::assert_snapshot!(manager.missing(), @"no socket is at /run/fm.sock, where /b.cfg has it: the fabric manager does not run");
        manager.is_socket_there = true;
        insta::assert_snapshot!(manager.missing(), @"the fabric manager is there (FABRIC_MODE=1, socket /run/fm.sock), but this gvm has no way to speak with it: that takes NVIDIA's closed library libnvfm");
    }
}
