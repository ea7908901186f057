//! What goes wrong in NVML's changes, in words; and what does not come back.

use std::time::{Duration, Instant};

use gvm::gpu::{BindError, GpuBackend as _, GpuOptions, HostGpus};
use gvm::model::card::shape::{ShapeJob, parse_instance};
use gvm_nvml_mock::code;
use gvm_nvml_mock::state::{Fault, Holder};

use super::{CARD, FIRST, OTHER, changes, does, fails, refuses};
use crate::support::card_host::{CardHost, mounted};

const PLACE: &str = "3g.40gb@4:4";

fn error(host: &CardHost, call: &str, code: u32, times: Option<u32>) {
    host.change(|state| state.errors.insert(call.to_owned(), Fault { code, card: None, times }));
}

fn well(host: &CardHost) {
    host.change(|state| state.errors.clear());
}

#[test]
fn errors_of_a_change_say_what_to_do() {
    let host = mounted!(("H100", CARD));
    error(&host, "nvmlDeviceSetMigMode", code::NO_PERMISSION, None);
    assert_eq!(
        refuses(&host, "set-mig", &[CARD, "on"]),
        format!("{CARD}: switching MIG on: NVML wants root for it; run the manager as root (NO_PERMISSION)")
    );
    error(&host, "nvmlDeviceSetMigMode", code::IN_USE, None);
    assert!(refuses(&host, "set-mig", &[CARD, "on"]).ends_with("it is in use; end what runs on it first (IN_USE)"));
    well(&host);
    does(&host, "set-mig", &[CARD, "on"]);

    error(&host, "nvmlDeviceCreateGpuInstanceWithPlacement", code::INSUFFICIENT_RESOURCES, None);
    let text = refuses(&host, "make-instance", &[CARD, PLACE]);
    assert!(text.contains("making the GPU instance 3g.40gb@4:4: not enough of the card is left there"), "{text}");
    assert!(text.ends_with("(INSUFFICIENT_RESOURCES)"), "{text}");
    error(&host, "nvmlDeviceCreateGpuInstanceWithPlacement", code::NOT_SUPPORTED, None);
    assert!(refuses(&host, "make-instance", &[CARD, PLACE]).ends_with("(NOT_SUPPORTED)"));
    error(&host, "nvmlDeviceCreateGpuInstanceWithPlacement", code::GPU_IS_LOST, None);
    let text = fails(&host, "make-instance", &[CARD, PLACE], "failed");
    assert!(text.ends_with("the card has fallen off the bus; the host must be restarted (GPU_IS_LOST)"), "{text}");
    well(&host);

    does(&host, "make-instance", &[CARD, PLACE]);
    for call in ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"] {
        error(&host, call, code::IN_USE, None);
        assert!(refuses(&host, "remove-instance", &[CARD, PLACE]).contains("(IN_USE)"), "{call}");
        well(&host);
    }
    // The compute instance is gone by now; the rest follows, and making it again would mend it.
    assert!(changes(&host, "make-instance", &[CARD, PLACE]));
    assert!(changes(&host, "remove-instance", &[CARD, PLACE]));
}

#[test]
fn a_gpu_instance_without_its_compute_instance_is_taken_back() {
    let host = mounted!(("H100", CARD));
    does(&host, "set-mig", &[CARD, "on"]);
    error(&host, "nvmlGpuInstanceCreateComputeInstance", code::INSUFFICIENT_RESOURCES, None);
    let text = refuses(&host, "make-instance", &[CARD, PLACE]);
    assert!(text.contains("making the compute instance of 3g.40gb@4:4"), "{text}");
    assert!(host.state().cards[0].instances.is_empty());
    error(&host, "nvmlGpuInstanceDestroy", code::UNKNOWN, None);
    let text = fails(&host, "make-instance", &[CARD, PLACE], "failed");
    assert!(text.contains("and the GPU instance that was made for it stays"), "{text}");
    // The next try finds it, and finishes it.
    well(&host);
    assert_eq!(host.state().cards[0].instances.len(), 1);
    assert!(changes(&host, "make-instance", &[CARD, PLACE]));
}

