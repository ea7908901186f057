//! Taking cards from their drivers and giving them back: the backend, the real helper process, and a tree of files with
//! the kernel's rules.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gvm::gpu::{BindError, GpuBackend as _, GpuOptions, HostGpus};
use gvm::model::card::Health;
use gvm::model::card::function::Restore;
use serde_json::Value;

use crate::support::kernel::{HELPER, Kernel, at};

/// Long enough for a helper to start on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

fn back(texts: &[&str]) -> Vec<Restore> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn on(driver: &str, only: &str) -> (Option<String>, String) {
    (Some(driver.to_owned()), only.to_owned())
}

fn command(kernel: &Kernel, verb: &str, functions: &[&str]) -> Command {
    let mut command = Command::new(HELPER);
    command.args(["helper", verb, "--root"]).arg(kernel.root()).args(["--patience-ms", "20000", "--"]).args(functions);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Runs the helper to its end: its lines and whether it succeeded.
fn help(kernel: &Kernel, verb: &str, functions: &[&str]) -> (Vec<Value>, bool) {
    let out = command(kernel, verb, functions).output().unwrap();
    let lines = String::from_utf8(out.stdout).unwrap();
    (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), out.status.success())
}

/// The files that a helper wrote to, with the values.
fn writes(lines: &[Value]) -> Vec<(&str, &str)> {
    let writes = lines.iter().filter(|line| line["step"] == "write");
    writes.map(|line| (line["file"].as_str().unwrap(), line["value"].as_str().unwrap())).collect()
}

/// A-identical-ids.
#[tokio::test]
async fn of_two_equal_cards_the_named_one_is_taken() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    kernel.card("0000:65:00", Some("nvidia"), 2);
    kernel.run();
    let host = kernel.host();
    host.bind(&[at("0000:17:00.1"), at("0000:17:00.0")]).await.unwrap();
    assert_eq!(kernel.both("0000:17:00"), [on("vfio-pci", "vfio-pci"), on("vfio-pci", "vfio-pci")]);
    assert_eq!(kernel.both("0000:65:00"), [on("nvidia", "(null)"), on("snd_hda_intel", "(null)")]);
    assert_eq!(std::fs::read(kernel.path("sys/bus/pci/drivers/vfio-pci/new_id")).unwrap(), b"");
    let states = host.functions(&[at("0000:17:00.1"), at("0000:65:00.0"), at("0000:99:00.0")]).await.unwrap();
    let facts: Vec<_> = states.iter().map(|state| (state.is_there, state.is_vfio, state.is_open)).collect();
    assert_eq!(facts, [(true, true, Some(false)), (true, false, Some(false)), (false, false, Some(false))]);
    assert_eq!((&states[0].answers, states[0].iommu_group, states[0].class), (&Ok(()), Some(1), Some(0x04_0300)));
    assert_eq!(states[1].ids.unwrap().to_string(), "10de:1ff2");

    host.restore(&back(&["0000:17:00.0=nvidia", "0000:17:00.1=snd_hda_intel"])).await.unwrap();
    assert_eq!(kernel.both("0000:17:00"), [on("nvidia", ""), on("snd_hda_intel", "")]);
}

