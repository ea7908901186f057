//! Reads what the doctor and admission need to know of this host. What cannot be read is left at its "unknown".

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;

use super::{HostRoot, kernel, routes, upkeep};
use crate::child::{ChildCall, SEARCH_PATH};
use crate::model::host::upkeep::HugePool;
use crate::model::host::{DiskSpace, HostFacts, Program, Resolver, Route, UefiFirmware, Version};
use crate::model::units::Mib;

/// A program that says its version, or a look into a table, takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The programs that gvm runs, with the argument that makes each say its version (empty: not asked).
const PROGRAMS: [(&str, &str); 10] = [
    ("qemu-system-x86_64", "--version"),
    ("qemu-img", "--version"),
    ("swtpm", "--version"),
    ("dnsmasq", "--version"),
    ("nft", "--version"),
    ("tc", "-V"),
    ("ip", "-V"),
    ("prlimit", ""),
    ("cp", ""),
    ("sha256sum", ""),
];

/// Folders of QEMU's firmware descriptions (its `docs/interop/firmware.json`).
const FIRMWARE_DIRS: [&str; 2] = ["usr/share/qemu/firmware", "etc/qemu/firmware"];

/// What is asked about.
#[derive(Clone, Debug, Default)]
pub struct FactsQuery {
    /// The folder whose space counts; the nearest one that exists is looked at.
    pub state_dir: PathBuf,
    /// Unix groups.
    pub groups: Vec<String>,
    /// Users.
    pub users: Vec<String>,
    /// The API's socket.
    pub socket: PathBuf,
    /// Where the gateway listens.
    pub listen: Option<SocketAddr>,
}

/// Reads everything; a second at most on a healthy host, each part with its own deadline.
pub async fn read(root: &HostRoot, query: &FactsQuery) -> HostFacts {
    let programs = join_all(PROGRAMS.map(|(name, argument)| async move {
        let found = find_program(name);
        let program = match found {
            Some(path) => Some(Program { version: version(&path, argument).await, path }),
            None => None,
        };
        (name.to_owned(), program)
    }));
    let quick = {
        let (root, query) = (root.clone(), query.clone());
        tokio::task::spawn_blocking(move || read_files(&root, &query))
    };
    let (programs, routes, has_sfq, clock, quick) = tokio::join!(
        programs,
        read_routes(),
        has_sfq(root),
        upkeep::clock(root),
        tokio::time::timeout(PATIENCE, quick)
    );
    let mut facts = quick.ok().and_then(Result::ok).unwrap_or_default();
    facts.upkeep.clock = clock;
    HostFacts { programs: programs.into_iter().collect(), routes, has_sfq, ..facts }
}

/// Space of the file system of a folder, or of the nearest folder above that exists.
pub fn disk_space(path: &Path) -> Option<DiskSpace> {
    let there = path.ancestors().find(|p| p.exists())?;
    let found = nix::sys::statvfs::statvfs(there).ok()?;
    let mib = |blocks: u64| Mib(blocks.saturating_mul(found.fragment_size()) >> 20);
    Some(DiskSpace { path: path.to_owned(), total: mib(found.blocks()), free: mib(found.blocks_available()) })
}

/// The memory of the host and what of it is available.
pub fn memory(root: &HostRoot) -> (Mib, Mib) {
    let text = root.read("proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Mib(kib.unwrap_or(0) >> 10)
    };
    (field("MemTotal"), field("MemAvailable"))
}

