//! What a machine that is gone may not leave behind, and how often it was started.

use std::path::Path;

use gvm::api::types::VmView;
use sqlx::Connection;

use super::private_host::PrivateHost;
use super::site::Site;

/// Everything that is left of a machine that should be gone.
#[track_caller]
pub fn assert_no_trace(site: &Site, vm: &VmView) {
    let left = traces(site, vm);
    assert!(left.is_empty(), "{} ({}) is gone, but there is still:\n{}", vm.name, vm.id, left.join("\n"));
}

fn traces(site: &Site, vm: &VmView) -> Vec<String> {
    let mut left = Vec::new();
    // libvirt cuts names in the paths of sockets.
    let short = &vm.id[..16];
    for root in ["var/lib", "run", "etc/libvirt"] {
        find(&site.host.dir().join(root), short, &mut left);
    }
    let script = format!(
        "virsh -q -c qemu:///system list --all --name | grep {id} | sed 's/^/domain: /'
         {{ for way in '' --inactive; do virsh -q -c qemu:///system net-dumpxml $way gvm 2>/dev/null; done
           cat /var/lib/libvirt/dnsmasq/*.hostsfile 2>/dev/null; }} | grep -i -e {mac} -e \"'{address}'\" | sed 's/^ */address: /'
         nft list ruleset | grep -i -w -e {mac} -e {address} | sed 's/^ */rule: /'",
        id = vm.id,
        mac = vm.mac,
        address = vm.address.replace('.', "[.]"),
    );
    left.extend(processes(&vm.id).into_iter().map(|line| format!("process: {line}")));
    left.extend(site.host.exec(&["bash", "-c", &script]).stdout.lines().map(str::to_owned));
    for (table, column) in [("vms", "id"), ("vm_secrets", "vm_id"), ("gpu_leases", "vm_id")] {
        for _ in 0..rows(site, &format!("SELECT count(*) FROM {table} WHERE {column} = '{}'", vm.id)) {
            left.push(format!("row of {table}"));
        }
    }
    let open = format!("SELECT count(*) FROM record_pending WHERE vm_id = '{}'", vm.id);
    for _ in 0..rows(site, &open) {
        left.push("record without an end".to_owned());
    }
    left
}

fn find(folder: &Path, part: &str, left: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().contains(part) {
            left.push(format!("file: {}", entry.path().display()));
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), part, left);
        }
    }
}

/// A number out of the manager's database.
#[track_caller]
pub fn rows(site: &Site, sql: &str) -> i64 {
    let path = site.state().join("gvm.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).read_only(true);
    let read = async {
        let mut conn = sqlx::SqliteConnection::connect_with(&options).await?;
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        let found: Result<i64, sqlx::Error> = sqlx::query_scalar(sql).fetch_one(&mut conn).await;
        conn.close().await?;
        found
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(read).unwrap()
}

/// What the whole host may have when no machine is there: nothing beside the network and the catalogue.
#[track_caller]
pub fn assert_bare(site: &Site) {
    let left = site.host.sh(
        "virsh -q -c qemu:///system list --all --name | grep . || true
         ls /var/lib/gvm/vms 2>/dev/null || true
         nft list ruleset | grep vnet || true
         ip -o link | grep -E 'vnet|tap' || true
         pgrep -af 'bin/[q]emu-system|bin/[s]wtpm' || true
         find /var/lib/libvirt/qemu/nvram /var/lib/libvirt/swtpm /var/lib/libvirt/qemu/save -mindepth 1 2>/dev/null || true",
    );
    assert_eq!(left.text(), "", "no machine is there, but this");
    let sql = "SELECT (SELECT count(*) FROM vms) + (SELECT count(*) FROM vm_secrets) + (SELECT count(*) FROM gpu_leases) \
               + (SELECT count(*) FROM record_pending)";
    assert_eq!(rows(site, sql), 0, "rows are left");
}

/// How often libvirt started this machine's QEMU.
pub fn starts(host: &PrivateHost, vm: &VmView) -> usize {
    let log = host.outside(&format!("/var/log/libvirt/qemu/gvm-{}.log", vm.id));
    std::fs::read_to_string(log).unwrap_or_default().matches(": starting up libvirt version").count()
}

/// QEMU's processes of this machine: one where it runs.
pub fn qemus(vm: &VmView) -> Vec<String> {
    processes(&format!("guest=gvm-{}", vm.id))
}

/// Command lines with this text in them, anywhere on the machine.
fn processes(text: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    // dnsmasq's hook of libvirt, run for a moment whenever an address changes hands.
    lines.filter(|line| line.contains(text) && !line.contains("libvirt_leaseshelper")).collect()
}