#[test]
fn every_write_is_told_and_nothing_is_written_twice() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    kernel.run();
    let (lines, is_done) = help(&kernel, "bind", &["0000:17:00.0"]);
    assert!(is_done, "{lines:?}");
    let device = "sys/bus/pci/devices/0000:17:00.0";
    let (only, unbind) = (format!("{device}/driver_override"), format!("{device}/driver/unbind"));
    let probe = ("sys/bus/pci/drivers_probe", "0000:17:00.0");
    assert_eq!(writes(&lines), [(only.as_str(), "vfio-pci"), (unbind.as_str(), "0000:17:00.0"), probe]);
    let steps: Vec<&str> = lines.iter().map(|line| line["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["begin", "write", "wrote", "write", "wrote", "write", "wrote", "wait", "done"]);
    let (lines, is_done) = help(&kernel, "bind", &["0000:17:00.0"]);
    assert_eq!((writes(&lines).len(), is_done, &lines[1]["is_changed"]), (0, true, &Value::Bool(false)));

    let (lines, is_done) = help(&kernel, "restore", &["0000:17:00.0=nvidia"]);
    assert!(is_done, "{lines:?}");
    assert_eq!(writes(&lines), [(only.as_str(), ""), (unbind.as_str(), "0000:17:00.0"), probe]);
    let (lines, is_done) = help(&kernel, "restore", &["0000:17:00.0=nvidia"]);
    assert_eq!((writes(&lines).len(), is_done), (0, true));
}

/// A-unbind-hang, second input: a pipe that nobody reads in place of `unbind`.
#[tokio::test]
async fn a_write_that_hangs_holds_up_nobody_else() {
    let mut kernel = Kernel::new();
    kernel.card("0000:8a:00", Some("nvidia"), 1);
    kernel.card("0000:8b:00", Some("nouveau"), 2);
    kernel.block("sys/bus/pci/drivers/nvidia/unbind");
    kernel.run();
    let host = HostGpus::new(kernel.options(SHORT));
    let begin = Instant::now();
    let stuck = async {
        let error = host.bind(&[at("0000:8a:00.0"), at("0000:8a:00.1")]).await.unwrap_err();
        (error, begin.elapsed())
    };
    let other = async {
        kernel.until("the helper hangs", |kernel| kernel.override_of("0000:8a:00.0") == "vfio-pci").await;
        let busy = host.bind(&[at("0000:8a:00.1")]).await.unwrap_err();
        assert!(matches!(&busy, BindError::Transient(text) if text.contains("0000:8a:00.0")), "{busy}");
        let found = host.discover().await.unwrap();
        let card = found.card(at("0000:8a:00.0")).unwrap();
        assert!(matches!(&card.health, Health::Unknown(why) if why.contains("is at it")), "{:?}", card.health);
        assert_eq!(found.card(at("0000:8b:00.0")).unwrap().health, Health::Ok);
        assert!(host.functions(&[at("0000:8a:00.0")]).await.unwrap()[0].answers.is_err());
        host.bind(&[at("0000:8b:00.0"), at("0000:8b:00.1")]).await.unwrap();
        begin.elapsed()
    };
    let ((error, after), meanwhile) = tokio::join!(stuck, other);
    let BindError::Stuck(text) = &error else { panic!("{error:?}") };
    for part in ["0000:8a:00.0", "/driver/unbind", "3 s"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(after >= SHORT && after < SHORT * 4 && meanwhile < after, "{after:?} {meanwhile:?}");
    assert_eq!(kernel.both("0000:8b:00"), [on("vfio-pci", "vfio-pci"), on("vfio-pci", "vfio-pci")]);
    assert_eq!(kernel.driver_of("0000:8a:00.1").as_deref(), Some("snd_hda_intel"), "siblings go after their card");
    // This one could be killed, so its slot is free again.
    kernel.unblock("sys/bus/pci/drivers/nvidia/unbind");
    kernel.host().bind(&[at("0000:8a:00.0")]).await.unwrap();
    host.bind(&[at("0000:8a:00.1")]).await.unwrap();
}

/// A manager that comes back keeps away from what its predecessor's helper is at.
#[tokio::test]
async fn a_helper_of_an_earlier_manager_is_found_again() {
    let mut kernel = Kernel::new();
    kernel.card("0000:8a:00", Some("nvidia"), 1);
    kernel.card("0000:8b:00", Some("nouveau"), 2);
    kernel.block("sys/bus/pci/drivers/nvidia/unbind");
    kernel.run();
    let mut left = command(&kernel, "bind", &["0000:8a:00.0"]).spawn().unwrap();
    kernel.until("the helper hangs", |kernel| kernel.override_of("0000:8a:00.0") == "vfio-pci").await;
    let host = kernel.host();
    let error = host.bind(&[at("0000:8a:00.1")]).await.unwrap_err();
    assert!(matches!(&error, BindError::Transient(text) if text.contains("an earlier manager")), "{error}");
    let found = host.discover().await.unwrap();
    assert!(!found.card(at("0000:8a:00.0")).unwrap().health.is_good());
    assert!(found.card(at("0000:8b:00.0")).unwrap().health.is_good());
    left.kill().unwrap();
    left.wait().unwrap();
    kernel.unblock("sys/bus/pci/drivers/nvidia/unbind");
    host.bind(&[at("0000:8a:00.0")]).await.unwrap();
}

#[test]
fn a_helper_whose_manager_is_gone_ends_its_job() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    kernel.run();
    let mut child = command(&kernel, "bind", &["0000:17:00.0", "0000:17:00.1"]).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(kernel.both("0000:17:00"), [on("vfio-pci", "vfio-pci"), on("vfio-pci", "vfio-pci")]);
}

#[tokio::test]
async fn what_the_kernel_refuses_is_told_with_the_file() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    std::fs::remove_file(kernel.path("sys/bus/pci/drivers_probe")).unwrap();
    // Takes numbers only.
    kernel.link("sys/bus/pci/drivers_probe", "/proc/self/oom_score_adj");
    kernel.run();
    let error = kernel.host().bind(&[at("0000:17:00.0")]).await.unwrap_err();
    let told = "0000:17:00.0: writing 0000:17:00.0 to /sys/bus/pci/drivers_probe: Invalid argument (EINVAL)";
    assert_eq!(error, BindError::Failed(told.to_owned()));
}