/// Physical address bits of the CPU, as `/proc/cpuinfo` says (`address sizes : 46 bits physical, 48 bits virtual`).
pub fn phys_bits(root: &HostRoot) -> Option<u32> {
    let text = root.read("proc/cpuinfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("address sizes")?.trim_start().strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Pools of huge pages, node by node.
pub fn huge_pools(root: &HostRoot) -> Vec<HugePool> {
    super::upkeep::huge_pools(root)
}

/// What is read from files alone.
fn read_files(root: &HostRoot, query: &FactsQuery) -> HostFacts {
    let (memory_total, memory_available) = memory(root);
    let group = |name: &String| (name.clone(), matches!(nix::unistd::Group::from_name(name), Ok(Some(_))));
    let user = |name: &String| (name.clone(), matches!(nix::unistd::User::from_name(name), Ok(Some(_))));
    HostFacts {
        memory_total,
        memory_available,
        cpus: count_cpus(&root.read("sys/devices/system/cpu/online").unwrap_or_default()),
        is_root: nix::unistd::Uid::effective().is_root(),
        programs: BTreeMap::new(),
        has_sfq: None,
        resolver: resolver(root),
        state_space: disk_space(&query.state_dir),
        routes: Vec::new(),
        firmware: firmware(root),
        groups: query.groups.iter().map(group).collect(),
        users: query.users.iter().map(user).collect(),
        kernel: kernel::read(root),
        upkeep: upkeep::read(root, query),
    }
}

/// Counts a kernel list such as `0-3,8,10-11`.
fn count_cpus(list: &str) -> u32 {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').filter_map(count).fold(0, u32::saturating_add)
}

fn resolver(root: &HostRoot) -> Resolver {
    let path = root.join("etc/resolv.conf");
    match (std::fs::symlink_metadata(&path), std::fs::metadata(&path)) {
        (_, Ok(_)) => Resolver::Present,
        (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => Resolver::Missing,
        (Ok(_), Err(e)) if e.kind() == std::io::ErrorKind::NotFound => {
            Resolver::Dangling(std::fs::read_link(&path).unwrap_or_default())
        }
        _ => Resolver::Unknown,
    }
}

fn firmware(root: &HostRoot) -> UefiFirmware {
    let mut found = UefiFirmware::default();
    let entries = FIRMWARE_DIRS.iter().filter_map(|dir| std::fs::read_dir(root.join(dir)).ok());
    for entry in entries.flatten().flatten() {
        let mut text = String::new();
        let read = std::fs::File::open(entry.path()).and_then(|file| file.take(64 << 10).read_to_string(&mut text));
        let Ok(value) = read.map(|_| serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()) else {
            continue;
        };
        let has = |at: &str, word: &str| {
            let list = value.pointer(at).and_then(serde_json::Value::as_array);
            list.is_some_and(|list| list.iter().any(|item| item.as_str() == Some(word)))
        };
        let file = value.pointer("/mapping/executable/filename").and_then(serde_json::Value::as_str);
        let is_there = file.is_some_and(|file| root.join(file.trim_start_matches('/')).exists());
        let is_ours = value.pointer("/targets/0/architecture").and_then(serde_json::Value::as_str) == Some("x86_64");
        if !is_there || !is_ours || !has("/interface-types", "uefi") {
            continue;
        }
        if has("/features", "enrolled-keys") {
            found.has_secure_boot = true;
        } else if !has("/features", "secure-boot") {
            found.has_plain = true;
        }
    }
    found
}

/// Where a program is on the path that children are given.
pub fn find_program(name: &str) -> Option<PathBuf> {
    SEARCH_PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// What a program says of its version.
pub async fn version(path: &Path, argument: &str) -> Option<Version> {
    if argument.is_empty() {
        return None;
    }
    let output = ChildCall::new(path, PATIENCE).args([argument]).run().await.ok()?;
    // nft and old tools say it on standard error.
    Version::find(&String::from_utf8_lossy(&output.stdout)).or_else(|| Version::find(&output.stderr))
}

async fn read_routes() -> Vec<Route> {
    let call = ChildCall::new("ip", PATIENCE).args(["-j", "-4", "route", "show", "table", "all"]).max_output(8 << 20);
    match call.run().await {
        Ok(output) if output.is_success() => {
            routes::parse(&String::from_utf8_lossy(&output.stdout)).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Whether the kernel has SFQ: by its files where they say yes, else by using it in a network namespace of its own.
async fn has_sfq(root: &HostRoot) -> Option<bool> {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let lists = ["modules.builtin", "modules.dep"].map(|list| format!("lib/modules/{release}/{list}"));
    let is_listed = |list: &String| root.read_list(list).is_some_and(|text| text.contains("/sch_sfq.ko"));
    if root.join("sys/module/sch_sfq").exists() || lists.iter().any(is_listed) {
        return Some(true);
    }
    let args = ["-n", "--", "tc", "qdisc", "add", "dev", "lo", "root", "sfq"];
    let output = ChildCall::new("unshare", PATIENCE).args(args).run().await.ok()?;
    if output.is_success() {
        return Some(true);
    }
    // Anything else, such as a missing right, says nothing about the kernel.
    output.stderr.contains("qdisc kind is unknown").then_some(false)
}

#[cfg(test)]
mod tests {
    use super::super::host_of as host;
    use super::*;

    #[test]
    fn memory_and_cpus_are_read_from_the_kernels_files() {
        let (_dir, root) = host(&[("proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   2048 kB\n")]);
        assert_eq!(memory(&root), (Mib(23437), Mib(2)));
        for (list, count) in [("0-3,8,10-11\n", 7), ("0", 1), ("", 0), ("x-y", 0), ("3-1", 0)] {
            assert_eq!(count_cpus(list), count, "{list}");
        }
    }

    #[test]
    fn a_dangling_resolver_names_its_target() {
        let (dir, root) = host(&[("etc/hostname", "x")]);
        assert_eq!(resolver(&root), Resolver::Missing);
        let target = "../run/systemd/resolve/stub-resolv.conf";
        std::os::unix::fs::symlink(target, dir.path().join("etc/resolv.conf")).unwrap();
        assert_eq!(resolver(&root), Resolver::Dangling(target.into()));
        std::fs::create_dir_all(dir.path().join("run/systemd/resolve")).unwrap();
        std::fs::write(dir.path().join("run/systemd/resolve/stub-resolv.conf"), "").unwrap();
        assert_eq!(resolver(&root), Resolver::Present);
    }

    #[test]
    fn firmware_counts_where_its_file_is_there() {
        let describe = |file: &str, features: &str| {
            format!(
                r#"{{"interface-types":["uefi"],"mapping":{{"executable":{{"filename":"/usr/share/OVMF/{file}"}}}},
                "targets":[{{"architecture":"x86_64"}}],"features":[{features}]}}"#
            )
        };
        let (dir, root) = host(&[
            ("usr/share/qemu/firmware/40.json", &describe("ms.fd", r#""secure-boot","enrolled-keys""#)),
            ("usr/share/qemu/firmware/60.json", &describe("plain.fd", r#""acpi-s3""#)),
            ("usr/share/qemu/firmware/broken.json", "{"),
            ("usr/share/OVMF/ms.fd", ""),
        ]);
        assert_eq!(firmware(&root), UefiFirmware { has_plain: false, has_secure_boot: true });
        std::fs::write(dir.path().join("usr/share/OVMF/plain.fd"), "").unwrap();
        assert_eq!(firmware(&root), UefiFirmware { has_plain: true, has_secure_boot: true });
    }

    #[tokio::test]
    async fn a_listed_module_needs_no_trial() {
        let (_dir, root) = host(&[
            ("proc/sys/kernel/osrelease", "6.1.0-1\n"),
            ("lib/modules/6.1.0-1/modules.dep", "kernel/net/sched/sch_sfq.ko.xz:\n"),
        ]);
        assert_eq!(has_sfq(&root).await, Some(true));
    }

    #[tokio::test]
    async fn this_host_can_be_read() {
        let query = FactsQuery {
            state_dir: "/nonexistent/state".into(),
            groups: vec!["root".to_owned(), "gvm-none".to_owned()],
            users: vec!["root".to_owned()],
            ..FactsQuery::default()
        };
        let facts = read(&HostRoot::default(), &query).await;
        assert!(facts.memory_total.0 > 0 && facts.cpus > 0, "{facts:?}");
        assert!(facts.state_space.is_some_and(|space| space.total.0 > 0));
        assert_eq!((facts.groups["root"], facts.groups["gvm-none"], facts.users["root"]), (true, false, true));
        assert!(facts.programs["cp"].is_some());
    }
}
