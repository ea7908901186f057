//! What a look at the cards of a host with 20,000 PCI devices costs, and a look at 16 cards with all that NVML knows of
//! them; `scripts/bench-gpu.sh` runs it and says what the numbers are.

use std::error::Error;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use gvm::gpu::{GpuOptions, HostGpus};
use gvm::model::card::NvmlStatus;
use gvm_nvml_mock::state::Store;
use gvm_nvml_mock::tree::Tree;

const DEVICES: u32 = 20_000;
const LOOKS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let cards: u32 = std::env::var("GVM_BENCH_CARDS").ok().map_or(Ok(64), |count| count.parse())?;
    let tree = tempfile::tempdir()?;
    for number in 0..DEVICES {
        // Cards are spread over the tree, each with its audio function; all else are virtual functions of network cards.
        let (bus, slot, function) = ((number >> 8) & 0xff, (number >> 3) & 0x1f, number & 7);
        let address = format!("{:04x}:{bus:02x}:{slot:02x}.{function:x}", number >> 16);
        let each = (DEVICES / cards.max(1)).max(2);
        let (class, ids) = match number % each {
            0 if number / each < cards => (0x03_0200, "0x20b5"),
            1 if number / each < cards => (0x04_0300, "0x22ba"),
            _ => (0x02_0000, "0x1520"),
        };
        device(tree.path(), &address, class, ids, number)?;
    }
    let calibration = median(|| {
        for entry in std::fs::read_dir(tree.path().join("sys/bus/pci/devices"))? {
            std::hint::black_box(std::fs::read(entry?.path().join("class"))?);
        }
        Ok(())
    })?;
    let host = HostGpus::new(GpuOptions { root: tree.path().to_owned(), ..GpuOptions::default() });
    let found = host.look();
    let discover = median(|| {
        std::hint::black_box(host.look());
        Ok(())
    })?;
    let rss = peak_mib()?;
    let (nvml_cards, refresh) = refresh()?;
    let result = serde_json::json!({
        "bench": "gpu",
        "devices": DEVICES,
        "cards": found.cards.len(),
        "discover_s": discover,
        "rss_mib": rss,
        "nvml_cards": nvml_cards,
        "refresh_s": refresh,
        "calibration_s": calibration,
        "discover_ratio": discover / calibration,
        "refresh_ratio": refresh / calibration,
    });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

/// A look at 16 cards through a mock of NVML that takes no time: half of them with MIG and seven instances each, the
/// others with the types of vGPU of theirs.
fn refresh() -> Result<(usize, f64), Box<dyn Error>> {
    let host = tempfile::tempdir()?;
    let built = std::env::current_exe()?.with_file_name("libgvm_nvml_mock.so");
    let library = host.path().join("libnvidia-ml.so.1");
    std::fs::copy(built, &library)?;
    let store = Store::in_folder(host.path());
    store.change(|state| {
        for number in 0..16_u32 {
            let kind = if number % 2 == 0 { "A100-80" } else { "L40S" };
            let card = state.add(kind, &format!("0000:{:02x}:00.0", number + 1));
            if number % 2 == 0 {
                card.mig = (true, true);
                for _ in 0..7 {
                    let made = card.create(19, None).and_then(|id| card.create_compute(id, 0));
                    std::hint::black_box(made).ok();
                }
            }
        }
    })?;
    let root = host.path().join("root");
    Tree::of(&*store.read()?).write_below(&root)?;
    let gpus = HostGpus::new(GpuOptions { root, nvml: Some(library), ..GpuOptions::default() });
    let found = gpus.look();
    let instances: usize = found.cards.iter().filter_map(|card| card.mig()).map(|mig| mig.instances.len()).sum();
    let is_ready = matches!(found.nvml, NvmlStatus::Ready { .. });
    if !is_ready || found.cards.len() != 16 || instances != 56 {
        return Err(
            format!("not what was made: {} cards, {instances} instances, {:?}", found.cards.len(), found.nvml).into()
        );
    }
    let time = median(|| {
        std::hint::black_box(gpus.look());
        Ok(())
    })?;
    Ok((found.cards.len(), time))
}

/// The files that a kernel has for it, of those that are read.
fn device(root: &Path, address: &str, class: u32, number: &str, group: u32) -> Result<(), Box<dyn Error>> {
    let real = root.join(format!("sys/devices/pci{}/{address}", &address.get(..7).unwrap_or_default()));
    std::fs::create_dir_all(&real)?;
    let link = root.join("sys/bus/pci/devices").join(address);
    std::fs::create_dir_all(root.join("sys/bus/pci/devices"))?;
    symlink(&real, link)?;
    let vendor = if class == 0x02_0000 { "0x8086" } else { "0x10de" };
    let resource = "0x0000020000000000 0x0000021fffffffff 0x000000000014220c\n".repeat(13);
    let files = [
        ("class", format!("{class:#08x}\n")),
        ("vendor", format!("{vendor}\n")),
        ("device", format!("{number}\n")),
        ("numa_node", "1\n".to_owned()),
        ("resource", resource),
        ("reset_method", "flr bus\n".to_owned()),
        ("power_state", "D0\n".to_owned()),
        ("config", "x".repeat(256)),
    ];
    for (name, content) in files {
        std::fs::write(real.join(name), content)?;
    }
    symlink("../../../bus/pci/drivers/vfio-pci", real.join("driver"))?;
    let members = root.join(format!("sys/kernel/iommu_groups/{group}/devices"));
    std::fs::create_dir_all(&members)?;
    symlink(&real, members.join(address))?;
    symlink(format!("../../../kernel/iommu_groups/{group}"), real.join("iommu_group"))?;
    Ok(())
}

fn median(mut work: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..LOOKS {
        let begin = Instant::now();
        work()?;
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(LOOKS / 2).copied().unwrap_or_default())
}

/// The most memory that this program ever had, the making of the tree included.
fn peak_mib() -> Result<f64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let kib: f64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kib / 1024.0)
}