/// Mediated devices and those of other programs are known to NVML alone.
#[test]
fn a_running_vgpu_keeps_its_instance_whatever_the_kernel_shows() {
    let host = mounted!(("H100", CARD));
    does(&host, "set-mig", &[CARD, "on"]);
    does(&host, "set-functions", &[CARD, "all"]);
    does(&host, "make-instance", &[CARD, PLACE]);
    does(&host, "make-instance", &[CARD, "1g.10gb@0:1"]);
    does(&host, "make-vgpu", &[FIRST, "H100-3-40C"]);
    host.change(|state| {
        let card = &mut state.cards[0];
        card.functions[0].is_in_use = true;
        // The function lost its driver, and its files with it.
        card.functions[0].driver = None;
    });
    let text = refuses(&host, "remove-instance", &[CARD, PLACE]);
    assert_eq!(text, format!("{CARD}: {PLACE} is in use: a running vGPU is on it"));
    assert!(changes(&host, "remove-instance", &[CARD, "1g.10gb@0:1"]));
}

#[test]
fn a_lost_card_is_told_and_others_are_changed() {
    let host = mounted!(("H100", CARD), ("H100", OTHER));
    host.change(|state| state.cards[0].is_lost = true);
    let text = fails(&host, "set-mig", &[CARD, "on"], "failed");
    assert_eq!(
        text,
        format!("{CARD}: finding the card: the card has fallen off the bus; the host must be restarted (GPU_IS_LOST)")
    );
    assert!(changes(&host, "set-mig", &[OTHER, "on"]));
    assert!(fails(&host, "reset", &[CARD], "failed").contains("is lost"));
    host.change(|state| state.cards[1].driver = None);
    assert!(refuses(&host, "set-mig", &[OTHER, "off"]).contains("is without a driver"));
    host.change(|state| {
        state.cards[1].driver = Some("nvidia".to_owned());
        state.dropped.push(OTHER.to_owned());
    });
    assert!(refuses(&host, "set-mig", &[OTHER, "off"]).ends_with("NVML does not know the card (NOT_FOUND)"));
}

/// The manager's own look at the cards, which has them open for a moment.
#[test]
fn a_look_of_the_one_who_asks_is_waited_out() {
    let host = mounted!(("H100", CARD));
    let open = |pid: u32| {
        let holder = Holder { pid, comm: "gvm".to_owned(), node: "/dev/nvidia0".to_owned() };
        host.change(|state| state.holders = vec![holder]);
    };
    open(std::process::id());
    let refused = refuses(&host, "set-mig", &[CARD, "on"]);
    assert!(refused.ends_with("has /dev/nvidia0 open"), "it does not end: {refused}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            host.change(|state| state.holders.clear());
        });
        assert!(changes(&host, "set-mig", &[CARD, "on"]));
    });
    // Anybody else's is refused at once.
    open(std::process::id() + 1);
    let begin = Instant::now();
    refuses(&host, "set-mig", &[CARD, "off"]);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_change_that_does_not_come_back_is_named_and_ended() {
    let host = mounted!(("H100", CARD), ("H100", OTHER));
    host.change(|state| state.latency.insert("nvmlDeviceCreateGpuInstanceWithPlacement".to_owned(), 60_000));
    let gpus = HostGpus::new(GpuOptions { bind_patience: Duration::from_millis(500), ..host.options() });
    let on = |card: &str| ShapeJob::MigMode { card: card.parse().unwrap(), is_on: true };
    gpus.reshape(&on(CARD)).await.unwrap();
    let instance = parse_instance(PLACE).unwrap();
    let begin = Instant::now();
    let job = ShapeJob::MakeInstance { card: CARD.parse().unwrap(), instance };
    let error = gpus.reshape(&job).await.unwrap_err();
    let BindError::Stuck(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("NVML: making the GPU instance 3g.40gb@4:4"), "{text}");
    assert!(text.ends_with("it was killed") && begin.elapsed() < Duration::from_secs(30), "{text}");
    // The other card goes on.
    gpus.reshape(&on(OTHER)).await.unwrap();
    assert_eq!(host.state().cards[1].mig, (true, true));
    host.change(|state| state.latency.clear());
    host.gpus().reshape(&job).await.unwrap();
    assert_eq!(host.state().cards[0].instances.len(), 1);
}
