//! What an administrator keeps in order: memory pools, clock, ports, modes of folders.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use super::facts::FactsQuery;
use super::{HostRoot, ports};
use crate::child::ChildCall;
use crate::model::host::upkeep::{Clock, HugePool, NumaNode, PathMode, PortUse, UpkeepFacts};

/// Where the kernel keeps its memory nodes.
const NODES: &str = "sys/devices/system/node";

/// More nodes than any host has.
const MAX_NODES: usize = 4096;

/// systemd's own time service makes this file once it has the time.
const SYNCHRONISED: &str = "run/systemd/timesync/synchronized";

/// systemd's answer to what time it is takes milliseconds; without a bus it fails at once.
const PATIENCE: Duration = Duration::from_secs(3);

/// The database, in the state folder.
const DATABASE: &str = "gvm.db";

/// Reads everything but the clock.
pub(super) fn read(root: &HostRoot, query: &FactsQuery) -> UpkeepFacts {
    let nodes = nodes(root);
    let mut above: Vec<&Path> = query.state_dir.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    above.reverse();
    UpkeepFacts {
        hugepages: huge_pools(root),
        transparent_hugepages: root.read("sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
        nodes,
        clock: Clock::Unknown,
        gateway_port: query.listen.map_or(PortUse::Unknown, |listen| ports::find(root, listen)),
        state_path: above.into_iter().filter_map(|path| mode(root, path)).collect(),
        database: mode(root, &query.state_dir.join(DATABASE)),
        socket_dir: query.socket.parent().and_then(|path| mode(root, path)),
    }
}

/// Whether the clock follows others: by a file of systemd's, else by asking systemd, which asks the kernel.
pub(super) async fn clock(root: &HostRoot) -> Clock {
    if root.exists(SYNCHRONISED) {
        return Clock::Synchronised;
    }
    let call = ChildCall::new("timedatectl", PATIENCE).args(["show", "--property=NTPSynchronized", "--value"]);
    match call.run().await {
        Ok(output) if output.is_success() => clock_by(&String::from_utf8_lossy(&output.stdout)),
        _ => Clock::Unknown,
    }
}

fn clock_by(answer: &str) -> Clock {
    match answer.trim() {
        "yes" => Clock::Synchronised,
        "no" => Clock::Alone,
        _ => Clock::Unknown,
    }
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// All pools.
pub(super) fn huge_pools(root: &HostRoot) -> Vec<HugePool> {
    nodes(root).iter().flat_map(|node| pools(root, node.number)).collect()
}

fn nodes(root: &HostRoot) -> Vec<NumaNode> {
    let names = root.names(NODES, MAX_NODES).unwrap_or_default();
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    let cpus = |number: u32| root.read(&format!("{NODES}/node{number}/cpulist")).unwrap_or_default();
    numbers.into_iter().map(|number| NumaNode { number, cpus: cpus(number) }).collect()
}

/// Pools of one node by size.
fn pools(root: &HostRoot, node: u32) -> Vec<HugePool> {
    let folder = format!("{NODES}/node{node}/hugepages");
    let names = root.names(&folder, MAX_NODES).unwrap_or_default();
    let pool = |name: &String| {
        let page_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = |file: &str| root.read(&format!("{folder}/{name}/{file}"))?.parse::<u64>().ok();
        let (total, free) = (count("nr_hugepages")?, count("free_hugepages").unwrap_or_default());
        (total > 0).then_some(HugePool { node, page_kib, total, free })
    };
    let mut pools: Vec<HugePool> = names.iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.page_kib);
    pools
}

fn mode(root: &HostRoot, path: &Path) -> Option<PathMode> {
    let meta = std::fs::metadata(root.join(path.strip_prefix("/").unwrap_or(path))).ok()?;
    Some(PathMode { path: path.to_owned(), mode: meta.permissions().mode() & 0o7777, uid: meta.uid() })
}

#[cfg(test)]
mod tests {
    use super::super::host_of as host;
    use super::*;

    #[test]
    fn pools_and_nodes_are_in_order_and_junk_is_left_out() {
        let at = |node: u32, size: &str, file: &str| format!("{NODES}/node{node}/hugepages/hugepages-{size}/{file}");
        let (one, two, ten) = (at(1, "1048576kB", "nr_hugepages"), at(1, "2048kB", "nr_hugepages"), at(0, "x", "y"));
        let free = at(1, "1048576kB", "free_hugepages");
        let (_dir, root) = host(&[
            ("sys/devices/system/node/node10/cpulist", "\n"),
            ("sys/devices/system/node/node0/cpulist", "0-15,32-47\n"),
            ("sys/devices/system/node/node1/cpulist", "16-31\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            (&one, "64\n"),
            (&free, "32\n"),
            (&two, "0\n"),
            (&ten, "junk"),
        ]);
        let facts = read(&root, &FactsQuery::default());
        assert_eq!(facts.nodes.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 1, 10]);
        assert_eq!(facts.hugepages, [HugePool { node: 1, page_kib: 1 << 20, total: 64, free: 32 }]);
        assert_eq!(facts.transparent_hugepages.as_deref(), Some("madvise"));
        assert_eq!((facts.gateway_port, facts.clock), (PortUse::Unknown, Clock::Unknown));
    }

    #[test]
    fn modes_are_read_from_the_top() {
        let (dir, root) = host(&[("srv/gvm/gvm.db", ""), ("run/gvm/api.sock", "")]);
        let set = |path: &str, mode| {
            std::fs::set_permissions(dir.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set("srv", 0o750);
        set("run/gvm", 0o1777);
        set("srv/gvm/gvm.db", 0o644);
        let query =
            FactsQuery { state_dir: "/srv/gvm".into(), socket: "/run/gvm/api.sock".into(), ..FactsQuery::default() };
        let facts = read(&root, &query);
        let paths: Vec<_> = facts.state_path.iter().map(|found| found.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/", "/srv", "/srv/gvm"]);
        assert_eq!(facts.state_path[1].mode, 0o750);
        assert_eq!(facts.database.unwrap().mode, 0o644);
        assert!(!facts.socket_dir.unwrap().is_open(), "the sticky bit keeps it");
        set("run/gvm", 0o777);
        assert!(read(&root, &query).socket_dir.unwrap().is_open());
    }

    #[tokio::test]
    async fn the_clock_is_believed_only_where_somebody_says() {
        let (_dir, root) = host(&[("run/systemd/timesync/synchronized", "")]);
        assert_eq!(clock(&root).await, Clock::Synchronised);
        for (answer, clock) in
            [("yes\n", Clock::Synchronised), ("no\n", Clock::Alone), ("", Clock::Unknown), ("n/a", Clock::Unknown)]
        {
            assert_eq!(clock_by(answer), clock, "{answer}");
        }
    }
}
