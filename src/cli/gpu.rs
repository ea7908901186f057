//! `gvm gpu`: the cards of the host.

mod layout;
mod plan;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

pub use self::layout::LayoutCommand;
use super::context::Context;
use super::error::{CliError, CliResult};
use super::scan::ScanArgs;
use super::table::{Align, card, size, table};
use crate::api::client::segment;
use crate::api::error::ErrorCode;
use crate::api::types::{ChangeGpuMode, GpuList, GpuView, OfferList, OfferView, WithholdGpu};

/// Virtual functions, MIG and a reset take their time; the manager itself gives up before.
pub(super) const MODE_DEADLINE: Duration = Duration::from_secs(15 * 60);

/// `gvm gpu`
#[derive(Debug, Subcommand)]
pub enum GpuCommand {
    /// List the cards of the host
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about a card
    Show(GpuArg),
    /// Show what could be asked for with --gpu now
    Offers,
    /// Show how divided cards stand: what lies where, what fits, what is fragmented and what would mend it
    Plan,
    /// Divide all cards as a file says, or write such a file
    Layout {
        #[command(subcommand)]
        command: LayoutCommand,
    },
    /// Change what a card is between machines
    #[command(after_help = "\
passthrough  it stays with vfio-pci: a machine has it at once
host         it goes back to its driver whenever no machine has it (the default)
vgpu         it is divided into vGPUs that share it by time (--gpu vgpu:TYPE, --gpu 12GiB)
mig          it is divided by MIG, with a vGPU on each instance (--gpu mig:3g.40gb)

vgpu and mig need NVIDIA's vGPU host driver and may take minutes. They are done again after a restart of
the host, before any machine starts. Nothing is touched as long as somebody uses the card.")]
    Mode {
        #[command(flatten)]
        gpu: GpuArg,
        /// What it is to be
        mode: Mode,
    },
    /// Keep a card out of use: who has it keeps it, nobody else is given it
    Withhold {
        #[command(flatten)]
        gpu: GpuArg,
        /// Why, for those who look
        #[arg(long, value_name = "TEXT", default_value = "withheld by an administrator")]
        why: String,
    },
    /// Take a withheld or quarantined card back into use, if it passes its self-test
    Readmit {
        #[command(flatten)]
        gpu: GpuArg,
        /// Without a self-test; what can still be seen of it counts all the same
        #[arg(long)]
        force: bool,
    },
    /// Look at the cards of this machine, without a manager
    Scan(ScanArgs),
}

/// A card.
#[derive(Debug, Args)]
pub struct GpuArg {
    /// PCI address, such as 0000:41:00.0, or id
    #[arg(value_name = "GPU", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    gpu: String,
}

/// What a card is between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// With vfio-pci
    Passthrough,
    /// With the host's driver
    Host,
    /// Divided into vGPUs
    Vgpu,
    /// Divided into MIG instances
    Mig,
}

impl Mode {
    const fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Host => "host",
            Self::Vgpu => "vgpu",
            Self::Mig => "mig",
        }
    }
}

impl GpuArg {
    fn path(&self, rest: &str) -> String {
        format!("/v1/gpus/{}{rest}", segment(&self.gpu))
    }
}

/// Runs `gvm gpu`.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn run(cx: &Context, command: GpuCommand) -> CliResult {
    match command {
        GpuCommand::List => list(cx).await,
        GpuCommand::Offers => offers(cx).await,
        GpuCommand::Plan => plan::show(cx).await,
        GpuCommand::Layout { command } => layout::run(cx, command).await,
        GpuCommand::Show(gpu) => {
            let view: GpuView = cx.client.get(&gpu.path("")).await?;
            cx.out.result(&view, || shown(&view))
        }
        GpuCommand::Mode { gpu, mode } => {
            let request = ChangeGpuMode { mode: mode.word().to_owned() };
            let view = cx.client.post_within(&gpu.path("/mode"), &request, MODE_DEADLINE).await?;
            told(cx, &view, &format!("in mode {}", mode.word()))
        }
        GpuCommand::Withhold { gpu, why } => {
            let view = cx.client.post(&gpu.path("/withhold"), &WithholdGpu { why }).await?;
            told(cx, &view, "withheld")
        }
        GpuCommand::Scan(_) => Err(CliError::new(ErrorCode::Internal, "a scan needs no manager")),
        GpuCommand::Readmit { gpu, force } => {
            let path = if force { "/readmit?force=true" } else { "/readmit" };
            let view = cx.client.post(&gpu.path(path), &json!({})).await?;
            told(cx, &view, "back in use")
        }
    }
}

fn told(cx: &Context, view: &GpuView, what: &str) -> CliResult {
    cx.out.result(view, || format!("{} ({}) is {what}; it stands at {}", view.address, view.model, view.state))
}

