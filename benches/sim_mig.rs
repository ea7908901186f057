//! A trace of GPU work replayed on 8 A100-80 cards under MIG: gvm's placement beside first fit and the driver's own order.
//!
//! `scripts/sim-mig.sh` says what is asked and how it is judged. Arguments: a pod list of openb (CSV), or nothing for a
//! synthetic trace. The last line is JSON; the exit code is 1 where a bar is missed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Write as _};
use std::process::ExitCode;

use gvm::model::gpu::mig::{Instance, MigProfile, fixtures};
use gvm::plan::mig::{Card, Pick, Planner, pick, yardstick};

const CARDS: usize = 8;
const LOADS: [f64; 3] = [0.9, 1.0, 1.1];
/// From how many points on the trace is replayed, at each load.
const ROUNDS: usize = 16;
/// Who has not started by then has gone.
const PATIENCE_MS: u64 = 3_600_000;

/// Somebody's wish: so many instances of one profile at once.
#[derive(Clone, Debug)]
struct Job {
    arrival_ms: u64,
    lasts_ms: u64,
    count: usize,
    profile: MigProfile,
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    served: u32,
    /// Mean over all jobs; who went unserved has waited an hour.
    wait_s: f64,
    /// Tries that failed though allowed placements were free.
    avoidable: u32,
}

/// Who may start. The queue is the same for every placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// Only the first who has not gone.
    InOrder,
    /// Whoever has room, in the order of coming.
    Backfill,
}

