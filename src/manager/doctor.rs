//! What the doctor looks at, and what runs guest code.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::gpus::{Entry, Seen, Table};
use super::{Manager, ManagerError, Result};
use crate::auth::policy::Permit;
use crate::host::HostRoot;
use crate::host::accelerator::Probe;
use crate::host::facts::{self, FactsQuery};
use crate::image::catalogue::kernel_files;
use crate::model::card::Discovery;
use crate::model::host::{Accelerator, HostFacts, HypervisorVersions, Version};
use crate::model::id::VmId;
use crate::model::image::Image;
use crate::model::name::ProfileName;
use crate::model::network::NetworkSpec;
use crate::model::principal::User;
use crate::model::profile::Profile;
use crate::model::quota::{self, Usage};
use crate::model::vm::{Desired, domain_name};
pub use crate::plan::doctor::Finding;
use crate::plan::doctor::profile::{Admission, ProfilePatient, Refusal, examine_for};
use crate::plan::doctor::{Patient, examine};

/// Between two tries to prove KVM, where nothing changed meanwhile.
const PROVE_AGAIN: Duration = Duration::from_secs(600);
/// The doctor answers within a request's time, above all where something hangs.
const PATIENCE: Duration = Duration::from_secs(8);
/// The image whose kernel is tried first: it is the smallest.
const SMALLEST_IMAGE: &str = "tiny";

/// What was found out for one examination.
struct Chart {
    host: HostFacts,
    accelerator: Accelerator,
    hypervisor: std::result::Result<HypervisorVersions, String>,
    gpus: std::result::Result<Discovery, String>,
    seen: Option<Arc<Seen>>,
    entries: Vec<Entry>,
    network: NetworkSpec,
    images: usize,
    lost_images: Vec<String>,
    strays: Vec<String>,
}

impl Manager {
    /// Looks at everything that this host needs, or at what one profile needs.
    ///
    /// # Errors
    /// Where the profile is not there for the one who asks, or the store fails.
    pub async fn doctor(&self, permit: &Permit, profile: Option<&ProfileName>) -> Result<Vec<Finding>> {
        let Some(name) = profile else { return Ok(examine(&self.patient(&self.chart(permit).await))) };
        let user = permit.user().ok_or_else(|| ManagerError::denied("only a person can use a profile"))?;
        let profile = self.profile_for(user, name).await?;
        let chart = self.chart(permit).await;
        let admission = self.admission_of(user, &profile, &chart).await?;
        Ok(examine_for(&ProfilePatient { host: self.patient(&chart), profile: &profile, admission: &admission }))
    }

    async fn chart(&self, permit: &Permit) -> Chart {
        let query = FactsQuery {
            state_dir: self.config.manager.state_dir.clone(),
            groups: self.config.manager.socket_group.iter().cloned().collect(),
            users: vec![self.config.gateway.user.clone()],
            socket: self.config.manager.socket.clone(),
            listen: Some(self.config.gateway.listen),
        };
        let root = HostRoot::default();
        let (host, hypervisor, images, strays, gpus) = tokio::join!(
            facts::read(&root, &query),
            self.versions(),
            self.store.images(),
            self.strays(),
            tokio::time::timeout(PATIENCE, self.look_at_gpus())
        );
        let images = images.unwrap_or_default();
        let is_lost = |image: &Image| !self.layout.image_dir(image.id).is_dir();
        let lost = images.iter().filter(|row| is_lost(&row.image)).map(|row| row.image.name.to_string());
        let seen = match gpus {
            Ok(found) => found.map_err(|e| e.to_string()),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        let gpus = seen.as_ref().map(|seen| seen.told(permit.user())).map_err(Clone::clone);
        let entries = seen.as_ref().map(|seen| seen.entries.clone()).unwrap_or_default();
        Chart {
            lost_images: lost.collect(),
            images: images.len(),
            accelerator: self.host().accelerator,
            network: self.network(),
            host,
            hypervisor,
            gpus,
            seen: seen.ok(),
            entries,
            strays,
        }
    }

    fn patient<'a>(&'a self, chart: &'a Chart) -> Patient<'a> {
        Patient {
            host: &chart.host,
            accelerator: &chart.accelerator,
            hypervisor: chart.hypervisor.as_ref().map_err(String::as_str),
            gpus: chart.gpus.as_ref().map_err(String::as_str),
            known_gpus: &chart.entries,
            network: &chart.network,
            socket_group: self.config.manager.socket_group.as_deref(),
            gateway_user: &self.config.gateway.user,
            gateway_listen: self.config.gateway.listen,
            images: chart.images,
            lost_images: &chart.lost_images,
            strays: &chart.strays,
        }
    }

    /// What admission would say now to a machine of this profile, of a person who has none.
    async fn admission_of(&self, user: &User, profile: &Profile, chart: &Chart) -> Result<Admission> {
        let image = self.image_for(profile, None).await;
        let found = image.as_ref().ok().and_then(Option::as_ref);
        let shape = self.check_shape(profile.vcpus, profile.memory, profile.disk, found);
        let (none, ask) = (Usage::default(), Usage::asked(profile.into(), Desired::Running));
        let over = quota::exceeded(&quota::Whose::Yours, &self.config.people.quota, &none, &none, &ask);
        let mut tx = self.store.write().await?;
        let capacity = self.check_capacity(&mut tx, profile.memory).await;
        let table = match &chart.seen {
            Some(seen) => self.gpu_table(&mut tx, seen, Some(user)).await?,
            None => Table::default(),
        };
        // Dropped without commit: nothing was written.
        drop(tx);
        Ok(Admission {
            image: image.map(|image| image.map(|image| image.name.to_string())).map_err(refusal),
            shape: shape.map_err(refusal),
            quota: match over.is_empty() {
                true => Ok(()),
                false => Err(Refusal {
                    message: quota::QuotaExceeded(over).to_string(),
                    hint: Some("raise it under [people.quota] in /etc/gvm/gvm.toml; systemctl restart gvm".to_owned()),
                }),
            },
            capacity: capacity.map_err(refusal),
            gpus: table.pick(&profile.gpus),
        })
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

    async fn versions(&self) -> std::result::Result<HypervisorVersions, String> {
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
                tracing::error!(error = %super::error::chain(&e), "cannot list images to prove KVM with");
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

fn refusal(error: ManagerError) -> Refusal {
    Refusal { message: error.message, hint: error.hint }
}