async fn list(cx: &Context) -> CliResult {
    let list: GpuList = cx.client.get("/v1/gpus").await?;
    list.findings.iter().for_each(|finding| cx.out.warning(finding));
    if list.gpus.is_empty() && !cx.out.is_json() {
        cx.out.say("this host has no GPU that the kernel shows; `gvm doctor` says more");
        return Ok(());
    }
    cx.out.result(&list, || rows(&list.gpus, cx.out.is_colored()))
}

fn rows(gpus: &[GpuView], colored: bool) -> String {
    let columns = [
        ("ADDRESS", Align::Left),
        ("MODEL", Align::Left),
        ("MEMORY", Align::Right),
        ("NODE", Align::Right),
        ("MODE", Align::Left),
        ("DRIVER", Align::Left),
        ("STATE", Align::Left),
        ("VM", Align::Left),
        ("REASON", Align::Left),
    ];
    let row = |gpu: &GpuView| {
        vec![
            gpu.address.clone(),
            gpu.model.clone(),
            if gpu.memory_mib == 0 { String::new() } else { size(gpu.memory_mib) },
            gpu.numa_node.map(|node| node.to_string()).unwrap_or_default(),
            gpu.mode.clone(),
            gpu.driver.clone(),
            gpu.state.clone(),
            gpu.vm.clone().unwrap_or_default(),
            reasons(gpu),
        ]
    };
    table(&columns, gpus.iter().map(row).collect(), colored)
}

/// Why it cannot be had, since when, and what brings it back; else what is worth knowing.
fn reasons(gpu: &GpuView) -> String {
    let since = gpu.since.as_ref().map(|since| format!("since {}", day(since)));
    let notes = gpu.notes.iter().map(|note| format!("note: {note}"));
    let all = gpu.reasons.iter().cloned().chain(since).chain(gpu.remedy.iter().cloned()).chain(notes);
    all.collect::<Vec<_>>().join("; ")
}

/// The day and the minute of a time of the wire.
fn day(at: &str) -> String {
    at.parse::<jiff::Timestamp>().map_or_else(|_| at.to_owned(), |at| at.strftime("%F %H:%M UTC").to_string())
}

fn shown(gpu: &GpuView) -> String {
    let function = |function: &crate::api::types::GpuFunctionView| {
        let driver = if function.driver.is_empty() { "no driver" } else { &function.driver };
        let along = if function.goes_along { "" } else { ", stays with the host" };
        format!("{} {} ({driver}){along}", function.address, function.class)
    };
    let known = |value: Option<u32>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let mode = if gpu.is_kept { format!("{}, kept", gpu.mode) } else { gpu.mode.clone() };
    card(&[
        ("Address", gpu.address.clone()),
        ("Id", gpu.id.clone()),
        ("Model", format!("{} ({})", gpu.model, gpu.pci_id)),
        ("Memory", if gpu.memory_mib == 0 { "unknown".to_owned() } else { size(gpu.memory_mib) }),
        ("State", gpu.state.clone()),
        ("VM", gpu.vm.clone().unwrap_or_default()),
        ("Reasons", gpu.reasons.join("\n")),
        ("Since", gpu.since.as_deref().map(day).unwrap_or_default()),
        ("Brought back by", gpu.remedy.clone().unwrap_or_default()),
        ("Notes", gpu.notes.join("\n")),
        ("Sanitised", gpu.sanitised.clone().unwrap_or_default()),
        ("Mode", mode),
        ("To be divided", gpu.shape.clone()),
        ("MIG instances", gpu.instances.join(", ")),
        ("Driver", gpu.driver.clone()),
        ("Goes back to", gpu.former.join(", ")),
        ("NUMA node", known(gpu.numa_node)),
        ("IOMMU group", gpu.iommu_group.map_or_else(|| "none".to_owned(), |group| group.to_string())),
        ("Group", gpu.group.iter().map(|member| member.words.clone()).collect::<Vec<_>>().join("\n")),
        ("Functions", gpu.functions.iter().map(function).collect::<Vec<_>>().join("\n")),
        ("Aperture", if gpu.aperture_mib == 0 { String::new() } else { size(gpu.aperture_mib) }),
        ("Resets", gpu.reset_methods.join(", ")),
        ("Link", gpu.link.clone()),
        ("Held by", gpu.holders.join("\n")),
        ("Health", gpu.health.clone()),
        ("Screen", if gpu.is_boot_display { "the host's".to_owned() } else { String::new() }),
        ("Function of", gpu.physical_function.clone().unwrap_or_default()),
        ("UUID", gpu.uuid.clone().unwrap_or_default()),
    ])
}

