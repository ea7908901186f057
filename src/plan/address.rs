//! Picks a free address and a card's address for a new machine.

use std::collections::HashSet;

use crate::model::id::VmId;
use crate::model::network::{GuestAddress, MacAddress, Subnet};

/// The next free address after the one given last, round the network: an address comes back as late as possible,
/// because DHCP servers and clients remember its last holder for the time of a lease.
pub fn pick_address(subnet: Subnet, taken: &HashSet<GuestAddress>, last: Option<GuestAddress>) -> Option<GuestAddress> {
    let is_free = |address: &GuestAddress| !taken.contains(address);
    let is_after = |address: &GuestAddress| last.is_none_or(|last| *address > last);
    let after = subnet.guests().filter(is_after).find(is_free);
    after.or_else(|| subnet.guests().find(is_free))
}

/// A card's address under QEMU's prefix, from the machine's id; on a collision the next free one.
pub fn pick_mac(id: VmId, taken: &HashSet<MacAddress>) -> MacAddress {
    let bytes = id.uuid().into_bytes();
    let [.., a, b, c] = bytes;
    let start = u32::from_be_bytes([0, a, b, c]);
    let at = |offset: u32| {
        let [_, a, b, c] = (start.wrapping_add(offset) & 0x00ff_ffff).to_be_bytes();
        MacAddress::qemu([a, b, c])
    };
    (0..=0x00ff_ffff).map(at).find(|mac| !taken.contains(mac)).unwrap_or_else(|| at(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_round_and_run_out() {
        let subnet: Subnet = "10.77.0.0/29".parse().unwrap();
        let mut taken = HashSet::new();
        let mut last = None;
        let mut next = |taken: &mut HashSet<GuestAddress>| {
            last = pick_address(subnet, taken, last);
            taken.extend(last);
            last.map(|address| address.to_string())
        };
        for expected in ["10.77.0.2", "10.77.0.3"] {
            assert_eq!(next(&mut taken).as_deref(), Some(expected));
        }
        taken.clear();
        for expected in ["10.77.0.4", "10.77.0.5", "10.77.0.6", "10.77.0.2", "10.77.0.3"] {
            assert_eq!(next(&mut taken).as_deref(), Some(expected), "a given-back address comes last");
        }
        assert_eq!(next(&mut taken), None);
    }

    #[test]
    fn a_taken_card_address_is_stepped_over() {
        let id = VmId::generate();
        let first = pick_mac(id, &HashSet::new());
        let second = pick_mac(id, &HashSet::from([first]));
        assert_ne!(first, second);
        assert!(second.to_string().starts_with("52:54:00:"));
    }
}