type Place = fn(&[Card<'_>], MigProfile) -> Option<Pick>;

fn ours(cards: &[Card<'_>], profile: MigProfile) -> Option<Pick> {
    pick(cards, profile).ok()
}

fn driver(cards: &[Card<'_>], profile: MigProfile) -> Option<Pick> {
    yardstick::first_card(cards, profile, fixtures::driver_order)
}

/// All instances of a job, or none.
fn start(planner: &Planner, placed: &mut [Vec<Instance>], job: &Job, place: Place) -> Option<Vec<Pick>> {
    let mut picks: Vec<Pick> = Vec::new();
    for _ in 0..job.count {
        let cards: Vec<Card<'_>> = placed.iter().map(|placed| Card { planner, placed }).collect();
        let Some(found) = place(&cards, job.profile) else {
            for made in &picks {
                remove(placed, made);
            }
            return None;
        };
        if let Some(card) = placed.get_mut(found.card) {
            card.push(found.instance);
        }
        picks.push(found);
    }
    Some(picks)
}

fn remove(placed: &mut [Vec<Instance>], pick: &Pick) {
    if let Some(card) = placed.get_mut(pick.card) {
        card.retain(|instance| *instance != pick.instance);
    }
}

/// Whether a job could have started, found without the planner: every start on every card is tried against the rules.
fn could_start(planner: &Planner, placed: &[Vec<Instance>], job: &Job) -> bool {
    let geometry = planner.geometry();
    let Some(told) = geometry.profile(job.profile) else { return false };
    let mut left = job.count;
    for card in placed {
        let mut card = card.clone();
        let mut has_more = true;
        while has_more && left > 0 {
            let compute: u32 = card.iter().filter_map(|i| geometry.profile(i.profile)).map(|of| of.compute).sum();
            let is_free = |start: u32| {
                let overlaps = |other: &Instance| {
                    let (from, to) = (other.placement.start, other.placement.start + other.placement.size);
                    start < to && from < start + told.size
                };
                !card.iter().any(overlaps)
            };
            let found = told.starts.iter().copied().find(|start| is_free(*start));
            match found.filter(|_| compute + told.compute <= geometry.compute_slices()) {
                Some(start) => {
                    card.push(told.at(start));
                    left -= 1;
                }
                None => has_more = false,
            }
        }
    }
    left == 0
}

/// Everybody comes, waits for at most an hour, runs, and goes.
fn replay(planner: &Planner, jobs: &[Job], order: Queue, place: Place) -> Outcome {
    let mut placed: Vec<Vec<Instance>> = vec![Vec::new(); CARDS];
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut running: Vec<Vec<Pick>> = vec![Vec::new(); jobs.len()];
    let mut queue: VecDeque<usize> = VecDeque::new();
    let mut outcome = Outcome::default();
    let mut waited_ms = 0_u64;
    let mut arrivals = jobs.iter().enumerate().peekable();
    loop {
        let arrival = arrivals.peek().map(|(_, job)| job.arrival_ms);
        let end = ends.peek().map(|Reverse((at, _))| *at);
        let Some(now) = [arrival, end].into_iter().flatten().min() else { break };
        while let Some(Reverse((_, job))) = ends.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            ends.pop();
            for pick in running.get_mut(job).map(std::mem::take).unwrap_or_default() {
                remove(&mut placed, &pick);
            }
        }
        while let Some((job, _)) = arrivals.next_if(|(_, job)| job.arrival_ms <= now) {
            queue.push_back(job);
        }
        let mut is_held_up = false;
        for _ in 0..queue.len() {
            let Some(at) = queue.pop_front() else { break };
            let Some(job) = jobs.get(at) else { continue };
            let wait = now - job.arrival_ms;
            if wait > PATIENCE_MS {
                waited_ms += PATIENCE_MS;
                continue;
            }
            if is_held_up {
                queue.push_back(at);
                continue;
            }
            match start(planner, &mut placed, job, place) {
                Some(picks) => {
                    outcome.served += 1;
                    waited_ms += wait;
                    ends.push(Reverse((now + job.lasts_ms, at)));
                    if let Some(place) = running.get_mut(at) {
                        *place = picks;
                    }
                }
                None => {
                    outcome.avoidable += u32::from(could_start(planner, &placed, job));
                    queue.push_back(at);
                    is_held_up = order == Queue::InOrder;
                }
            }
        }
    }
    waited_ms += PATIENCE_MS * queue.len() as u64;
    outcome.wait_s = waited_ms as f64 / 1000.0 / jobs.len().max(1) as f64;
    outcome
}

/// Arrivals stretched or squeezed so that the jobs ask for `load` of all memory slices between the first arrival and the
/// last; how long each lasts stays as it is.
fn at_load(planner: &Planner, jobs: &[Job], load: f64) -> Vec<Job> {
    let size = |job: &Job| planner.geometry().profile(job.profile).map_or(0, |told| told.size);
    let work: f64 = jobs.iter().map(|job| job.count as f64 * f64::from(size(job)) * job.lasts_ms as f64).sum();
    let slices = CARDS as f64 * f64::from(planner.geometry().memory_slices());
    let (first, last) = (jobs.first().map_or(0, |j| j.arrival_ms), jobs.last().map_or(0, |j| j.arrival_ms));
    let scale = work / slices / load / (last - first).max(1) as f64;
    let scaled = |job: &Job| Job { arrival_ms: whole((job.arrival_ms - first) as f64 * scale), ..job.clone() };
    jobs.iter().map(scaled).collect()
}

/// Without what is behind the point; numbers here are positive and far below 2^63.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
const fn whole(number: f64) -> u64 {
    number as u64
}

fn profile(name: &str) -> Result<MigProfile, String> {
    name.parse().map_err(|error| format!("{error}"))
}

/// A share of a card (in thousandths) as the smallest profile that has it.
const fn profile_for(milli: u64) -> &'static str {
    match milli {
        0..=143 => "1g.10gb",
        144..=286 => "2g.20gb",
        287..=429 => "3g.40gb",
        430..=572 => "4g.40gb",
        _ => "7g.80gb",
    }
}

/// The pods of openb that had GPUs and were started; how long the others would have run is not known.
fn read(path: &str) -> Result<Vec<Job>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name: &str| head.iter().position(|word| *word == name).ok_or(format!("{path}: no column {name}"));
    let (gpus, milli) = (column("num_gpu")?, column("gpu_milli")?);
    let (made, begun, gone) = (column("creation_time")?, column("scheduled_time")?, column("deletion_time")?);
    let mut jobs = Vec::new();
    for (number, line) in lines.enumerate() {
        let words: Vec<&str> = line.split(',').collect();
        let value = |at: usize| words.get(at).copied().unwrap_or_default();
        let count = |at: usize| {
            let wrong = || format!("{path}:{}: {:?} is no number", number + 2, value(at));
            value(at).parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(wrong)
        };
        if count(gpus)? < 1.0 || value(begun).is_empty() {
            continue;
        }
        let gpus = usize::try_from(whole(count(gpus)?)).map_err(|error| error.to_string())?;
        let name = if gpus > 1 { "7g.80gb" } else { profile_for(whole(count(milli)?)) };
        let lasts_ms = whole((count(gone)? - count(begun)?).max(1.0) * 1000.0);
        jobs.push(Job { arrival_ms: whole(count(made)? * 1000.0), lasts_ms, count: gpus, profile: profile(name)? });
    }
    jobs.sort_by_key(|job| job.arrival_ms);
    Ok(jobs)
}

/// Where there is no trace: arrivals at random, mostly small asks, few long ones. Always the same.
fn synthetic() -> Result<Vec<Job>, String> {
    const ASKS: [(u64, usize, &str); 7] = [
        (35, 1, "1g.10gb"),
        (20, 1, "2g.20gb"),
        (15, 1, "3g.40gb"),
        (10, 1, "4g.40gb"),
        (16, 1, "7g.80gb"),
        (3, 2, "7g.80gb"),
        (1, 4, "7g.80gb"),
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut share = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut jobs = Vec::new();
    let mut now = 0.0;
    for _ in 0..7000 {
        now -= 60_000.0 * (1.0 - share()).ln();
        let mut drawn = whole(share() * 100.0);
        let mut ask = (1, "1g.10gb");
        for (weight, count, name) in ASKS {
            if drawn < weight {
                ask = (count, name);
                break;
            }
            drawn -= weight;
        }
        // Ten minutes in the middle, a tenth of them longer than two hours.
        let lasts_ms = whole(600_000.0 * (4.0 * (share() + share() + share() - 1.5)).exp());
        jobs.push(Job { arrival_ms: whole(now), lasts_ms, count: ask.0, profile: profile(ask.1)? });
    }
    Ok(jobs)
}

/// The trace from a later point on; what was before comes after the last.
fn turned(jobs: &[Job], round: usize) -> Vec<Job> {
    let (first, last) = (jobs.first().map_or(0, |j| j.arrival_ms), jobs.last().map_or(0, |j| j.arrival_ms));
    let span = last - first + 1;
    let by = span / ROUNDS as u64 * round as u64;
    let moved = |job: &Job| Job { arrival_ms: (job.arrival_ms - first + span - by) % span, ..job.clone() };
    let mut turned: Vec<Job> = jobs.iter().map(moved).collect();
    turned.sort_by_key(|job| job.arrival_ms);
    turned
}

/// One placement's outcomes of all rounds.
#[derive(Clone, Debug, Default)]
struct Sum {
    served: Vec<u32>,
    wait_s: f64,
    avoidable: u32,
}

impl Sum {
    fn total(&self) -> f64 {
        self.served.iter().copied().map(f64::from).sum()
    }

    /// This one's figures over those of another.
    fn over(&self, other: &Self) -> Over {
        let ratio = |one: f64, other: f64| if other > 0.0 { one / other } else { 1.0 };
        let rounds =
            self.served.iter().zip(&other.served).map(|(one, other)| ratio(f64::from(*one), f64::from(*other)));
        let rounds: Vec<f64> = rounds.collect();
        Over {
            served: ratio(self.total(), other.total()),
            wait: ratio(self.wait_s, other.wait_s),
            as_is: rounds.first().copied().unwrap_or(1.0),
            least: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            most: rounds.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// Ratios of two placements: over all rounds, of the round that begins where the trace does, and of the extreme rounds.
struct Over {
    served: f64,
    wait: f64,
    as_is: f64,
    least: f64,
    most: f64,
}

/// All rounds of one load: gvm, first fit, the driver's order.
fn rounds(planner: &Planner, jobs: &[Job], load: f64, order: Queue) -> [Sum; 3] {
    let mut sums = [Sum::default(), Sum::default(), Sum::default()];
    for round in 0..ROUNDS {
        let jobs = at_load(planner, &turned(jobs, round), load);
        for (sum, place) in sums.iter_mut().zip([ours as Place, yardstick::first_fit, driver]) {
            let outcome = replay(planner, &jobs, order, place);
            sum.served.push(outcome.served);
            sum.wait_s += outcome.wait_s / ROUNDS as f64;
            sum.avoidable += outcome.avoidable;
        }
    }
    sums
}

fn run() -> Result<bool, String> {
    let path = std::env::args().skip(1).find(|word| !word.starts_with("--"));
    let jobs = path.as_deref().map_or_else(synthetic, read)?;
    if jobs.is_empty() {
        return Err("the trace has no job with a GPU".to_owned());
    }
    let planner = Planner::new(fixtures::a100_80()).map_err(|error| error.to_string())?;
    let trace = if path.is_some() { "openb" } else { "synthetic" };
    let say = |text: &str| writeln!(io::stdout().lock(), "{text}").map_err(|error| error.to_string());
    say(&format!("{} jobs ({trace}) on {CARDS} A100-80 cards, from {ROUNDS} points on", jobs.len()))?;
    let (mut served, mut wait, mut avoidable) = (f64::INFINITY, 0.0_f64, 0);
    let mut rows = Vec::new();
    for (order, word) in [(Queue::InOrder, "in_order"), (Queue::Backfill, "backfill")] {
        for load in LOADS {
            let sums = rounds(&planner, &jobs, load, order);
            let [gvm, first, driver] = &sums;
            let Over { served: more, wait: longer, as_is, least, most } = gvm.over(first);
            avoidable += gvm.avoidable;
            if order == Queue::InOrder {
                served = served.min(more);
                wait = wait.max(longer);
            }
            let mut row = format!("{{\"queue\": \"{word}\", \"load\": {load}, \"jobs\": {}", jobs.len() * ROUNDS);
            for (name, sum) in [("gvm", gvm), ("first_fit", first), ("driver_order", driver)] {
                let share = 100.0 * sum.total() / (jobs.len() * ROUNDS) as f64;
                say(&format!(
                    "{word}  load {load:.1}  {name:<12}  served {:>6} ({share:.2} %)  mean wait {:7.2} s",
                    sum.total(),
                    sum.wait_s
                ))?;
                row += &format!(", \"{name}\": {{\"served\": {}, \"wait_s\": {:.3}}}", sum.total(), sum.wait_s);
            }
            say(&format!(
                "{word}  load {load:.1}  gvm over first fit: served {more:.4} ({least:.4} to {most:.4}), wait {longer:.4}"
            ))?;
            rows.push(format!(
                "{row}, \"served_ratio\": {more:.4}, \"served_ratio_as_is\": {as_is:.4}, \"served_ratio_least\": {least:.4}, \"served_ratio_most\": {most:.4}, \
                 \"wait_ratio\": {longer:.4}, \"avoidable\": {}}}",
                gvm.avoidable
            ));
        }
    }
    let is_met = served >= 1.0 && wait <= 1.0 && avoidable == 0;
    // Rounded against us, so that what is printed does not pass where what was measured does not.
    say(&format!(
        "{{\"served_vs_first_fit\": {:.4}, \"wait_vs_first_fit\": {:.4}, \"avoidable_refusals\": {avoidable}, \
         \"trace\": \"{trace}\", \"raw\": [{}]}}",
        (served * 1e4).floor() / 1e4,
        (wait * 1e4).ceil() / 1e4,
        rows.join(", ")
    ))?;
    Ok(is_met)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            let _ = writeln!(io::stderr(), "a bar is missed; see the last line");
            ExitCode::FAILURE
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