async fn offers(cx: &Context) -> CliResult {
    let list: OfferList = cx.client.get("/v1/offers").await?;
    if list.offers.is_empty() && !cx.out.is_json() {
        cx.out.say("this host has no GPU that gvm manages; `gvm gpu list` shows what there is");
        return Ok(());
    }
    cx.out.result(&list, || offered(&list.offers, cx.out.is_colored()))
}

fn offered(offers: &[OfferView], colored: bool) -> String {
    let columns = [
        ("REQUEST", Align::Left),
        ("MODEL", Align::Left),
        ("MEMORY", Align::Right),
        ("FREE", Align::Right),
        ("TOTAL", Align::Right),
        ("TOGETHER", Align::Left),
        ("ONE NODE", Align::Right),
        ("ONE SWITCH", Align::Right),
    ];
    let some = |count: u32| if count == 0 { String::new() } else { count.to_string() };
    let row = |offer: &OfferView| {
        vec![
            format!("--gpu {}", offer.request),
            offer.model.clone(),
            if offer.memory_mib == 0 { String::new() } else { size(offer.memory_mib) },
            offer.free.to_string(),
            offer.total.to_string(),
            offer.counts.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            some(offer.same_node),
            some(offer.same_switch),
        ]
    };
    table(&columns, offers.iter().map(row).collect(), colored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{GpuFunctionView, GroupMemberView};

    fn gpu() -> GpuView {
        GpuView {
            id: "GPU-5a".to_owned(),
            address: "0000:41:00.0".to_owned(),
            vendor: "NVIDIA".to_owned(),
            model: "NVIDIA A100 80GB PCIe".to_owned(),
            pci_id: "10de:20b5".to_owned(),
            memory_mib: 81_920,
            state: "in-use".to_owned(),
            reasons: Vec::new(),
            notes: Vec::new(),
            since: None,
            remedy: None,
            sanitised: Some("reset (flr), 2027-01-15 08:00 UTC".to_owned()),
            vm: Some("train.ann".to_owned()),
            mode: "passthrough".to_owned(),
            is_kept: false,
            shape: String::new(),
            instances: Vec::new(),
            driver: "vfio-pci".to_owned(),
            former: vec!["0000:41:00.0=nvidia".to_owned(), "0000:41:00.1=snd_hda_intel".to_owned()],
            numa_node: Some(0),
            iommu_group: Some(12),
            group: vec![GroupMemberView {
                address: "0000:41:00.0".to_owned(),
                words: "0000:41:00.0 (vfio-pci) is the card".to_owned(),
                is_blocking: false,
            }],
            functions: vec![GpuFunctionView {
                address: "0000:41:00.0".to_owned(),
                class: "3D accelerator".to_owned(),
                driver: "vfio-pci".to_owned(),
                goes_along: true,
            }],
            aperture_mib: 131_104,
            reset_methods: vec!["flr".to_owned(), "bus".to_owned()],
            link: "16.0 GT/s x16".to_owned(),
            holders: vec!["pid 812 (qemu-system-x86, domain gvm-1) has /dev/vfio/12 open".to_owned()],
            health: "ok".to_owned(),
            is_boot_display: false,
            physical_function: None,
            uuid: Some("GPU-5a".to_owned()),
        }
    }

    #[test]
    fn cards_are_listed_with_what_speaks_against_them() {
        let free = GpuView { state: "free".to_owned(), vm: None, mode: "host".to_owned(), ..gpu() };
        let blocked = GpuView {
            address: "0000:42:00.0".to_owned(),
            state: "blocked".to_owned(),
            numa_node: None,
            memory_mib: 0,
            reasons: vec!["it is the boot display: the host's screen is on it".to_owned()],
            ..free.clone()
        };
        let sick = GpuView {
            address: "0000:43:00.0".to_owned(),
            state: "withheld".to_owned(),
            reasons: vec!["Xid 79: GPU has fallen off the bus.".to_owned()],
            since: Some("2027-01-15T08:00:12.5Z".to_owned()),
            remedy: Some("gvm gpu readmit 0000:43:00.0".to_owned()),
            ..free.clone()
        };
        let noted =
            GpuView { address: "0000:44:00.0".to_owned(), notes: vec!["Xid 31: MMU Fault".to_owned()], ..free.clone() };
        insta::assert_snapshot!(rows(&[gpu(), blocked, sick, noted], false));
        insta::assert_snapshot!(shown(&gpu()));
    }

    #[test]
    fn offers_say_what_to_write() {
        let offer = OfferView {
            request: "a100-80gb".to_owned(),
            model: "NVIDIA A100 80GB PCIe".to_owned(),
            memory_mib: 81_920,
            total: 4,
            free: 2,
            counts: vec![1, 2],
            same_node: 2,
            same_switch: 0,
        };
        insta::assert_snapshot!(offered(&[offer], false));
    }
}
