//! The planner on a host of 64 cards: 10,000 random requests, each planned from the inventory on.
//!
//! `cargo bench --no-default-features --bench place`. The last line is JSON: `median_us` and `p99_us` for a request,
//! `calibration_us` for a fixed sum on the same machine, so that figures of different machines can be compared.

use std::hint::black_box;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use gvm::model::gpu::{GpuDevice, GpuId, GpuRequest, LeaseState, PciAddress, Vendor};
use gvm::model::units::Mib;
use gvm::plan::place::{Held, Holder, pick};

const CARDS: u8 = 64;
const REQUESTS: usize = 10_000;
const MODELS: [(&str, u64); 4] =
    [("NVIDIA A100-SXM4-80GB", 80), ("NVIDIA L40S", 45), ("NVIDIA A10", 23), ("Tesla T4", 15)];

/// Numbers that are the same in every run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or_default() % end
    }

    fn one_of<'t, T>(&mut self, some: &'t [T]) -> Option<&'t T> {
        some.get(self.below(some.len()))
    }
}

const fn at(bus: u8, slot: u8) -> PciAddress {
    PciAddress { domain: 0, bus, slot, function: 0 }
}

/// Two nodes, four root complexes, four switches below each, four cards below a switch; one in sixteen in a group of two.
fn host() -> Vec<GpuDevice> {
    let card = |number: u8| {
        let (root, switch) = (number / 16, number / 4);
        let (model, gib) = MODELS.get(usize::from(number / 8 % 4)).copied().unwrap_or(("NVIDIA A10", 24));
        let mut card = GpuDevice::new(GpuId(format!("GPU-{number}")), at(number * 3 + 2, 0), model, Mib(gib << 10));
        card.vendor = Vendor::Nvidia;
        card.numa_node = Some(u32::from(root / 2));
        card.upstream = vec![at(root, switch % 4 + 1), at(100 + switch, 0), at(120 + switch, number % 4)];
        card.iommu_group = Some(u32::from(if number % 16 == 1 { number - 1 } else { number }));
        card
    };
    (0..CARDS).map(card).collect()
}

/// What people ask for, mostly single cards and small sets.
fn request(numbers: &mut Numbers) -> Vec<GpuRequest> {
    const WORDS: [&str; 14] = [
        "1",
        "a100",
        "l40s",
        "t4",
        "20GiB",
        "40GiB",
        "2",
        "2xa100",
        "4xa100",
        "8xl40s",
        "2x20GiB:same-switch",
        "4:same-node",
        "a100:80GiB",
        "h100",
    ];
    let parts = 1 + numbers.below(8) / 7;
    (0..parts).filter_map(|_| numbers.one_of(&WORDS)?.parse().ok()).collect()
}

fn held(cards: &[GpuDevice], numbers: &mut Numbers) -> Held {
    let share = 1 + numbers.below(8);
    let taken: Vec<&GpuDevice> = cards.iter().filter(|_| numbers.below(8) >= share).collect();
    taken.into_iter().map(|card| (card.id.clone(), Holder { state: LeaseState::Attached, vm: None })).collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn main() -> io::Result<()> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let cards = host();
    let mut times = Vec::with_capacity(REQUESTS);
    let mut granted = 0;
    for _ in 0..REQUESTS {
        let (request, held) = (request(&mut numbers), held(&cards, &mut numbers));
        let start = Instant::now();
        let answer = black_box(pick(black_box(&request), black_box(&cards), black_box(&held)));
        times.push(start.elapsed());
        granted += usize::from(answer.is_ok());
    }
    let start = Instant::now();
    let sum = (0..1_000_000_u64).fold(1_u64, |sum, number| black_box(sum.wrapping_mul(31).wrapping_add(number)));
    let calibration = start.elapsed();
    black_box(sum);
    times.sort_unstable();
    let quantile = |share: usize| times.get(times.len() * share / 100).copied().map(micros).unwrap_or_default();
    let mut out = io::stdout().lock();
    writeln!(out, "{REQUESTS} requests on {CARDS} cards, {granted} granted")?;
    writeln!(
        out,
        "{{\"median_us\": {:.1}, \"p99_us\": {:.1}, \"granted\": {granted}, \"calibration_us\": {:.0}}}",
        quantile(50),
        quantile(99),
        micros(calibration)
    )
}
