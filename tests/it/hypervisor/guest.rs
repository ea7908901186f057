//! A guest on its serial line, its files, and what the kernel says of its process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gvm::hypervisor::{ByteStream, Hypervisor};
use gvm::model::id::VmId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

/// Waits for a guest: an emulated one on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The emulated UART was seen to stop in the middle of a prompt, until something was typed. So long it is waited for more.
const SILENCE: Duration = Duration::from_secs(20);

/// An open serial line with all that it said so far.
pub struct Line {
    stream: Box<dyn ByteStream>,
    said: String,
    commands: u32,
}

impl Line {
    pub async fn open(hypervisor: &dyn Hypervisor, vm: VmId) -> Self {
        Self { stream: hypervisor.console(vm).await.unwrap(), said: String::new(), commands: 0 }
    }

    /// Reads until the text comes; what came before it and the text are taken off.
    pub async fn wait(&mut self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.said.find(text) {
                return self.said.drain(..at + text.len()).collect();
            }
            let mut chunk = [0; 4096];
            let nudge = end.min(Instant::now() + SILENCE);
            let read = tokio::time::timeout_at(nudge, self.stream.read(&mut chunk)).await;
            match read {
                Ok(Ok(length)) if length > 0 => self.said.push_str(&String::from_utf8_lossy(&chunk[..length])),
                Err(_) if Instant::now() < end => self.stream.write_all(b"\n").await.unwrap(),
                other => panic!("no {text:?} on the line ({other:?}), only: {}", self.said),
            }
        }
    }

    /// Runs a command in the guest's shell and gives what it prints.
    pub async fn run(&mut self, command: &str) -> String {
        self.commands += 1;
        let mark = self.commands;
        // The quotes keep the echo of the command, which the line also says, from looking like its output.
        let typed = format!("echo be''gin{mark}; {command}; echo e''nd{mark}\n");
        self.stream.write_all(typed.as_bytes()).await.unwrap();
        self.wait(&format!("begin{mark}")).await;
        let end = format!("end{mark}");
        let said = self.wait(&end).await;
        said.trim_end_matches(&end).trim().to_owned()
    }

    /// True where the line was closed from the other side.
    pub async fn ends(mut self) -> bool {
        let mut chunk = [0; 4096];
        let end = Instant::now() + PATIENCE;
        loop {
            match tokio::time::timeout_at(end, self.stream.read(&mut chunk)).await {
                Ok(Ok(0) | Err(_)) => return true,
                Ok(Ok(_)) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Runs a tool of the host; it has to succeed.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file of the machine's cgroup in the v1 or v2 hierarchy, found by its name.
pub fn cgroup(vm: VmId, file: &str) -> String {
    fn find(folder: &Path, part: &str, file: &str, depth: u32) -> Option<PathBuf> {
        let path = folder.join(file);
        if folder.to_string_lossy().contains(part) && path.exists() {
            return Some(path);
        }
        let entries = std::fs::read_dir(folder).ok().filter(|_| depth > 0)?;
        entries.flatten().filter(|e| e.path().is_dir()).find_map(|e| find(&e.path(), part, file, depth - 1))
    }
    // libvirt cuts long names: qemu-3-gvm-0190f5a4-1111-72
    let part = format!("gvm-{}", &vm.to_string()[..13]);
    let escaped = part.replace('-', "\\x2d");
    let root = Path::new("/sys/fs/cgroup");
    let path = find(root, &part, file, 6).or_else(|| find(root, &escaped, file, 6));
    let path = path.unwrap_or_else(|| panic!("no {file} of {vm}"));
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

/// QEMU's process.
pub fn pid_of(vm: VmId) -> i32 {
    let path = format!("/run/libvirt/qemu/gvm-{vm}.pid");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// The folder of an image, where it was built: `GVM_IMAGE_TINY` and so on, or the newest in the cache.
pub fn image(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(format!("GVM_IMAGE_{}", name.to_uppercase())).map(PathBuf::from);
    let cached = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        let prefix = format!("{name}-");
        let is_wanted = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix));
        let modified = |path: &PathBuf| path.metadata().and_then(|about| about.modified()).ok();
        let folders = std::fs::read_dir(cache.join("gvm/images")).ok()?;
        folders.flatten().map(|entry| entry.path()).filter(is_wanted).max_by_key(modified)
    };
    let found = named.or_else(cached).filter(|folder| folder.join("vmlinuz").exists());
    if found.is_none() {
        eprintln!("skipped: the image {name} is not built (vm-images/build.sh {name})");
    }
    found
}
