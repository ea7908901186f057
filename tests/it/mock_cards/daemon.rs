//! The very program over the mock: `gvm serve` and the commands of an administrator. There is no libvirt behind it, so no
//! machine is started; everything about cards is as on a host that has some.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gvm::api::types::{GpuList, GpuPlan, LayoutResult, OfferList};

use super::{CARD, OTHER};
use crate::support::card_host::{CardHost, mounted};
use crate::support::kernel::HELPER;
use crate::support::run::{Ended, kill, run, until};

/// A manager of its own over a host of the mock's.
struct Served<'h> {
    host: &'h CardHost,
    dir: tempfile::TempDir,
    child: Child,
}

impl<'h> Served<'h> {
    #[track_caller]
    fn new(host: &'h CardHost) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "[manager]\nstate_dir = '{}'\nconfig_dir = '{}'\nsocket = '{}'\nlibvirt_uri = '{}'\naccelerator = 'emulation'\n\
             tick_seconds = 60\n[gpu]\nroot = '{}'\nnvml = '{}'\n",
            at("state"),
            at("etc"),
            at("api.sock"),
            "qemu+unix:///system?socket=/nonexistent",
            host.root().display(),
            host.nvml().display(),
        );
        std::fs::write(dir.path().join("gvm.toml"), config).unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(HELPER);
        command.arg("--config").arg(dir.path().join("gvm.toml")).arg("serve");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let served = Self { host, dir, child };
        let socket = served.dir.path().join("api.sock");
        until("the manager answers", Duration::from_secs(60), || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
        served
    }

    fn gvm(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(HELPER);
        command.arg("--config").arg(self.dir.path().join("gvm.toml")).args(arguments);
        run(command, Duration::from_secs(240))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, arguments: &[&str]) -> T {
        self.gvm(&[&["-o", "json"], arguments].concat()).json()
    }

    fn free(&self, request: &str) -> u32 {
        let offers: OfferList = self.json(&["gpu", "offers"]);
        offers.offers.iter().find(|offer| offer.request == request).map_or(0, |offer| offer.free)
    }

    fn state(&self, address: &str) -> String {
        let list: GpuList = self.json(&["gpu", "list"]);
        list.gpus.iter().find(|gpu| gpu.address == address).unwrap().state.clone()
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// Every verb of `gvm gpu`, by the program as it is shipped.
#[test]
fn the_program_divides_cards_and_tells_of_them() {
    let host = mounted!(("A100-80", CARD), ("L40S", OTHER));
    let served = Served::new(&host);
    assert_eq!((served.state(CARD), served.state(OTHER)), ("free".to_owned(), "free".to_owned()));
    served.gvm(&["gpu", "mode", OTHER, "vgpu"]).ok();
    assert_eq!((served.state(OTHER), served.free("vgpu:L40S-12Q")), ("divided".to_owned(), 4));
    let file = served.dir.path().join("layouts.yaml");
    let text = r#"
version: v1
mig-configs:
  mixed:
    - {devices: [0], mig-enabled: true, mig-devices: {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}}
"#;
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let rehearsed: LayoutResult = served.json(&["gpu", "layout", "import", file, "--dry-run"]);
    assert_eq!((rehearsed.cards.len(), rehearsed.cards[0].outcome.as_str()), (1, "would-change"));
    let done: LayoutResult = served.json(&["gpu", "layout", "import", file]);
    assert_eq!((done.cards[0].outcome.as_str(), &done.cards[0].why), ("changed", &None));
    let plan: GpuPlan = served.json(&["gpu", "plan"]);
    let card = plan.cards.iter().find(|card| card.address == CARD).unwrap();
    let lies: Vec<(&str, u32)> = card.instances.iter().map(|one| (one.profile.as_str(), one.start)).collect();
    assert_eq!((lies, card.is_fixed), (vec![("4g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)], true));
    assert_eq!((served.free("mig:4g.40gb"), served.free("mig:3g.40gb")), (1, 0));
    let exported = served.gvm(&["gpu", "layout", "export"]).text();
    assert!(exported.contains("4g.40gb: 1") || exported.contains("\"4g.40gb\": 1"), "{exported}");
    // What somebody does beside gvm is told.
    served.host.change(|state| {
        let card = state.card_mut(CARD).unwrap();
        let id = card.instances[0].id;
        card.instances.retain(|instance| instance.id != id);
    });
    let list: GpuList = served.json(&["gpu", "list"]);
    let reasons = &list.gpus.iter().find(|gpu| gpu.address == CARD).unwrap().reasons;
    assert!(reasons.iter().any(|why| why.contains("is not divided as it should be")), "{reasons:?}");
    served.gvm(&["gpu", "mode", CARD, "host"]).ok();
    assert_eq!(served.state(CARD), "free");
    let error = served.gvm(&["gpu", "layout", "import", file, "--selected-config", "other"]).fails(2);
    assert!(error.contains("mixed"), "{error}");
}
