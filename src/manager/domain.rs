//! From a machine to the description that the hypervisor is given: always from the row and its placement, in
//! this one place.

use crate::hypervisor::{DomainDisk, DomainNic, DomainSpec, Firmware};
use crate::image::catalogue::{KernelFiles, base_disk, kernel_files};
use crate::image::layout::Layout;
use crate::model::gpu::{HostDevice, Partition};
use crate::model::host::Accelerator;
use crate::model::image::{Boot, DiskFormat, Image};
use crate::model::units::Mib;
use crate::model::vm::Vm;
use crate::plan::place;

use super::error::{ManagerError, Result};

/// vCPUs that may be plugged, as a multiple of those asked for; bounded by the host's CPUs.
const VCPU_HEADROOM: u32 = 4;
/// Memory that may be plugged, as a multiple of what was asked for.
const MEMORY_HEADROOM: u64 = 2;

/// What else a description depends on.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    /// Where files are.
    pub layout: &'a Layout,
    /// The machine's image.
    pub image: Option<&'a Image>,
    /// libvirt network.
    pub network: &'a str,
    /// What runs guest code.
    pub accelerator: &'a Accelerator,
    /// CPUs of the host.
    pub host_cpus: u32,
    /// Owner's login.
    pub owner: &'a str,
}

/// Renders the description of a machine.
///
/// # Errors
/// Where the image lacks what the way of booting needs.
pub fn spec(vm: &Vm, around: &Surroundings<'_>) -> Result<DomainSpec> {
    let files = around.layout.vm(vm.id);
    let root = DomainDisk {
        path: files.root(),
        format: DiskFormat::Qcow2,
        backing: around.image.and_then(|image| base_disk(around.layout, image)).map(|base| (base.path, base.format)),
        is_read_only: false,
        serial: "root".to_owned(),
    };
    let seed = DomainDisk {
        path: files.seed(),
        format: DiskFormat::Raw,
        backing: None,
        is_read_only: true,
        serial: "seed".to_owned(),
    };
    // A machine that is to be off is defined without its cards: by the time somebody starts it they may be another's.
    let is_up = vm.desired.is_up();
    let partitions: &[Partition] = if is_up { &vm.placement.gpus } else { &[] };
    let hostdevs: Vec<HostDevice> = partitions.iter().flat_map(Partition::devices).collect();
    let numa_node = place::numa_node(partitions);
    let vcpus = vm.spec.vcpus;
    // Memory of a machine with host devices is pinned as a whole at its start: nothing can be plugged. A guest
    // that boots firmware alone has nobody who would bring memory on line.
    let has_cards = !hostdevs.is_empty();
    let can_plug = !has_cards && vm.spec.boot == Boot::Uefi;
    Ok(DomainSpec {
        id: vm.id,
        title: format!("{}.{}", vm.name, around.owner),
        owner: around.owner.to_owned(),
        profile: vm.spec.profile.to_string(),
        vcpus,
        max_vcpus: around.host_cpus.min(vcpus.saturating_mul(VCPU_HEADROOM)).max(vcpus),
        memory: vm.spec.memory,
        max_memory: can_plug.then(|| Mib(vm.spec.memory.0.saturating_mul(MEMORY_HEADROOM))),
        accelerator: around.accelerator.clone(),
        firmware: firmware(vm, around)?,
        disks: vec![root, seed],
        nic: Some(DomainNic {
            mac: vm.placement.mac,
            network: around.network.to_owned(),
            address: vm.placement.address,
            is_filtered: true,
        }),
        hostdevs,
        numa_node,
        mmio64: vm.placement.mmio64.filter(|_| has_cards),
        huge_page: vm.placement.huge_page.filter(|_| has_cards),
        tpm: vm.spec.tpm,
        graphics: vm.spec.graphics,
        serial_log: files.serial_log(),
        caps: vm.spec.caps.clone(),
    })
}

fn firmware(vm: &Vm, around: &Surroundings<'_>) -> Result<Firmware> {
    match vm.spec.boot {
        Boot::Firmware => Ok(Firmware::Firmware),
        Boot::Uefi => Ok(Firmware::Uefi { secure_boot: vm.spec.secure_boot }),
        Boot::Kernel => {
            let image = around.image.ok_or_else(|| ManagerError::invalid("direct kernel boot needs an image"))?;
            let no_kernel = || {
                ManagerError::invalid(format!("image {} has no kernel of its own", image.name))
                    .hint("use a profile with boot = \"uefi\", or an image built with its kernel beside it")
            };
            let KernelFiles { kernel, initrd, cmdline } = kernel_files(around.layout, image).ok_or_else(no_kernel)?;
            Ok(Firmware::Kernel { kernel, initrd, cmdline })
        }
    }
}
