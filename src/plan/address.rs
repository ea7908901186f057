//! Picks a free address and a card's address for a new machine.

use std::collections::HashSet;

use crate::model::id::VmId;
use crate::model::network::{GuestAddress, MacAddress, Subnet};

/// The lowest free address after those ever likely to be remembered by clients is not worth the state: the
/// lowest free one is taken.
pub fn pick_address(subnet: Subnet, taken: &HashSet<GuestAddress>) -> Option<GuestAddress> {
    subnet.guests().find(|address| !taken.contains(address))
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
    fn addresses_are_filled_from_below_and_run_out() {
        let subnet: Subnet = "10.77.0.0/29".parse().unwrap();
        let mut taken = HashSet::new();
        for expected in 2..=6 {
            let address = pick_address(subnet, &taken).unwrap();
            assert_eq!(address.to_string(), format!("10.77.0.{expected}"));
            taken.insert(address);
        }
        assert_eq!(pick_address(subnet, &taken), None);
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
