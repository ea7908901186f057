//! What is done to a card between two machines, and the kernel's log: the real backend and helper on a tree of files.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gvm::auth::policy::Action;
use gvm::gpu::{BindError, GpuBackend as _, GpuOptions, HostGpus};
use gvm::manager::gpus::GpuState;
use gvm::model::card::history::{SanitiseJob, SanitiseMethod, SanitiseWay};

use crate::support::kernel::{HELPER, Kernel, at};
use crate::support::world::World;

const CARD: &str = "0000:41:00.0";
const SOUND: &str = "0000:41:00.1";
const OTHER: &str = "0000:42:00.0";

/// A card with VFIO whose sound is with VFIO as well, and a second one.
fn kernel(methods: &str) -> Kernel {
    let mut kernel = Kernel::new();
    kernel.card("0000:41:00", Some("vfio-pci"), 1);
    kernel.card("0000:42:00", Some("nvidia"), 2);
    for address in [CARD, OTHER] {
        set(&kernel, address, "reset_method", methods);
        set(&kernel, address, "reset", "");
    }
    set(&kernel, SOUND, "reset", "");
    kernel
}

fn set(kernel: &Kernel, address: &str, file: &str, content: &str) {
    kernel.write(&format!("sys/devices/pci/{address}/{file}"), content);
}

fn resets(kernel: &Kernel) -> Vec<String> {
    let read = |address: &str| std::fs::read_to_string(kernel.device_path(address, "reset")).unwrap();
    [CARD, SOUND, OTHER].map(read).into_iter().collect()
}

fn job(card: &str) -> SanitiseJob {
    SanitiseJob { card: at(card), way: SanitiseWay::Reset }
}