#[tokio::test]
async fn a_driver_that_does_not_come_is_no_success() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    std::fs::remove_file(kernel.path("sys/bus/pci/drivers_probe")).unwrap();
    kernel.link("sys/bus/pci/drivers_probe", "/dev/null");
    kernel.run();
    let error = HostGpus::new(kernel.options(SHORT)).bind(&[at("0000:17:00.0")]).await.unwrap_err();
    let BindError::Failed(text) = error else { panic!("{error:?}") };
    assert!(text.contains("vfio-pci has not taken it within 2.4 s; it is without a driver"), "{text}");
}

#[tokio::test]
async fn what_had_no_driver_gets_none() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("vfio-pci"), 1);
    kernel.brings("0000:17:00.0", "nvidia");
    kernel.write("sys/devices/pci/0000:17:00.0/driver_override", "vfio-pci\n");
    kernel.run();
    let (lines, is_done) = help(&kernel, "restore", &["0000:17:00.0="]);
    assert!(is_done && !writes(&lines).iter().any(|(file, _)| file.ends_with("drivers_probe")), "{lines:?}");
    assert_eq!((kernel.driver_of("0000:17:00.0"), kernel.override_of("0000:17:00.0").as_str()), (None, ""));
    // And again, by the backend, where nothing is left to do.
    kernel.host().restore(&back(&["0000:17:00.0="])).await.unwrap();
}

#[tokio::test]
async fn another_driver_than_before_is_sent_away() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("vfio-pci"), 1);
    kernel.driver("nvidia");
    kernel.brings("0000:17:00.0", "nouveau");
    kernel.run();
    let host = kernel.host();
    host.restore(&back(&["0000:17:00.0=nvidia"])).await.unwrap();
    assert_eq!(kernel.driver_of("0000:17:00.0").as_deref(), Some("nvidia"));
    let error = host.restore(&back(&["0000:17:00.0=nvidiafb"])).await.unwrap_err();
    assert!(matches!(&error, BindError::Failed(text) if text.contains("modprobe nvidiafb")), "{error}");
}

#[tokio::test]
async fn a_driver_that_takes_nothing_by_itself_is_told_to() {
    let mut kernel = Kernel::new();
    kernel.device("10000:e1:00.0", "10de:20b5", 0x03_0200, None);
    kernel.driver("nvidia");
    kernel.run();
    let host = kernel.host();
    host.bind(&[at("10000:e1:00.0")]).await.unwrap();
    assert_eq!(kernel.driver_of("10000:e1:00.0").as_deref(), Some("vfio-pci"));
    host.restore(&back(&["10000:e1:00.0=nvidia"])).await.unwrap();
    assert_eq!(kernel.driver_of("10000:e1:00.0").as_deref(), Some("nvidia"));
}

