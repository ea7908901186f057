//! The cards as the search sees them: models, units that go together, and where each unit is.

use super::why::Reason;
use super::{Held, Holder};
use crate::model::gpu::{Fabric, GpuDevice, GpuMode, ModelName, PciAddress, Service};
use crate::model::units::Mib;

/// How many groups of one host are planned with; the search keeps a set of them in 128 bits. No server has as many.
const MAX_UNITS: usize = 128;

/// Cards of one model and size.
#[derive(Debug)]
pub(super) struct Class<'c> {
    pub device: &'c GpuDevice,
    pub name: ModelName,
}

impl Class<'_> {
    pub fn memory(&self) -> Option<Mib> {
        Some(self.device.memory).filter(|memory| memory.0 > 0)
    }
}

/// One card in its unit.
#[derive(Debug)]
pub(super) struct Seat<'c> {
    pub device: &'c GpuDevice,
    /// Its place in [`Units::classes`].
    pub class: usize,
    /// Why it is not handed out, whoever asks; held or not.
    pub why: Option<Reason>,
    /// Who will give it back.
    pub holder: Option<&'c Holder>,
}

/// Cards that go to one machine or to none: an IOMMU group.
#[derive(Debug)]
pub(super) struct Unit<'c> {
    /// By address.
    pub seats: Vec<Seat<'c>>,
    /// Its place in the order of addresses.
    pub rank: usize,
    /// No card of it has a reason against it.
    pub is_usable: bool,
    /// And none is held.
    pub is_free: bool,
    /// The node of all its cards.
    pub node: Option<u32>,
    /// The bridges above all its cards, from the root port down.
    pub upstream: &'c [PciAddress],
}

/// Everything that is planned with.
#[derive(Debug)]
pub(super) struct Units<'c> {
    pub classes: Vec<Class<'c>>,
    /// In the order of their places: node, root complex, switches, address.
    pub all: Vec<Unit<'c>>,
}

impl<'c> Units<'c> {
    pub fn new(cards: &'c [GpuDevice], held: &'c Held) -> Self {
        let mut devices: Vec<&GpuDevice> = cards.iter().collect();
        devices.sort_by(|one, other| (one.bdf, &one.id).cmp(&(other.bdf, &other.id)));
        let mut classes: Vec<Class<'c>> = Vec::new();
        let mut all: Vec<Unit<'c>> = Vec::new();
        for device in devices {
            let is_same = |class: &Class<'_>| {
                let other = class.device;
                other.memory == device.memory && other.model == device.model && other.vendor == device.vendor
            };
            let class = classes.iter().position(is_same).unwrap_or(classes.len());
            if class == classes.len() {
                classes.push(Class { device, name: ModelName::new(&device.model, device.vendor) });
            }
            let holder = held.get(&device.id);
            let why = why_never(device);
            let seat = Seat { device, class, why, holder };
            let group = device.iommu_group;
            let mate = |unit: &&mut Unit<'_>| {
                group.is_some() && unit.seats.first().is_some_and(|first| first.device.iommu_group == group)
            };
            match all.iter_mut().find(mate) {
                Some(unit) => unit.join(seat),
                None => all.push(Unit::new(seat, all.len())),
            }
        }
        for unit in all.iter_mut().skip(MAX_UNITS) {
            unit.is_usable = false;
        }
        all.sort_by(|one, other| {
            one.place().cmp(&other.place()).then_with(|| (one.upstream, one.rank).cmp(&(other.upstream, other.rank)))
        });
        Self { classes, all }
    }

    /// All cards, by address, with their units.
    pub fn seats(&self) -> Vec<(&Unit<'c>, &Seat<'c>)> {
        let mut seats: Vec<_> =
            self.all.iter().flat_map(|unit| unit.seats.iter().map(move |seat| (unit, seat))).collect();
        seats.sort_by_key(|(_, seat)| seat.device.bdf);
        seats
    }
}

/// A place on one level of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Node(u32),
    Root(u32, u8),
    Bridge(PciAddress),
    /// Near to nothing else.
    Own(usize),
}

impl<'c> Unit<'c> {
    fn new(seat: Seat<'c>, rank: usize) -> Self {
        Self {
            rank,
            is_usable: seat.why.is_none(),
            is_free: seat.holder.is_none(),
            node: seat.device.numa_node,
            upstream: &seat.device.upstream,
            seats: vec![seat],
        }
    }

    fn join(&mut self, seat: Seat<'c>) {
        self.is_usable &= seat.why.is_none();
        self.is_free &= seat.holder.is_none();
        self.node = self.node.filter(|node| seat.device.numa_node == Some(*node));
        let shared = self.upstream.iter().zip(&seat.device.upstream).take_while(|(one, other)| one == other).count();
        self.upstream = self.upstream.get(..shared).unwrap_or_default();
        self.seats.push(seat);
    }

    /// Its node; where that is not known, its root complex stands for one.
    pub fn node_place(&self) -> Place {
        self.node.map_or_else(|| self.root_place(), Place::Node)
    }

    pub fn root_place(&self) -> Place {
        self.upstream.first().map_or(Place::Own(self.rank), |port| Place::Root(port.domain, port.bus))
    }

    /// The bridge above it that has so many above itself.
    pub fn bridge_place(&self, depth: usize) -> Place {
        self.upstream.get(depth).map_or(Place::Own(self.rank), |bridge| Place::Bridge(*bridge))
    }

    fn place(&self) -> (Place, Place) {
        (self.node_place(), self.root_place())
    }
}

/// What speaks against a card whoever asks for it and whatever comes back.
fn why_never(device: &GpuDevice) -> Option<Reason> {
    match &device.service {
        Service::Good | Service::Noted(_) => {}
        Service::Draining(why) => return Some(Reason::Draining { why: why.clone() }),
        Service::Quarantined(why) => return Some(Reason::Quarantined { why: why.clone() }),
        Service::Stuck(why) => return Some(Reason::Stuck { why: why.clone() }),
    }
    if device.is_foreign {
        return Some(Reason::Foreign { why: device.blocked.clone() });
    }
    if let Some(why) = &device.blocked {
        return Some(Reason::Blocked { why: why.clone() });
    }
    if let Some(by) = device.blockers.first() {
        return Some(Reason::GroupBlocked { group: device.iommu_group, by: by.clone() });
    }
    if device.fabric == Fabric::Nvswitch {
        return Some(Reason::Fabric { why: device.fabric_why.clone() });
    }
    (device.mode != GpuMode::Passthrough).then_some(Reason::Mode { mode: device.mode })
}
