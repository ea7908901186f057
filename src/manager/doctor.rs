//! What the doctor looks at, and what runs guest code.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Manager, error};
use crate::auth::policy::Permit;
use crate::host::HostRoot;
use crate::host::accelerator::Probe;
use crate::host::facts::{self, FactsQuery};
use crate::image::catalogue::kernel_files;
use crate::model::host::{HypervisorVersions, Version};
use crate::model::id::VmId;
use crate::model::image::Image;
use crate::model::vm::domain_name;
pub use crate::plan::doctor::Finding;
use crate::plan::doctor::{Patient, examine};

/// Between two tries to prove KVM, where nothing changed meanwhile.
const PROVE_AGAIN: Duration = Duration::from_secs(600);
/// The doctor answers within a request's time, above all where something hangs.
const PATIENCE: Duration = Duration::from_secs(8);
/// The image whose kernel is tried first: it is the smallest.
const SMALLEST_IMAGE: &str = "tiny";

impl Manager {
    /// Looks at everything that this host needs.
    pub async fn doctor(&self, _permit: &Permit) -> Vec<Finding> {
        let group = self.config.manager.socket_group.clone();
        let query = FactsQuery {
            state_dir: self.config.manager.state_dir.clone(),
            groups: group.iter().cloned().collect(),
            users: vec![self.config.gateway.user.clone()],
        };
        let root = HostRoot::default();
        let (host, versions, images, strays) =
            tokio::join!(facts::read(&root, &query), self.versions(), self.store.images(), self.strays());
        let images = images.unwrap_or_default();
        let is_lost = |image: &Image| !self.layout.image_dir(image.id).is_dir();
        let lost = images.iter().filter(|row| is_lost(&row.image)).map(|row| row.image.name.to_string());
        let lost_images: Vec<String> = lost.collect();
        let network = self.network();
        let patient = Patient {
            host: &host,
            accelerator: &self.host().accelerator,
            hypervisor: versions.as_ref().map_err(String::as_str),
            network: &network,
            socket_group: group.as_deref(),
            gateway_user: &self.config.gateway.user,
            images: images.len(),
            lost_images: &lost_images,
            strays: &strays,
        };
        examine(&patient)
    }

    /// Domains that carry our name and are not ours, or carry our metadata and have no row: after a restored backup.
    async fn strays(&self) -> Vec<String> {
        let look =
            async { tokio::join!(self.hypervisor.strangers(), self.hypervisor.observe_all(), self.store.vm_ids()) };
        let Ok((Ok(mut strays), Ok(ours), Ok(rows))) = tokio::time::timeout(PATIENCE, look).await else {
            return Vec::new();
        };
        let rows: HashSet<VmId> = rows.into_iter().collect();
        strays.extend(ours.into_iter().filter(|(vm, _)| !rows.contains(vm)).map(|(vm, _)| domain_name(vm)));
        strays
    }

    async fn versions(&self) -> Result<HypervisorVersions, String> {
        let asked = tokio::time::timeout(PATIENCE, self.hypervisor.facts()).await;
        let late = |_| format!("no answer within {} s: it hangs", PATIENCE.as_secs());
        let found = asked.map_err(late)?.map_err(|e| e.to_string())?;
        Ok(HypervisorVersions {
            uri: found.uri,
            libvirt: Version::find(&found.libvirt_version).unwrap_or_default(),
            qemu: Version::find(&found.qemu_version).unwrap_or_default(),
        })
    }

    /// Versions of what gvm stands on; what does not answer is left out.
    pub async fn parts(&self) -> BTreeMap<String, String> {
        let mut parts = BTreeMap::new();
        if let Ok(Ok(found)) = tokio::time::timeout(PATIENCE, self.hypervisor.facts()).await {
            parts.insert("libvirt".to_owned(), found.libvirt_version);
            parts.insert("qemu".to_owned(), found.qemu_version);
            parts.insert("uri".to_owned(), found.uri);
        }
        parts
    }

    /// Finds out what runs guest code, in the background: at the start, and again when an image has come.
    pub fn spawn_accelerator_watch(self: &Arc<Self>) {
        if self.config.manager.accelerator.is_some() {
            return;
        }
        let manager = self.clone();
        self.tasks.spawn(async move {
            let stop = manager.stop.clone();
            let watch = async {
                loop {
                    manager.prove_accelerator().await;
                    let changed = manager.images_changed.notified();
                    let _ = tokio::time::timeout(PROVE_AGAIN, changed).await;
                }
            };
            let _: Option<()> = stop.run_until_cancelled(watch).await;
        });
    }

    async fn prove_accelerator(&self) {
        let mut rows = match self.store.images().await {
            Ok(rows) => rows,
            Err(e) => {
                tracing::error!(error = %error::chain(&e), "cannot list images to prove KVM with");
                return;
            }
        };
        rows.sort_by_key(|row| row.image.name.as_str() != SMALLEST_IMAGE);
        let kernels = rows.iter().filter_map(|row| kernel_files(&self.layout, &row.image)).map(|files| files.kernel);
        let probe = Probe::new(self.config.manager.state_dir.clone(), kernels.collect());
        let found = probe.run().await;
        if found != self.host().accelerator {
            tracing::info!(accelerator = ?found, "what runs guest code");
            self.set_accelerator(found);
        }
    }
}
