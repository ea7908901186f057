//! Profiles as people see them, and the whole way of a machine through planner, leases, template and libvirt
//! without making one.

use std::collections::HashSet;

use jiff::Timestamp;
use serde::Deserialize;

use super::domain::{self, Surroundings};
use super::profiles::Profiles;
use super::{Manager, ManagerError, Result, steps};
use crate::auth::policy::Permit;
use crate::model::gpu::{GpuDevice, GpuLease, GpuShare, LeaseState, Partition};
use crate::model::id::{LeaseId, VmId};
use crate::model::image::{Boot, Image, ImageDisk, ImageKernel};
use crate::model::name::ProfileName;
use crate::model::network::{GuestAddress, MacAddress};
use crate::model::profile::Profile;
use crate::model::state::FirstBoot;
use crate::model::units::Mib;
use crate::model::vm::{Desired, Generation, ImageRef, Placement, Vm, VmSpec};
use crate::plan::place;
use crate::store::{StoreError, leases, vms};

/// Profiles with whether their image is there.
#[derive(Clone, Debug)]
pub struct FoundProfiles {
    /// By name.
    pub profiles: Vec<(Profile, bool)>,
    /// Files that cannot be used, with the reason.
    pub faults: Vec<String>,
}

/// Verdict on a profile.
#[derive(Clone, Debug, Default)]
pub struct ProfileVerdict {
    /// One line per check: `ok: ...`, `note: ...`, `fault: ...`.
    pub findings: Vec<String>,
    /// Difference between the built-in template and the administrator's.
    pub template_diff: String,
    /// Rendered description.
    pub xml: String,
    /// QEMU's command line.
    pub native: String,
    /// Cards that the planner chose.
    pub gpus: Vec<String>,
}

impl ProfileVerdict {
    /// True where there is no fault.
    pub fn is_ok(&self) -> bool {
        !self.findings.iter().any(|line| line.starts_with("fault:"))
    }

    fn say(&mut self, level: &str, text: impl std::fmt::Display) {
        self.findings.push(format!("{level}: {text}"));
    }
}

/// A captured inventory.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    gpus: Vec<GpuDevice>,
}

impl Manager {
    /// All profiles; read anew at every use, so that an edited file counts at once.
    pub(super) async fn load_profiles(&self) -> Result<Profiles> {
        let dir = self.config.manager.config_dir.clone();
        let loaded = tokio::task::spawn_blocking(move || Profiles::load(&dir)).await;
        loaded.map_err(|e| ManagerError::unavailable("reading the profiles was cut short").because(e))
    }