async fn refused(kernel: &Kernel, card: &str) -> String {
    match kernel.host().sanitise(&job(card)).await {
        Err(BindError::Refused(why)) => {
            assert_eq!(resets(kernel), ["", "", ""], "nothing was touched");
            why
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_card_is_reset_by_itself_alone() {
    let kernel = kernel("flr bus\n");
    let host = kernel.host();
    assert_eq!(host.sanitise(&job(CARD)).await, Ok(SanitiseMethod::Reset("flr".to_owned())));
    assert_eq!(resets(&kernel), ["1\n", "", ""]);
    // And again: a reset is never done already.
    assert_eq!(host.sanitise(&job(CARD)).await, Ok(SanitiseMethod::Reset("flr".to_owned())));
}

#[tokio::test]
async fn a_reset_that_reaches_others_or_what_is_in_use_is_refused() {
    assert!(refused(&kernel("flr\n"), OTHER).await.contains("is not with VFIO"));
    assert!(refused(&kernel("flr\n"), SOUND).await.contains("no way to reset it"));
    assert!(refused(&kernel("\n"), CARD).await.contains("no way to reset it"));
    assert!(refused(&kernel("flr\n"), "0000:99:00.0").await.contains("no way to reset it"));
    let why = refused(&kernel("bus flr\n"), CARD).await;
    assert!(why.contains("can only be reset with its bus (bus), and 0000:41:00.1 is on it as well"), "{why}");
    assert!(refused(&kernel("magic\n"), CARD).await.contains("would be reset by magic"));
    // Somebody has it, or its sound, open.
    for node in ["/dev/vfio/1", "/dev/snd/controlC3"] {
        let kernel = kernel("flr\n");
        kernel.write(&format!("sys/devices/pci/{SOUND}/sound/card3/controlC3/dev"), "116:9");
        kernel.holder(77, "qemu-system-x86", node);
        let why = refused(&kernel, CARD).await;
        assert!(why.contains("pid 77 (qemu-system-x86)"), "{why}");
    }
    // The host uses another function of its slot.
    let mut shared = kernel("flr\n");
    shared.device("0000:41:00.2", "10de:1ad6", 0x0c_0330, Some("xhci_hcd"));
    assert!(refused(&shared, CARD).await.contains("shares its slot with 0000:41:00.2, which the host uses (xhci_hcd)"));
    // Virtual functions, and kernels that hang at the reset of a card that can have some.
    let divided = kernel("flr\n");
    set(&divided, CARD, "sriov_totalvfs", "16\n");
    set(&divided, CARD, "sriov_numvfs", "4\n");
    assert!(refused(&divided, CARD).await.contains("virtual functions that are switched on"));
    set(&divided, CARD, "sriov_numvfs", "0\n");
    divided.write("proc/sys/kernel/osrelease", "7.0.0-14-generic\n");
    assert!(refused(&divided, CARD).await.contains("kernel 7.0.0-14-generic hangs at the reset"));
    divided.write("proc/sys/kernel/osrelease", "6.12.48-amd64\n");
    assert_eq!(divided.host().sanitise(&job(CARD)).await, Ok(SanitiseMethod::Reset("flr".to_owned())));
    // One that is lost already.
    let lost = kernel("flr\n");
    lost.write(&format!("sys/devices/pci/{CARD}/config"), [0xff_u8; 64]);
    assert!(refused(&lost, CARD).await.contains("does not answer (its config space reads 0xffff)"));
}

/// Case A-card-lost-after-stop: it does not come back from its reset.
#[test]
fn a_card_that_does_not_answer_after_its_reset_is_told() {
    let kernel = kernel("flr\n");
    // A pipe: the helper waits in its write until somebody reads, and says before that it is about to write.
    let reset = format!("sys/devices/pci/{CARD}/reset");
    kernel.block(&reset);
    let mut command = Command::new(HELPER);
    command.args(["helper", "reset-function", "--root"]).arg(kernel.root()).args(["--patience-ms", "500", CARD]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let about = lines.find(|line| line.contains(r#""step":"write""#)).unwrap();
    assert!(about.contains("/reset"), "{about}");
    kernel.write(&format!("sys/devices/pci/{CARD}/config"), [0xff_u8; 64]);
    let written = std::fs::read_to_string(kernel.path(&reset)).unwrap();
    let last = lines.last().unwrap();
    assert!(last.contains(r#""kind":"failed""#) && last.contains("after its reset: its config space reads"), "{last}");
    assert_eq!((written.as_str(), child.wait().unwrap().success()), ("1\n", false));
}

#[tokio::test]
async fn a_reset_that_hangs_is_given_up_and_the_slot_left_alone() {
    let kernel = kernel("flr\n");
    kernel.block(&format!("sys/devices/pci/{CARD}/reset"));
    let host = HostGpus::new(kernel.options(Duration::from_secs(1)));
    let error = host.sanitise(&job(CARD)).await.unwrap_err();
    assert!(
        matches!(&error, BindError::Stuck(why) if why.contains("writing 1 to") && why.contains("reset")),
        "{error}"
    );
}

#[tokio::test]
async fn a_configured_command_has_the_address_a_deadline_and_a_last_word() {
    let kernel = kernel("flr\n");
    let script = |body: &str| {
        let path = kernel.path("scrub");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (host, mark) = (kernel.host(), kernel.path("mark"));
    let run = async |body: &str, seconds| {
        let words = vec![script(body), "--card={address}".to_owned(), mark.to_str().unwrap().to_owned()];
        host.sanitise(&SanitiseJob { card: at(CARD), way: SanitiseWay::Command { words, seconds } }).await
    };
    let done = run(r#"echo "$1" > "$2""#, 20).await;
    assert!(matches!(&done, Ok(SanitiseMethod::Command(program)) if program.ends_with("/scrub")), "{done:?}");
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), format!("--card={CARD}\n"));
    let failed = run("echo starting >&2; echo 'row 7 is not zero' >&2; exit 3", 20).await;
    assert_eq!(failed, Err(BindError::Failed(format!("{CARD}: row 7 is not zero"))));
    let late = run("exec sleep 60", 1).await;
    assert!(
        matches!(&late, Err(BindError::Failed(why)) if why.contains("did not end within 1 s and was killed")),
        "{late:?}"
    );
    let way = SanitiseWay::Command { words: vec!["/no/such/program".to_owned()], seconds: 5 };
    let missing = host.sanitise(&SanitiseJob { card: at(CARD), way }).await;
    assert!(matches!(&missing, Err(BindError::Failed(why)) if why.contains("is not installed")), "{missing:?}");
    assert_eq!(resets(&kernel), ["", "", ""]);
}

#[tokio::test]
async fn the_kernels_log_is_read_below_the_root() {
    let kernel = kernel("flr\n");
    let host = HostGpus::new(GpuOptions { ..kernel.options(Duration::from_secs(5)) });
    assert!(host.kernel_log(None).await.unwrap_err().contains("cannot be read"));
    kernel.write("dev/kmsg", "6,1,10,-;one\n SUBSYSTEM=pci\n4,2,20,-;two\n4,3,30,-;three\n");
    let texts = |batch: gvm::gpu::LogBatch| batch.records.into_iter().map(|record| record.text).collect::<Vec<_>>();
    assert_eq!(texts(host.kernel_log(Some(1)).await.unwrap()), ["two", "three"]);
    assert!(texts(host.kernel_log(Some(3)).await.unwrap()).is_empty());
}

/// Lines of a kernel's log, each file named by its case, read by the real backend of a manager of its own.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_kernel_says_of_a_card_decides_where_it_stands() {
    let cases = [
        ("off-the-bus", GpuState::Withheld, "Xid 79: GPU has fallen off the bus."),
        ("off-the-bus-without-xid", GpuState::Withheld, "it has fallen off the bus and does not respond to commands"),
        ("off-the-bus-line-by-line", GpuState::Withheld, "it has fallen off the bus and does not respond to commands"),
        ("gsp-timeout-then-reset", GpuState::Draining, "Xid 119: Timeout after 45s of waiting for RPC response"),
        ("gsp-timeout-then-reboot", GpuState::Withheld, "Xid 154: GPU recovery action changed from 0x1"),
        ("row-remap", GpuState::Draining, "Xid 63: Row Remapper: New row marked for remapping"),
        ("applications", GpuState::Free, ""),
        ("lost-after-reset", GpuState::Withheld, "not ready 65535ms after FLR; giving up"),
        ("slow-after-reset", GpuState::Free, ""),
        ("stuck-in-d3cold", GpuState::Withheld, "Unable to change power state from D3cold to D0, device inaccessible"),
        ("fatal-error", GpuState::Draining, "PCIe Bus Error: severity=Uncorrectable (Fatal)"),
        ("corrected-errors", GpuState::Free, ""),
        ("another-card", GpuState::Free, ""),
        ("by-a-program", GpuState::Free, ""),
        ("rubbish", GpuState::Free, ""),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kmsg");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), cases.len(), "every fixture is a case");
    for (name, expected, why) in cases {
        let mut kernel = Kernel::new();
        kernel.card("0000:41:00", Some("nvidia"), 1);
        kernel.write("dev/kmsg", std::fs::read(folder.join(format!("{name}.kmsg"))).unwrap());
        let world = World::new();
        let life = world.live_on(Arc::new(kernel.host())).await;
        let gpu = life.manager.gpu(&life.permit(Action::GpuSee), CARD).await.unwrap();
        assert_eq!(gpu.state, expected, "{name}: {:?}", gpu.reasons);
        let reasons = gpu.reasons.join("; ");
        assert!(reasons.contains(why) && !reasons.contains("name="), "{name}: {reasons}");
    }
}
