//! Cards from the model to wire types.

use crate::api::types::{
    CardLayoutView, CardPlanView, ChosenGpu, DryRun, FitView, GpuFunctionView, GpuList, GpuPlan, GpuView,
    GroupMemberView, LayoutResult, MigInstanceView, OfferView,
};
use crate::manager::create::Rehearsal;
use crate::manager::gpus::{
    CardReport, Entry, GpuListing, GpuRow, LaidOut, LayoutOutcome, Lost, Offer, Report, Room, Slot, SlotUser,
};
use crate::model::card::history::Sanitised;
use crate::model::card::{Card, CardMode, Health, NvmlStatus};
use crate::model::gpu::GpuRequest;
use crate::model::inventory::{KnownGpu, Shape};
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

fn shape(shape: &Shape) -> String {
    let word = shape.word();
    let parts: Vec<String> = match shape {
        Shape::Vgpu { types } => types.iter().map(|(name, most)| format!("at most {most} {name}")).collect(),
        Shape::Mig { instances, types } => {
            let instances = instances.iter().flatten().map(ToString::to_string);
            instances.chain(types.iter().map(|(name, most)| format!("at most {most} {name}"))).collect()
        }
    };
    if parts.is_empty() { word.to_owned() } else { format!("{word}: {}", parts.join(", ")) }
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
        shape: known.and_then(|known| known.shape.as_ref()).map(|shaped| shape(&shaped.shape)).unwrap_or_default(),
        instances: card
            .and_then(Card::mig)
            .map(|mig| mig.instances.iter().map(|made| made.instance.to_string()).collect())
            .unwrap_or_default(),
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
    let Rehearsal { vm, gpus, numa_node, quota, notes } = rehearsal;
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
        quota: quota.iter().map(super::quota::line).collect(),
        numa_node,
        notes,
    }
}

pub fn plan(report: Report) -> GpuPlan {
    let advice = report.mends.into_iter().map(|(_, mend)| mend).collect();
    GpuPlan { cards: report.cards.into_iter().map(card_plan).collect(), advice }
}

fn card_plan(card: CardReport) -> CardPlanView {
    let instance = |slot: Slot| {
        let (state, vm) = match (slot.user, slot.is_made) {
            (None, _) => ("idle", None),
            (Some(SlotUser::Ours(vm)), true) => ("in-use", vm),
            (Some(SlotUser::Ours(vm)), false) => ("reserved", vm),
            (Some(SlotUser::Other), _) => ("foreign", None),
        };
        let (profile, placement) = (slot.instance.profile.to_string(), slot.instance.placement);
        MigInstanceView { profile, start: placement.start, size: placement.size, state: state.to_owned(), vm }
    };
    let fit = |(request, room): (GpuRequest, Room)| {
        let limit = room.limit.words(&request.to_string());
        FitView { request: request.to_string(), count: room.count, limit }
    };
    let lost = |lost: &Lost| format!("{}: {} fit, {} would", lost.profile, lost.now, lost.anew);
    let mode = if card.mig.is_some() { "mig" } else { "vgpu" };
    let mig = card.mig.unwrap_or_default();
    CardPlanView {
        address: card.address.to_string(),
        model: card.model,
        mode: mode.to_owned(),
        blocked: card.blocked,
        memory_slices: mig.memory_slices,
        compute_slices: mig.compute_slices,
        lost: mig.lost.iter().map(lost).collect(),
        instances: mig.slots.into_iter().map(instance).collect(),
        is_fixed: mig.is_fixed,
        carries: card.carries.iter().map(|(name, count)| format!("{count} {name}")).collect(),
        fits: card.fits.into_iter().map(fit).collect(),
        fragmented_percent: mig.fragmented_percent,
    }
}

pub fn laid_out(cards: &[LaidOut]) -> LayoutResult {
    let card = |card: &LaidOut| {
        let (outcome, why) = match &card.outcome {
            LayoutOutcome::AsWished => ("as-wished", None),
            LayoutOutcome::WouldChange => ("would-change", None),
            LayoutOutcome::Changed => ("changed", None),
            LayoutOutcome::Failed(why) => ("failed", Some(why.clone())),
        };
        CardLayoutView {
            address: card.address.to_string(),
            model: card.model.clone(),
            layout: card.layout.to_string(),
            outcome: outcome.to_owned(),
            why,
        }
    };
    LayoutResult { cards: cards.iter().map(card).collect() }
}