#[tokio::test]
async fn what_must_not_be_taken_is_not_touched() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    kernel.device("0000:18:00.4", "10de:1ff2", 0x03_0000, Some("nvidia"));
    kernel.link("sys/devices/pci/0000:18:00.4/physfn", "../0000:18:00.0");
    kernel.device("0000:00:02.0", "8086:3e92", 0x03_0000, Some("i915"));
    kernel.write("sys/devices/pci/0000:00:02.0/boot_vga", "1\n");
    kernel.device("0000:42:00.0", "144d:a80a", 0x01_0802, Some("nvme"));
    kernel.device("0000:19:00.0", "10de:20b5", 0x03_0200, Some("nvidia"));
    kernel.write("sys/devices/pci/0000:19:00.0/sriov_numvfs", "16\n");
    kernel.run();
    let host = kernel.host();
    for (address, why) in [
        ("0000:18:00.4", "is a virtual function"),
        ("0000:00:02.0", "is the boot display"),
        ("0000:42:00.0", "is no function of a GPU"),
        ("0000:19:00.0", "virtual functions"),
        ("0000:77:00.0", "is not there"),
    ] {
        // A whole card along with it is not touched either.
        let error = host.bind(&[at("0000:17:00.0"), at(address)]).await.unwrap_err();
        assert!(matches!(&error, BindError::Refused(text) if text.contains(why) && text.contains(address)), "{error}");
    }
    let error = host.restore(&[Restore { address: at("0000:17:00.0"), driver: Some("../x".to_owned()) }]).await;
    assert!(matches!(error, Err(BindError::Refused(_))), "{error:?}");
    assert_eq!(kernel.both("0000:17:00"), [on("nvidia", "(null)"), on("snd_hda_intel", "(null)")]);
    assert_eq!(kernel.override_of("0000:42:00.0"), "(null)");
    std::fs::remove_dir_all(kernel.path("sys/bus/pci/drivers/vfio-pci")).unwrap();
    let error = host.bind(&[at("0000:17:00.0")]).await.unwrap_err();
    assert_eq!(error, BindError::Refused("vfio-pci is not loaded (modprobe vfio-pci)".to_owned()));
}

/// A-unbind-hang, first input; A-foreign-vfio-devices.
#[tokio::test]
async fn what_somebody_has_open_is_not_taken_away() {
    let mut kernel = Kernel::new();
    kernel.card("0000:8a:00", Some("nvidia"), 1);
    kernel.write("proc/driver/nvidia/gpus/0000:8a:00.0/information", "Device Minor: \t 3\n");
    kernel.card("0000:c1:00", Some("vfio-pci"), 12);
    kernel.card("0000:c2:00", Some("nvidia"), 3);
    kernel.write("sys/devices/pci/0000:c2:00.1/sound/card1/pcmC1D3p/dev", "116:3\n");
    kernel.holder(812, "dcgm-exporter", "/dev/nvidia3");
    kernel.holder(813, "pipewire", "/dev/snd/pcmC1D3p");
    kernel.holder(4411, "qemu-system-x86", "/dev/vfio/12");
    kernel.run();
    let host = kernel.host();
    let begin = Instant::now();
    let error = host.bind(&[at("0000:8a:00.0"), at("0000:8a:00.1")]).await.unwrap_err();
    let told = "0000:8a:00.0 is in use: pid 812 (dcgm-exporter) has /dev/nvidia3 open";
    assert_eq!(error, BindError::Refused(told.to_owned()));
    assert!(begin.elapsed() < Duration::from_secs(2));
    let error = host.bind(&[at("0000:c2:00.0"), at("0000:c2:00.1")]).await.unwrap_err();
    assert!(matches!(&error, BindError::Refused(text) if text.contains("pid 813")), "{error}");
    let error = host.restore(&back(&["0000:c1:00.0=nvidia", "0000:c1:00.1=snd_hda_intel"])).await.unwrap_err();
    assert!(matches!(&error, BindError::Refused(text) if text.contains("pid 4411")), "{error}");
    assert_eq!(host.functions(&[at("0000:c1:00.1")]).await.unwrap()[0].is_open, Some(true));
    // The helper looks again, right before it writes.
    let (lines, is_done) = help(&kernel, "restore", &["0000:c1:00.0=nvidia"]);
    assert_eq!((writes(&lines).len(), is_done, &lines.last().unwrap()["kind"]), (0, false, &Value::from("refused")));
    assert_eq!(kernel.both("0000:c1:00"), [on("vfio-pci", "(null)"), on("vfio-pci", "(null)")]);
    // To leave it as it is asks nobody.
    host.bind(&[at("0000:c1:00.0")]).await.unwrap();
}

