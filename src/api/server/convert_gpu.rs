//! Cards from the model to wire types.

use crate::api::types::{ChosenGpu, DryRun, GpuFunctionView, GpuList, GpuView, GroupMemberView, OfferView};
use crate::manager::create::Rehearsal;
use crate::manager::gpus::{Entry, GpuListing, GpuRow, Offer};
use crate::model::card::history::Sanitised;
use crate::model::card::{Card, CardMode, Health, NvmlStatus};
use crate::model::inventory::KnownGpu;
use crate::model::pci::{Link, PciAddress, class_words};

pub fn list(listing: GpuListing) -> GpuList {
    let finding = |finding: &crate::model::card::CardFinding| finding.text.clone();
    GpuList {
        looked_at: listing.at.to_string(),
        findings: listing.findings.iter().map(finding).collect(),
        nvml: nvml(&listing.nvml),
        gpus: listing.rows.into_iter().map(view).collect(),
    }
}

fn nvml(status: &NvmlStatus) -> String {
    match status {
        NvmlStatus::NotAsked => "not asked: the NVIDIA driver has no card".to_owned(),
        NvmlStatus::Ready { driver: Some(driver) } => format!("driver {driver}"),
        NvmlStatus::Ready { driver: None } => "answers".to_owned(),
        NvmlStatus::Failed { why } => why.clone(),
    }
}

pub fn view(row: GpuRow) -> GpuView {
    let GpuRow { entry, state, reasons, vm, notes, since, remedy } = row;
    let (known, card) = (entry.known.as_ref(), entry.card.as_ref());
    let memory = entry.memory().map_or(0, |memory| memory.0);
    let ids = card.map(|card| card.ids).or_else(|| known.map(|known| known.identity.ids));
    let is_along =
        |address: PciAddress| card.is_some_and(|card| card.address == address || card.siblings().contains(&address));
    let functions = card.into_iter().flat_map(|card| &card.functions);
    let members = card.and_then(|card| card.iommu.as_ref()).into_iter().flat_map(|group| &group.members);
    GpuView {
        id: entry.id.to_string(),
        address: entry.address().map(|address| address.to_string()).unwrap_or_default(),
        vendor: card.map(|card| card.vendor.to_string()).unwrap_or_default(),
        model: entry.model().to_owned(),
        pci_id: ids.map(|ids| ids.to_string()).unwrap_or_default(),
        memory_mib: memory,
        state: state.word().to_owned(),
        reasons,
        notes,
        since: since.map(|at| at.to_string()),
        remedy,
        sanitised: known.and_then(|known| known.history.sanitised.as_ref()).map(sanitised),
        vm,
        mode: card.map(|card| mode(card.mode)).unwrap_or_default().to_owned(),
        is_kept: known.is_some_and(|known| known.is_kept),
        driver: card.and_then(|card| card.driver.clone()).unwrap_or_default(),
        former: known.map(former).unwrap_or_default(),
        numa_node: card.and_then(|card| card.numa_node),
        iommu_group: card.and_then(|card| card.iommu.as_ref()).map(|group| group.number),
        group: members
            .map(|member| GroupMemberView {
                address: member.address.to_string(),
                words: member.words(),
                is_blocking: member.role.is_blocking(),
            })
            .collect(),
        functions: functions
            .map(|function| GpuFunctionView {
                address: function.address.to_string(),
                class: function.class.map(class_words).unwrap_or_default().to_owned(),
                driver: function.driver.clone().unwrap_or_default(),
                goes_along: is_along(function.address),
            })
            .collect(),
        aperture_mib: card.map_or(0, |card| card.aperture() >> 20),
        reset_methods: card.map(|card| card.reset_methods.clone()).unwrap_or_default(),
        link: card.map(link).unwrap_or_default(),
        holders: card.into_iter().flat_map(|card| &card.holders).map(|holder| holder.words()).collect(),
        health: card.map(health).unwrap_or_else(|| gone(&entry)),
        is_boot_display: card.is_some_and(|card| card.is_boot_display),
        physical_function: card.and_then(|card| card.physfn).map(|address| address.to_string()),
        uuid: known.and_then(|known| known.identity.uuid.clone()),
    }
}

fn sanitised(end: &Sanitised) -> String {
    format!("{}, {}", end.words(), end.at.strftime("%F %H:%M UTC"))
}

fn former(known: &KnownGpu) -> Vec<String> {
    known.former.iter().map(ToString::to_string).collect()
}

fn gone(entry: &Entry) -> String {
    use crate::model::card::identity::Whereabouts;
    let seen = entry.known.as_ref().map(|known| format!("; last seen {}", known.seen_at.strftime("%F %H:%M UTC")));
    let seen = seen.unwrap_or_default();
    match &entry.whereabouts {
        Some(Whereabouts::Moved { to }) => format!("gone from here; the one card like it is at {to}{seen}"),
        _ => format!("gone{seen}"),
    }
}

const fn mode(mode: CardMode) -> &'static str {
    match mode {
        CardMode::Passthrough => "passthrough",
        CardMode::Vgpu => "vgpu",
        CardMode::Mig => "mig",
        CardMode::Host => "host",
        CardMode::Unbound => "unbound",
    }
}

fn health(card: &Card) -> String {
    match &card.health {
        Health::Ok => "ok".to_owned(),
        Health::Asleep => "asleep".to_owned(),
        Health::NoAnswer(why) => format!("no answer: {why}"),
        Health::Dropped(why) | Health::Unknown(why) => why.clone(),
    }
}

fn link(card: &Card) -> String {
    let words = |link: Link| {
        let speed = link.megatransfers.map(|mega| format!("{}.{} GT/s", mega / 1000, mega % 1000 / 100));
        let width = link.width.map(|width| format!("x{width}"));
        [speed, width].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    let (now, best) = (words(card.link), words(card.link_max));
    match (now.is_empty(), best.is_empty()) {
        (true, _) => String::new(),
        (false, true) => now,
        (false, false) => format!("{now} of {best}"),
    }
}

pub fn offer(offer: Offer) -> OfferView {
    OfferView {
        request: offer.request.to_string(),
        model: offer.model,
        memory_mib: offer.memory.0,
        total: offer.total,
        free: offer.free,
        counts: offer.counts,
        same_node: offer.same_node,
        same_switch: offer.same_switch,
    }
}

pub fn dry_run(rehearsal: Rehearsal) -> DryRun {
    let Rehearsal { vm, gpus, numa_node, notes } = rehearsal;
    let chosen = |gpu: &crate::model::gpu::GpuDevice| ChosenGpu {
        address: gpu.bdf.to_string(),
        model: gpu.model.clone(),
        numa_node: gpu.numa_node,
        siblings: gpu.siblings.iter().map(ToString::to_string).collect(),
    };
    DryRun {
        name: vm.name.to_string(),
        image: vm.spec.image.as_ref().map(|image| image.name.to_string()).unwrap_or_default(),
        cpus: vm.spec.vcpus,
        memory_mib: vm.spec.memory.0,
        disk_mib: vm.spec.disk.0,
        gpus: gpus.iter().map(chosen).collect(),
        numa_node,
        notes,
    }
}
