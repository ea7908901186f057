//! Room for the cards' memory windows (BARs) in a guest's address space.
//!
//! The guest's firmware lays 64-bit windows out above the memory, in a window of its own whose size follows from the
//! number of physical address bits that the virtual CPU tells. Too few, and the last card's driver finds a window of
//! nothing. So the need is counted before a machine is described.
//!
//! Each card sits behind a root port of its own. A bridge's window begins at a multiple of the largest window behind it,
//! so that a card takes the sum of its windows, each rounded up to a power of two, rounded up to a multiple of the
//! largest. 64-bit windows that are not prefetchable count too, as firmware may put them there.

use crate::model::gpu::GpuDevice;
use crate::model::units::Mib;

/// What firmware gives without being told anything of the CPU: 32 GiB.
const DEFAULT_APERTURE: u128 = 32 << 30;
/// Firmware of the last years takes an eighth of the address space; the newest takes a quarter.
const SHARE_BITS: u32 = 3;
/// Address bits of QEMU's own CPU models, and of any that is not told to take the host's.
const DEFAULT_BITS: u32 = 40;
/// What the machine's other devices take.
const OTHERS: u128 = 1 << 30;

/// What cards need of a guest's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The cards' 64-bit windows with their alignment, and some for the other devices, in bytes.
    pub aperture: u128,
    /// Physical address bits that the guest's CPU must have.
    pub phys_bits: u32,
}

/// What a CPU model gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestCpu<'a> {
    /// The host's CPU with its address bits, as read from the host.
    HostPassthrough {
        /// The host's physical address bits.
        bits: u32,
    },
    /// A named model, such as `qemu64`.
    Named(&'a str),
}

/// Why cards do not fit the guest's address space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNotCpu {
    /// A model that does not tell the host's bits.
    #[error(
        "the GPUs' memory windows need {need} of the guest's address space, that is {bits} address bits; CPU model {model} \
         tells {DEFAULT_BITS}: take host-passthrough with the host's physical address bits"
    )]
    Model {
        /// Its name.
        model: String,
        /// The aperture.
        need: Mib,
        /// Bits needed.
        bits: u32,
    },
    /// The host has no more.
    #[error(
        "the GPUs' memory windows need {need} of the guest's address space, that is {bits} address bits; this host's CPU has {has}: \
         ask for fewer GPUs"
    )]
    Host {
        /// The aperture.
        need: Mib,
        /// Bits needed.
        bits: u32,
        /// Bits of the host.
        has: u32,
    },
}

impl Window {
    /// What these cards need beside so much memory.
    pub fn of<'d>(cards: impl IntoIterator<Item = &'d GpuDevice>, memory: Mib) -> Self {
        let shares: Vec<Share> = cards.into_iter().map(Share::of).filter(|share| share.used > 0).collect();
        let aligned = shares.iter().fold(0, |sum, share| sum + share.used + share.padding);
        // Nothing has to follow the last card.
        let aperture = match shares.iter().map(|share| share.padding).max() {
            Some(padding) => aligned - padding + OTHERS,
            None => 0,
        };
        let window = aperture.max(DEFAULT_APERTURE).next_power_of_two();
        // The window is the last part of the address space, with the memory before it.
        let space = (window << SHARE_BITS).max((u128::from(memory.bytes()) + window).next_power_of_two());
        Self { aperture, phys_bits: space.trailing_zeros() }
    }

    /// True where firmware must be told the host's address bits: the default window does not do.
    pub const fn needs_host_phys_bits(&self) -> bool {
        self.aperture > DEFAULT_APERTURE || self.phys_bits > DEFAULT_BITS
    }

    /// The least window in MiB, for firmware that has to be told (`opt/ovmf/X-PciMmio64Mb`, which takes a power of two);
    /// `None` where the default does.
    pub fn mmio64_mib(&self) -> Option<u64> {
        let is_larger = self.aperture > DEFAULT_APERTURE;
        is_larger.then(|| u64::try_from(self.aperture.next_power_of_two() >> 20).ok()).flatten()
    }

    /// Whether a guest with this CPU has the room.
    ///
    /// # Errors
    /// Says how many bits are needed, and what to take.
    pub fn check(&self, cpu: GuestCpu<'_>) -> Result<(), WhyNotCpu> {
        let need = Mib(u64::try_from(self.aperture.div_ceil(1 << 30) << 10).unwrap_or(u64::MAX));
        let bits = self.phys_bits;
        match cpu {
            GuestCpu::Named(model) if self.needs_host_phys_bits() => {
                Err(WhyNotCpu::Model { model: model.to_owned(), need, bits })
            }
            GuestCpu::HostPassthrough { bits: has } if has < bits && self.needs_host_phys_bits() => {
                Err(WhyNotCpu::Host { need, bits, has })
            }
            GuestCpu::Named(_) | GuestCpu::HostPassthrough { .. } => Ok(()),
        }
    }
}