/// A-card-lost-after-stop.
#[tokio::test]
async fn a_card_that_is_lost_after_its_return_is_seen() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("vfio-pci"), 1);
    kernel.brings("0000:17:00.0", "nvidia");
    kernel.run();
    let host = kernel.host();
    host.restore(&back(&["0000:17:00.0=nvidia"])).await.unwrap();
    assert_eq!(host.functions(&[at("0000:17:00.0")]).await.unwrap()[0].answers, Ok(()));
    kernel.write("sys/devices/pci/0000:17:00.0/config", [0xff_u8; 256]);
    let state = host.functions(&[at("0000:17:00.0")]).await.unwrap().remove(0);
    assert_eq!(
        (state.answers, state.driver.as_deref()),
        (Err("its config space reads 0xffff".to_owned()), Some("nvidia"))
    );
}

#[tokio::test]
async fn a_helper_is_not_taken_at_its_word() {
    let mut kernel = Kernel::new();
    kernel.card("0000:17:00", Some("nvidia"), 1);
    kernel.run();
    let bind = async |helper: &str| {
        let options = GpuOptions { helper: helper.into(), ..kernel.options(Duration::from_secs(30)) };
        HostGpus::new(options).bind(&[at("0000:17:00.0")]).await.unwrap_err()
    };
    assert!(matches!(bind("/bin/true").await, BindError::Failed(text) if text.contains("0000:17:00.0")));
    assert!(matches!(bind("/bin/false").await, BindError::Failed(text) if text.contains("exit status: 1")));
    assert!(matches!(bind("/no/such/program").await, BindError::Transient(_)));
}

/// Kills the helper after each of its lines; the same job, done again, comes to the same end.
#[cfg(feature = "hold")]
#[tokio::test]
async fn a_helper_may_be_killed_at_each_step() {
    let jobs: [(&str, [&str; 2]); 2] = [
        ("bind", ["0000:17:00.0", "0000:17:00.1"]),
        ("restore", ["0000:17:00.1=snd_hda_intel", "0000:17:00.0=nvidia"]),
    ];
    for (verb, functions) in jobs {
        for step in 1.. {
            let mut kernel = Kernel::new();
            kernel.card("0000:17:00", Some("nvidia"), 1);
            kernel.run();
            let host = kernel.host();
            let both = [at("0000:17:00.0"), at("0000:17:00.1")];
            if verb == "restore" {
                host.bind(&both).await.unwrap();
            }
            let mut child =
                command(&kernel, verb, &functions).env("GVM_HOLD_HELPER", step.to_string()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(step).count();
            if lines < step {
                assert!(child.wait().unwrap().success() && step > 16, "{verb} has {lines} lines");
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            if verb == "bind" {
                host.bind(&both).await.unwrap();
                assert_eq!(
                    kernel.both("0000:17:00"),
                    [on("vfio-pci", "vfio-pci"), on("vfio-pci", "vfio-pci")],
                    "{step}"
                );
            } else {
                host.restore(&back(&functions)).await.unwrap();
                assert_eq!(kernel.both("0000:17:00"), [on("nvidia", ""), on("snd_hda_intel", "")], "{step}");
            }
        }
    }
}