    /// Profiles that the caller may use, and the faults of all files.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn profiles(&self, permit: &Permit) -> Result<FoundProfiles> {
        let loaded = self.load_profiles().await?;
        let present: HashSet<String> =
            self.store.images().await?.iter().map(|row| row.image.name.to_string()).collect();
        let caller = permit.user().map(|user| user.name.to_string()).unwrap_or_default();
        let is_admin = permit.user().is_some_and(|user| user.role == crate::model::principal::Role::Admin);
        let mut found =
            FoundProfiles { profiles: Vec::new(), faults: loaded.faults.iter().map(ToString::to_string).collect() };
        for name in loaded.files.keys() {
            match loaded.resolve(name) {
                Some(Ok(profile)) if is_admin || profile.allows(&caller) => {
                    let is_present = profile.image.as_ref().is_none_or(|image| present.contains(image.as_str()));
                    found.profiles.push((profile, is_present));
                }
                Some(Err(e)) => found.faults.push(e.to_string()),
                Some(Ok(_)) | None => {}
            }
        }
        Ok(found)
    }

    /// Plans, claims, renders, validates and converts a machine of this profile, and makes none.
    ///
    /// # Errors
    /// Where there is no such profile, or the fixture cannot be read. What is wrong with the profile is in the
    /// verdict.
    pub async fn check_profile(
        &self,
        permit: &Permit,
        name: ProfileName,
        fixture: Option<serde_json::Value>,
    ) -> Result<ProfileVerdict> {
        let loaded = self.load_profiles().await?;
        let mut verdict = ProfileVerdict::default();
        for fault in loaded.faults_of(&name) {
            verdict.say(if fault.is_notice { "note" } else { "fault" }, fault);
        }
        let profile = match loaded.resolve(&name) {
            None if !verdict.is_ok() => return Ok(verdict),
            None => {
                let not_there = ManagerError::not_found(format!("there is no profile {name}"));
                return Err(not_there.hint("see `gvm profile list`"));
            }
            Some(Err(e)) => {
                verdict.say("fault", e);
                return Ok(verdict);
            }
            Some(Ok(profile)) => profile,
        };
        verdict.say("ok", format_args!("profile {name} is well-formed"));
        let cards = match fixture {
            None => Vec::new(),
            Some(value) => {
                let wrong = |e: serde_json::Error| {
                    ManagerError::invalid(format!("the GPU fixture is not understood: {e}"))
                        .hint("it is JSON: {\"gpus\": [{\"id\": ..., \"bdf\": ..., \"model\": ..., \"memory\": MiB, \"mode\": \"passthrough\"}]}")
                };
                serde_json::from_value::<Fixture>(value).map_err(wrong)?.gpus
            }
        };
        let partitions = match place::pick(&profile.gpus, &cards, &place::Held::new()) {
            Ok(partitions) => partitions,
            Err(why) => {
                verdict.say("fault", why);
                return Ok(verdict);
            }
        };
        verdict.gpus = partitions.iter().map(|p| p.gpu().to_string()).collect();
        if !partitions.is_empty() {
            verdict.say("ok", format_args!("the planner chose {}", verdict.gpus.join(", ")));
        }
        let image = self.image_or_stand_in(&profile, &mut verdict).await?;
        // No fault: it may be meant for another host.
        if let Err(why) = self.check_shape(profile.vcpus, profile.memory, profile.disk, image.as_ref()) {
            verdict.say("note", format_args!("`gvm create` would refuse it: {why}"));
        }
        let vm = sample(permit, self, &profile, &image, partitions)?;
        self.check_claims(&vm, &mut verdict).await?;
        self.check_description(&vm, image.as_ref(), &mut verdict).await?;
        Ok(verdict)
    }

    /// The profile's image, or one with the same outline where it was not imported yet.
    async fn image_or_stand_in(&self, profile: &Profile, verdict: &mut ProfileVerdict) -> Result<Option<Image>> {
        let Some(name) = &profile.image else { return Ok(None) };
        if let Some(row) = self.store.newest_image(name).await? {
            verdict.say("ok", format_args!("image {name} is in the catalogue"));
            return Ok(Some(row.image));
        }
        verdict.say(
            "note",
            format_args!("image {name} is not in the catalogue yet; checked with a stand-in of its outline"),
        );
        let kernel = ImageKernel {
            file: "vmlinuz".to_owned(),
            sha256: String::new(),
            initrd: "initrd.img".to_owned(),
            initrd_sha256: String::new(),
            cmdline: "console=ttyS0".to_owned(),
        };
        let disk = ImageDisk {
            file: "disk.img".to_owned(),
            format: crate::model::image::DiskFormat::Qcow2,
            sha256: String::new(),
            virtual_size: Mib(1),
            growth: crate::model::image::Growth::default(),
        };
        Ok(Some(Image {
            id: crate::model::id::ImageId::generate(),
            name: name.clone(),
            version: "stand-in".to_owned(),
            os: "linux".to_owned(),
            user: "gvm".parse().map_err(|_| ManagerError::invalid("no guest user"))?,
            min_disk: Mib(1),
            disk: (profile.boot == Boot::Uefi).then_some(disk),
            kernel: (profile.boot == Boot::Kernel).then_some(kernel),
        }))
    }

    /// Claims the partitions as an admission would, and rolls back.
    async fn check_claims(&self, vm: &Vm, verdict: &mut ProfileVerdict) -> Result<()> {
        if vm.placement.gpus.is_empty() {
            return Ok(());
        }
        let mut tx = self.store.write().await?;
        let secrets = steps::make_secrets("check").map_err(|e| ManagerError::unavailable(e.to_string()).because(e))?;
        // The image of the catalogue may be a stand-in: the row is inserted without it.
        let row = Vm { spec: VmSpec { image: None, ..vm.spec.clone() }, ..vm.clone() };
        vms::insert(&mut tx, &row, &secrets).await?;
        for partition in &vm.placement.gpus {
            let lease = GpuLease {
                id: LeaseId::generate(),
                partition: partition.clone(),
                share: GpuShare::whole(Mib(0)),
                vm: vm.id,
                generation: vm.generation,
                state: LeaseState::Claimed,
            };
            match leases::claim(&mut tx, &lease, vm.created_at).await {
                Ok(()) => verdict.say("ok", format_args!("{} can be claimed", partition.key())),
                Err(StoreError::Taken(_)) => verdict.say("note", format_args!("{} is in use now", partition.key())),
                Err(e) => return Err(e.into()),
            }
        }
        // Dropped without commit: rolled back.
        Ok(())
    }

    async fn check_description(&self, vm: &Vm, image: Option<&Image>, verdict: &mut ProfileVerdict) -> Result<()> {
        let host = self.host();
        let around = Surroundings {
            layout: &self.layout,
            image,
            network: &self.config.network.name,
            accelerator: &host.accelerator,
            host_cpus: host.capacity.cpus,
            owner: "check",
        };
        let spec = match domain::spec(vm, &around) {
            Ok(spec) => spec,
            Err(e) => {
                verdict.say("fault", e);
                return Ok(());
            }
        };
        match self.hypervisor.check(&spec).await {
            Ok(found) => {
                verdict.say("ok", "libvirt accepts the domain description");
                verdict.xml = found.xml;
                verdict.template_diff = found.template_diff;
                match found.native {
                    Ok(native) => {
                        verdict.say("ok", "libvirt converts it to a QEMU command line");
                        verdict.native = native;
                    }
                    Err(why) => {
                        verdict.say("fault", format_args!("libvirt cannot convert it to a QEMU command line: {why}"))
                    }
                }
            }
            Err(e) => verdict.say("fault", e),
        }
        if !verdict.template_diff.is_empty() {
            verdict.say("note", "the administrator's template differs from the built-in one");
        }
        Ok(())
    }
}