/// A card's share of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    /// Its windows, each a power of two.
    used: u128,
    /// To where the next bridge may begin.
    padding: u128,
}

impl Share {
    fn of(card: &GpuDevice) -> Self {
        let windows = card.bars.iter().filter(|bar| bar.is_64bit && bar.size > 0);
        let rounded = || windows.clone().map(|bar| u128::from(bar.size).next_power_of_two());
        let used = rounded().sum();
        let largest = rounded().max().unwrap_or(1);
        Self { used, padding: used.next_multiple_of(largest) - used }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::{Bar, GpuId};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn card(bars: &[(u64, bool)]) -> GpuDevice {
        let bdf = "0000:41:00.0".parse().unwrap();
        let mut card = GpuDevice::new(GpuId("GPU-1".to_owned()), bdf, "NVIDIA H100", Mib(80 << 10));
        card.bars =
            bars.iter().map(|&(size, is_64bit)| Bar { index: 0, size, is_64bit, is_prefetchable: is_64bit }).collect();
        card
    }

    /// Case A-large-bar-window: BARs of 16 MiB (32-bit), 128 GiB (64-bit prefetchable), 32 MiB; eight such cards.
    #[test]
    fn eight_large_cards_need_a_terabyte_and_the_hosts_bits() {
        let cards = vec![card(&[(16 * MIB, false), (128 * GIB, true), (32 * MIB, true)]); 8];
        let window = Window::of(&cards, Mib(512 << 10));
        assert!(window.aperture >= 1 << 40, "{window:?}");
        assert!(window.needs_host_phys_bits());
        insta::assert_snapshot!(window.check(GuestCpu::Named("qemu64")).unwrap_err(), @"the GPUs' memory windows need 1922 GiB of the guest's address space, that is 44 address bits; CPU model qemu64 tells 40: take host-passthrough with the host's physical address bits");
        insta::assert_snapshot!(window.check(GuestCpu::HostPassthrough { bits: 39 }).unwrap_err(), @"the GPUs' memory windows need 1922 GiB of the guest's address space, that is 44 address bits; this host's CPU has 39: ask for fewer GPUs");
        assert_eq!(window.check(GuestCpu::HostPassthrough { bits: 46 }), Ok(()));
    }

    #[test]
    fn windows_are_rounded_and_aligned() {
        let check = |bars: &[(u64, bool)]| {
            let Share { used, padding } = Share::of(&card(bars));
            (used, padding)
        };
        assert_eq!(check(&[]), (0, 0));
        assert_eq!(check(&[(16 * MIB, false)]), (0, 0), "32-bit windows lie below 4 GiB");
        assert_eq!(check(&[(96 * GIB, true)]), (128 << 30, 0), "a power of two");
        let (used, padding) = check(&[(128 * GIB, true), (32 * MIB, true)]);
        assert_eq!(used + padding, 256 << 30, "the next bridge begins at a multiple of the largest");
        assert_eq!(check(&[(u64::MAX, true)]), (1 << 64, 0), "no overflow");
    }

    #[test]
    fn small_cards_and_none_need_nothing() {
        for cards in [vec![], vec![card(&[(16 * MIB, false), (256 * MIB, true), (32 * MIB, true)])]] {
            let window = Window::of(&cards, Mib(8 << 10));
            assert!(!window.needs_host_phys_bits(), "{window:?}");
            assert_eq!(window.check(GuestCpu::Named("qemu64")), Ok(()));
            assert_eq!(window.mmio64_mib(), None);
        }
        let window = Window::of(&[card(&[(64 * GIB, true)])], Mib(8 << 10));
        assert_eq!((window.needs_host_phys_bits(), window.mmio64_mib()), (true, Some(128 << 10)));
    }

    #[test]
    fn memory_lies_before_the_window() {
        let one = [card(&[(64 * GIB, true)])];
        let bits = |gib: u64| Window::of(&one, Mib(gib << 10)).phys_bits;
        assert_eq!((bits(8), bits(900), bits(2048)), (40, 41, 42));
    }
}
