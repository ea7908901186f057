//! What it takes to verify a record of many entries; `scripts/bench-audit.sh` runs it and says what the numbers are.

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use gvm::model::event::{AuditEvent, Outcome};
use gvm::model::id::{UserId, VmId};
use gvm::model::principal::{Origin, Via};
use gvm::model::record::check::Heads;
use gvm::store::{Store, audit, commit};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

const ENTRIES: u64 = 1_000_000;
/// Entries of one transaction while the record is made.
const BATCH: u64 = 10_000;
const RUNS: usize = 3;
/// SHA-256 values of the loop that tells how fast the machine is.
const CALIBRATION: u32 = 2_000_000;

/// An entry like those that people make.
fn event(number: u64, user: UserId, vm: VmId) -> AuditEvent {
    let origin = Origin {
        via: Via::SshKey("SHA256:uNiVztksCsDhcc0u9e8BrrLNe6QWqGHVjBPJGBBKPU8".to_owned()),
        address: Some(std::net::Ipv4Addr::new(192, 0, 2, u8::try_from(number % 250).unwrap_or(0)).into()),
        request: Some(vm.uuid()),
    };
    AuditEvent {
        actor: "student-of-the-course".to_owned(),
        actor_id: Some(user),
        origin,
        vm: Some(vm),
        ..AuditEvent::own(Timestamp::now(), "vm.start", format!("machine-{}.student", number % 1000), Outcome::Success)
    }
}

/// Seconds of a fixed loop of SHA-256.
fn calibrate() -> f64 {
    let begun = Instant::now();
    let mut value = [0_u8; 32];
    for _ in 0..CALIBRATION {
        value = Sha256::digest(value).into();
    }
    std::hint::black_box(value);
    begun.elapsed().as_secs_f64()
}

async fn fill(store: &Store, entries: u64) -> Result<(), Box<dyn Error>> {
    let (user, vm) = (UserId::generate(), VmId::generate());
    let mut number = 0;
    while number < entries {
        let mut tx = store.write().await?;
        for _ in 0..BATCH.min(entries - number) {
            audit::begin(&mut tx, &event(number, user, vm), None).await?;
            number += 1;
        }
        commit(tx).await?;
    }
    Ok(())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let entries: u64 = std::env::var("GVM_BENCH_ENTRIES").ok().map_or(Ok(ENTRIES), |count| count.parse())?;
    let dir = tempfile::tempdir()?;
    let store = Store::open(&dir.path().join("gvm.db")).await?;
    let begun = Instant::now();
    fill(&store, entries).await?;
    let append_per_s = entries as f64 / begun.elapsed().as_secs_f64();
    let calibration = calibrate();
    let mut seconds = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        let last = store.verify_record(&Heads::default()).await??;
        seconds.push(begun.elapsed().as_secs_f64());
        assert_eq!(last.seq, entries);
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[RUNS / 2];
    // While somebody writes: how long the slowest write took.
    let writing = async {
        let (user, vm) = (UserId::generate(), VmId::generate());
        let mut slowest = Duration::ZERO;
        for number in 0..200 {
            let begun = Instant::now();
            store.record(&event(number, user, vm)).await?;
            slowest = slowest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<_, gvm::store::StoreError>(slowest)
    };
    let heads = Heads::default();
    let (verified, slowest) = tokio::join!(store.verify_record(&heads), writing);
    verified??;
    let report = serde_json::json!({
        "entries": entries,
        "verify_s": median,
        "rows_per_s": (entries as f64 / median).round(),
        "calibration_s": calibration,
        "rows_per_calibration": (entries as f64 / median * calibration).round(),
        "append_per_s": append_per_s.round(),
        "slowest_write_beside_ms": slowest?.as_secs_f64() * 1000.0,
        "rss_mib": peak_mib(),
    });
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

/// The most memory that this process ever had.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib / 1024)
}

fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run())
}