/// A machine of the profile that is never stored.
fn sample(
    permit: &Permit,
    manager: &Manager,
    profile: &Profile,
    image: &Option<Image>,
    gpus: Vec<Partition>,
) -> Result<Vm> {
    let id = VmId::generate();
    let owner = permit.user().ok_or_else(|| ManagerError::denied("only a person can check a profile"))?.id;
    let last = manager.config.network.subnet.guests().last();
    let guest = "gvm".parse().map_err(|_| ManagerError::invalid("no guest user"))?;
    Ok(Vm {
        id,
        name: "check".parse().map_err(|_| ManagerError::invalid("no name"))?,
        owner,
        team: None,
        spec: VmSpec {
            profile: profile.name.clone(),
            image: image.as_ref().map(|image| ImageRef { name: image.name.clone(), id: image.id }),
            clone_of: None,
            boot: profile.boot,
            vcpus: profile.vcpus,
            memory: profile.memory,
            disk: profile.disk,
            caps: profile.caps.clone(),
            gpus: profile.gpus.clone(),
            tpm: profile.tpm,
            secure_boot: profile.secure_boot,
            graphics: profile.graphics,
            ttl: profile.ttl,
            guest_user: profile.guest_user.clone().unwrap_or(guest),
            user_data: None,
            profile_user_data: profile.user_data.clone(),
        },
        // As it would be running, with its cards.
        desired: Desired::Running,
        generation: Generation(1),
        restart_requested: None,
        is_force_stop: false,
        stop_asked_at: None,
        started_at: None,
        started_boot: None,
        placement: Placement {
            host: manager.host().id,
            mac: MacAddress::qemu([0xff, 0xff, 0xff]),
            address: last.unwrap_or(GuestAddress(std::net::Ipv4Addr::LOCALHOST)),
            gpus,
            mmio64: None,
            huge_page: None,
        },
        tags: Vec::new(),
        trouble: None,
        attempts: 0,
        next_try: None,
        first_boot: FirstBoot::Waiting,
        created_at: Timestamp::now(),
        undelete_until: None,
    })
}
