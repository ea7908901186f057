//! Finds out what runs guest code, by running some.
//!
//! A device node proves nothing, and neither do firmware or a short program: there are hosts on whose `/dev/kvm`
//! those run and every ordinary kernel hangs in its decompressor. So an ordinary kernel is started the way that
//! members' machines are, and its first line after decompression is the proof.
//!
//! ```text
//!   no /dev/kvm, or it does not open ------------------------------> Emulation
//!   remembered for this boot, QEMU and kernel ---------------------> as remembered
//!   no kernel to try ----------------------------------------------> Emulation ("not proven"), not remembered
//!   QEMU -accel kvm -kernel K: "Linux version" within the deadline -> Kvm, else Emulation; both remembered
//! ```
//!
//! Without proof it is emulation: that is slow but always right, while a machine on a broken KVM never comes up.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

use super::{HostRoot, facts};
use crate::child::{self, ChildCall};
use crate::model::host::Accelerator;

/// A sound host takes about a second; a very busy one a few.
const DEADLINE: Duration = Duration::from_secs(10);

/// The first words of a running kernel.
const PROOF: &str = "Linux version ";

/// More than this is not read from the serial line: the proof is on its first lines.
const MAX_OUTPUT: usize = 64 << 10;

/// Larger files are no kernels, bytes.
const MAX_KERNEL: u64 = 128 << 20;

/// Arguments of the trial kernel. `edd=off` leaves out a BIOS call that takes long on some firmware.
const CMDLINE: &str = "console=ttyS0 earlyprintk=ttyS0,115200 edd=off panic=-1";

/// Where the verdict is remembered, in the state folder.
const FILE: &str = "accelerator.json";

/// How to find out.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The host.
    pub root: HostRoot,
    /// QEMU, by name or path.
    pub qemu: OsString,
    /// Where the verdict is remembered.
    pub state_dir: PathBuf,
    /// Kernels of imported images, best first. The host's own kernel is tried after them.
    pub kernels: Vec<PathBuf>,
    /// How long the kernel may take.
    pub deadline: Duration,
}

impl Probe {
    /// For this host.
    pub fn new(state_dir: impl Into<PathBuf>, kernels: Vec<PathBuf>) -> Self {
        Self {
            root: HostRoot::default(),
            qemu: "qemu-system-x86_64".into(),
            state_dir: state_dir.into(),
            kernels,
            deadline: DEADLINE,
        }
    }

    /// Finds out. Never fails: what hinders the proof is the reason for emulation. Takes up to the deadline, and
    /// milliseconds where the verdict is remembered.
    pub async fn run(&self) -> Accelerator {
        if let Some(why) = self.device_fault() {
            return Accelerator::Emulation { why };
        }
        let Some((kernel, digest)) = self.kernel().await else {
            let why = "KVM is there but not proven yet, because there is no kernel to try it with; import the image \
                       `tiny`, which is tried at once"
                .to_owned();
            return Accelerator::Emulation { why };
        };
        let key = self.key(digest).await;
        if let Some(verdict) = self.remembered(&key) {
            return verdict;
        }
        match self.trial(&kernel).await {
            Trial::Verdict(verdict) => {
                self.remember(&key, &verdict);
                verdict
            }
            Trial::NotRun(why) => Accelerator::Emulation { why },
        }
    }

    /// What is wrong with the device node; QEMU opens it for reading and writing.
    fn device_fault(&self) -> Option<String> {
        let path = self.root.join("dev/kvm");
        let error = std::fs::OpenOptions::new().read(true).write(true).open(path).err()?;
        Some(match error.kind() {
            std::io::ErrorKind::NotFound => {
                "this host has no /dev/kvm: its CPU has no virtualisation, the firmware has switched it off, or the \
                 kernel module is not loaded (kvm_intel or kvm_amd)"
                    .to_owned()
            }
            std::io::ErrorKind::PermissionDenied => {
                "gvm may not open /dev/kvm; its user has to be in the group kvm".to_owned()
            }
            _ => format!("/dev/kvm does not open: {error}"),
        })
    }

    /// The first usable kernel with its digest.
    async fn kernel(&self) -> Option<(PathBuf, String)> {
        let release = self.root.read("proc/sys/kernel/osrelease").unwrap_or_default();
        let own = self.root.join(format!("boot/vmlinuz-{release}"));
        let candidates: Vec<PathBuf> = self.kernels.iter().cloned().chain([own]).collect();
        let look = move || {
            candidates.into_iter().find_map(|path| {
                let size = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?.len();
                let bytes = if size <= MAX_KERNEL { std::fs::read(&path).ok()? } else { return None };
                Some((path, hex::encode(Sha256::digest(&bytes))))
            })
        };
        tokio::time::timeout(self.deadline, tokio::task::spawn_blocking(look)).await.ok()?.ok()?
    }

