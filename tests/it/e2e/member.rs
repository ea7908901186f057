//! A member of the group `gvm` on a site with manager and gateway.

use std::process::Command;

use crate::support::run::{Ended, run};
use crate::support::site::{BOOT, CONFIG, Daemon, Site, config_for_guests, image};

/// Alice, with everything that she needs.
pub struct Member {
    // In the order of their end.
    gateway: Daemon,
    manager: Daemon,
    pub site: Site,
}

/// The member's login.
pub const ALICE: &str = "alice";

impl Member {
    /// With this image in the catalogue.
    #[track_caller]
    pub fn with_image(name: &str) -> Self {
        let site = Site::new(CONFIG);
        site.configure(&config_for_guests(site.host.dir()));
        site.add_user(ALICE, &["gvm"]);
        let manager = site.serve();
        site.gvm(&["image", "import", image(name).to_str().unwrap()]).ok();
        let gateway = site.gateway();
        Self { site, manager, gateway }
    }

    /// `gvm` as the member.
    #[track_caller]
    pub fn gvm(&self, arguments: &[&str]) -> Ended {
        self.site.run_as(ALICE, &[&["gvm"], arguments].concat())
    }

    /// A shell script as the member.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Ended {
        run(self.command(script), BOOT)
    }

    /// The same, not started.
    pub fn command(&self, script: &str) -> Command {
        self.site.as_user(ALICE, &["bash", "-euo", "pipefail", "-c", script])
    }

    /// A command inside the machine, through the gateway.
    #[track_caller]
    pub fn inside(&self, target: &str, command: &str) -> String {
        self.gvm(&["ssh", target, "--", "-o", "BatchMode=yes", command]).text()
    }

    /// Both services come to a clean end.
    #[track_caller]
    pub fn stop(self) {
        self.gateway.stop();
        self.manager.stop();
    }
}
