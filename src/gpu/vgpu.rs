//! Reads what vGPUs a function offers and carries. Nothing is made here.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::files::Files;
use crate::model::card::vgpu::{MadeVgpu, OfferedType, VgpuFramework, VgpuParent};
use crate::model::gpu::VgpuTypeName;
use crate::model::units::Mib;

/// More types than any driver has.
const MAX_TYPES: usize = 512;
/// More mediated devices than any parent carries.
const MAX_MDEVS: usize = 1024;
/// The longest list of types is below a page; the file says no more.
const MAX_LIST: usize = 64 << 10;

/// What the function whose folder this is can carry; `None` where it is no parent of vGPUs.
pub(super) fn read(files: &Files, folder: &str) -> Option<VgpuParent> {
    if files.exists(&format!("{folder}/nvidia/creatable_vgpu_types")) {
        return Some(vendor(files, &format!("{folder}/nvidia")));
    }
    mediated(files, &format!("{folder}/mdev_supported_types"))
}

/// Gives types that a function carries and no longer lists the names that its neighbours list them by.
pub(super) fn name_made<'p>(parents: impl Iterator<Item = &'p mut VgpuParent>) {
    let parents: Vec<_> = parents.collect();
    let names: BTreeMap<String, VgpuTypeName> = parents
        .iter()
        .flat_map(|parent| &parent.offered)
        .map(|offered| (offered.id.clone(), offered.name.clone()))
        .collect();
    for made in parents.into_iter().flat_map(|parent| &mut parent.made).filter(|made| made.name.is_none()) {
        made.name = names.get(&made.type_id).cloned();
    }
}

// --- types written to virtual functions ------------------------------------------------------------------------------

fn vendor(files: &Files, folder: &str) -> VgpuParent {
    let mut faults = Vec::new();
    let list = files.whole(&format!("{folder}/creatable_vgpu_types"), MAX_LIST);
    let list = list.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| {
        faults.push("its list of types (creatable_vgpu_types) cannot be read".to_owned());
        String::new()
    });
    let offered = type_list(&list);
    let made = match files.text(&format!("{folder}/current_vgpu_type")).map(|text| text.parse::<u32>()) {
        Some(Ok(0)) => None,
        Some(Ok(id)) => {
            let id = id.to_string();
            let name = offered.iter().find(|offered| offered.id == id).map(|offered| offered.name.clone());
            let instance = files.number(&format!("{folder}/gpu_instance_id"));
            Some(MadeVgpu {
                uuid: None,
                type_id: id,
                name,
                gpu_instance: instance.and_then(|id| u32::try_from(id).ok()),
            })
        }
        // Whether it is free is not known.
        Some(Err(_)) | None => {
            faults.push("its type (current_vgpu_type) cannot be read".to_owned());
            None
        }
    };
    VgpuParent { framework: VgpuFramework::VendorVfio, offered, made: made.into_iter().collect(), faults }
}

/// Numbers and names that a virtual function lists.
pub(super) fn listed(files: &Files, folder: &str) -> Vec<(u32, VgpuTypeName)> {
    let list = files.whole(&format!("{folder}/creatable_vgpu_types"), MAX_LIST).unwrap_or_default();
    let types = type_list(&String::from_utf8_lossy(&list));
    types.into_iter().filter_map(|offered| Some((offered.id.parse().ok()?, offered.name))).collect()
}

/// `1145  : NVIDIA L40S-1B` line by line; headers and empty lines are no types.
pub(super) fn type_list(text: &str) -> Vec<OfferedType> {
    let line = |line: &str| {
        let (id, name) = line.split_once(':')?;
        let id: u32 = id.trim().parse().ok().filter(|id| *id != 0)?;
        let name = VgpuTypeName::parse(name)?;
        Some(OfferedType { id: id.to_string(), name, available: 1, memory: None, most: None })
    };
    text.lines().filter_map(line).take(MAX_TYPES).collect()
}

// --- mediated devices ------------------------------------------------------------------------------------------------

/// A type of a parent as it lies in its folder.
pub(super) struct TypeFolder {
    /// Below the root.
    pub(super) path: String,
    /// What the kernel calls it.
    id: String,
    /// Its name; a parent that is being set up shows types without one for a moment.
    pub(super) name: Option<VgpuTypeName>,
}

/// The types in a parent's `mdev_supported_types`.
pub(super) fn type_folders(files: &Files, folder: &str) -> Vec<TypeFolder> {
    let mut types = files.names(folder, MAX_TYPES).unwrap_or_default();
    types.sort_unstable();
    let folder = |id: String| {
        let path = format!("{folder}/{id}");
        let name = files.text(&format!("{path}/name")).and_then(|text| VgpuTypeName::parse(&text));
        TypeFolder { path, id, name }
    };
    types.into_iter().map(folder).collect()
}

fn mediated(files: &Files, folder: &str) -> Option<VgpuParent> {
    if !files.exists(folder) {
        return None;
    }
    let mut parent =
        VgpuParent { framework: VgpuFramework::Mdev, offered: Vec::new(), made: Vec::new(), faults: Vec::new() };
    for TypeFolder { path, id, name } in type_folders(files, folder) {
        let at = |name: &str| format!("{path}/{name}");
        let devices = files.names(&at("devices"), MAX_MDEVS).unwrap_or_default();
        for uuid in devices.iter().filter_map(|uuid| Uuid::try_parse(uuid).ok()) {
            let made = MadeVgpu { uuid: Some(uuid), type_id: id.clone(), name: name.clone(), gpu_instance: None };
            parent.made.push(made);
        }
        let Some(name) = name else { continue };
        // QEMU's vfio-pci takes no other.
        if files.text(&at("device_api")).is_some_and(|api| api != "vfio-pci") {
            continue;
        }
        let available = files.number(&at("available_instances")).and_then(|count| u32::try_from(count).ok());
        let Some(available) = available else {
            parent.faults.push(format!("how many {name} it can carry (available_instances) cannot be read"));
            continue;
        };
        let description = files.text(&at("description")).unwrap_or_default();
        let (memory, most) = (told(&description, "framebuffer").map(Mib), told(&description, "max_instance"));
        parent.offered.push(OfferedType {
            id,
            name,
            available,
            memory,
            most: most.and_then(|n| u32::try_from(n).ok()),
        });
    }
    parent.made.sort_by_key(|made| made.uuid);
    Some(parent)
}

/// A number of `num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4`.
fn told(description: &str, key: &str) -> Option<u64> {
    let fields = description.split(',').filter_map(|field| field.trim().split_once('='));
    let (_, value) = fields.into_iter().find(|(name, _)| *name == key)?;
    value.trim_end_matches('M').parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
#[path = "vgpu_tests.rs"]
mod tests;