    async fn key(&self, kernel: String) -> Key {
        let boot = self.root.read("proc/sys/kernel/random/boot_id").unwrap_or_default();
        let qemu = facts::version(Path::new(&self.qemu), "--version").await;
        Key { boot, qemu: qemu.map(|v| v.to_string()).unwrap_or_default(), kernel }
    }

    fn remembered(&self, key: &Key) -> Option<Accelerator> {
        let text = std::fs::read_to_string(self.state_dir.join(FILE)).ok()?;
        let found: Remembered = serde_json::from_str(&text).ok()?;
        // Without a boot id nothing may be remembered: the next boot could be of another machine.
        (found.key == *key && !key.boot.is_empty() && !key.qemu.is_empty()).then_some(found.verdict)
    }

    /// Failing to remember only costs another trial at the next start.
    fn remember(&self, key: &Key, verdict: &Accelerator) {
        let found = Remembered { key: key.clone(), verdict: verdict.clone() };
        let (path, temp) = (self.state_dir.join(FILE), self.state_dir.join(format!("{FILE}.part")));
        let written = serde_json::to_vec_pretty(&found).map_err(std::io::Error::other).and_then(|text| {
            let mut file = std::fs::File::create(&temp)?;
            file.write_all(&text)?;
            std::fs::rename(&temp, &path)
        });
        if let Err(error) = written {
            tracing::info!(path = %path.display(), %error, "the accelerator is not remembered");
        }
    }

    /// Runs the kernel until its first words, the deadline, or the end of QEMU.
    async fn trial(&self, kernel: &Path) -> Trial {
        let mut call = ChildCall::new(&self.qemu, self.deadline)
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none"])
            .args(["-accel", "kvm", "-machine", "q35", "-cpu", "host", "-smp", "1", "-m", "128"])
            .args(["-serial", "stdio", "-append", CMDLINE])
            .args(["-kernel".as_ref(), kernel.as_os_str()]);
        let mut child = match call.command().spawn() {
            Ok(child) => child,
            Err(error) => return Trial::NotRun(format!("QEMU cannot be started to try KVM: {error}")),
        };
        let mut said = String::new();
        let ended = match child.stdout.take() {
            Some(stdout) => tokio::time::timeout(self.deadline, watch(stdout, &mut said)).await.is_ok(),
            None => true,
        };
        let is_proven = said.contains(PROOF);
        let mut complaint = String::new();
        if ended
            && !is_proven
            && let Some(stderr) = child.stderr.take()
        {
            let (mut bytes, mut stderr) = (Vec::new(), stderr.take(4096));
            let _ = tokio::time::timeout(Duration::from_secs(1), stderr.read_to_end(&mut bytes)).await;
            complaint = one_line(&String::from_utf8_lossy(&bytes), "");
        }
        child::end(&mut child).await;
        Trial::Verdict(match (is_proven, ended) {
            (true, _) => Accelerator::Kvm,
            (false, true) => Accelerator::Emulation { why: format!("QEMU cannot use KVM on this host: {complaint}") },
            (false, false) => Accelerator::Emulation {
                why: format!(
                    "KVM is there, but an ordinary kernel did not come up on it within {} s ({})",
                    self.deadline.as_secs_f32(),
                    match one_line(&said, "").as_str() {
                        "" => "it printed nothing".to_owned(),
                        last => format!("its last line was {last:?}"),
                    },
                ),
            },
        })
    }
}

/// How a trial ended.
enum Trial {
    /// With a verdict that holds until the next boot.
    Verdict(Accelerator),
    /// It could not be made.
    NotRun(String),
}

/// What a verdict depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    boot: String,
    qemu: String,
    kernel: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    key: Key,
    verdict: Accelerator,
}

/// Collects output until the proof, the bound, or the end.
async fn watch(mut stdout: tokio::process::ChildStdout, said: &mut String) {
    let mut buffer = [0; 1024];
    while said.len() < MAX_OUTPUT && !said.contains(PROOF) {
        match stdout.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => said.push_str(&String::from_utf8_lossy(buffer.get(..count).unwrap_or_default())),
        }
    }
}

/// The last line that says something, cut.
fn one_line(text: &str, or: &str) -> String {
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or(or);
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
#[path = "accelerator_tests.rs"]
mod tests;
