//! Who listens on a TCP port, by the kernel's tables and without trying it: a try would disturb who listens.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::HostRoot;
use crate::model::host::upkeep::PortUse;

/// The tables of sockets, with the addresses' hex digits.
const TABLES: [(&str, usize); 2] = [("proc/net/tcp", 8), ("proc/net/tcp6", 32)];

/// The state of a listening socket.
const LISTEN: &str = "0A";

/// Looking for the program behind a socket.
const PATIENCE: Duration = Duration::from_millis(500);

/// Processes and open files of one that are looked at.
const MAX_NAMES: usize = 1 << 16;

/// A listening socket of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listener {
    is_any: bool,
    address: String,
    port: u16,
    uid: u32,
    inode: String,
}

/// Who listens where the gateway is to listen.
pub(super) fn find(root: &HostRoot, listen: SocketAddr) -> PortUse {
    let tables: Vec<(String, usize)> =
        TABLES.iter().filter_map(|(path, digits)| Some((root.read_list(path)?, *digits))).collect();
    if tables.is_empty() {
        return PortUse::Unknown;
    }
    let all = tables.iter().flat_map(|(text, digits)| text.lines().filter_map(|line| parse(line, *digits)));
    let wanted = digits_of(listen);
    let is_it = |found: &Listener| {
        let is_address = listen.ip().is_unspecified() || found.is_any || wanted == found.address;
        found.port == listen.port() && is_address
    };
    let Some(found) = all.into_iter().find(is_it) else { return PortUse::Free };
    let user = nix::unistd::User::from_uid(found.uid.into()).ok().flatten().map(|user| user.name);
    PortUse::Taken { program: program(root, &found.inode), user: user.unwrap_or_else(|| format!("uid {}", found.uid)) }
}

/// `0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 12345 1 ...`
fn parse(line: &str, digits: usize) -> Option<Listener> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = words.get(1)?.split_once(':')?;
    if address.len() != digits || *words.get(3)? != LISTEN {
        return None;
    }
    Some(Listener {
        is_any: address.bytes().all(|digit| digit == b'0'),
        address: address.to_owned(),
        port: u16::from_str_radix(port, 16).ok()?,
        uid: words.get(7)?.parse().ok()?,
        inode: (*words.get(9)?).to_owned(),
    })
}

/// An address as the tables have it: words of four bytes in the order of this processor.
fn digits_of(address: SocketAddr) -> String {
    let bytes = match address {
        SocketAddr::V4(v4) => v4.ip().octets().to_vec(),
        SocketAddr::V6(v6) => v6.ip().octets().to_vec(),
    };
    let word = |four: &[u8]| <[u8; 4]>::try_from(four).map(u32::from_ne_bytes).unwrap_or_default();
    bytes.chunks(4).map(|four| format!("{:08X}", word(four))).collect()
}

/// The program that has a socket open; `None` where it may not be seen.
fn program(root: &HostRoot, inode: &str) -> Option<String> {
    let begin = Instant::now();
    let socket = format!("socket:[{inode}]");
    for pid in root.names("proc", MAX_NAMES)?.iter().filter(|name| name.parse::<u32>().is_ok()) {
        if begin.elapsed() > PATIENCE {
            return None;
        }
        let Ok(files) = std::fs::read_dir(root.join(format!("proc/{pid}/fd"))) else { continue };
        let target = |file: std::io::Result<std::fs::DirEntry>| std::fs::read_link(file.ok()?.path()).ok();
        if files.take(MAX_NAMES).filter_map(target).any(|target| target.as_os_str() == socket.as_str()) {
            return root.read(&format!("proc/{pid}/comm"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";

    fn line(address: &str, state: &str, uid: u32, inode: u32) -> String {
        format!(
            "   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid:5} 0 {inode} 1 0 100\n"
        )
    }

    fn host(tcp: &str) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/net")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc/77/fd")).unwrap();
        std::fs::write(dir.path().join("proc/77/comm"), "sshd\n").unwrap();
        std::os::unix::fs::symlink("socket:[4242]", dir.path().join("proc/77/fd/3")).unwrap();
        std::fs::write(dir.path().join("proc/net/tcp"), tcp).unwrap();
        let root = HostRoot::at(dir.path());
        (dir, root)
    }

    fn taken(program: Option<&str>, user: &str) -> PortUse {
        PortUse::Taken { program: program.map(str::to_owned), user: user.to_owned() }
    }

    #[test]
    fn a_listener_is_named_by_program_and_account() {
        let check = |tcp: &str, listen: &str| find(&host(tcp).1, listen.parse().unwrap());
        let any = |state| format!("{HEAD}\n{}", line("00000000:08AE", state, 0, 4242));
        assert_eq!(check(&any("0A"), "0.0.0.0:2222"), taken(Some("sshd"), "root"));
        assert_eq!(check(&any("0A"), "127.0.0.1:2222"), taken(Some("sshd"), "root"));
        assert_eq!(check(&any("01"), "0.0.0.0:2222"), PortUse::Free, "a connection is no listener");
        assert_eq!(check(&any("0A"), "0.0.0.0:22"), PortUse::Free);
        let local = line("0100007F:08AE", "0A", 4_000_000, 1);
        assert_eq!(check(&local, "0.0.0.0:2222"), taken(None, "uid 4000000"));
        assert_eq!(check(&local, "10.0.0.1:2222"), PortUse::Free);
        #[cfg(target_endian = "little")]
        assert_eq!(check(&local, "127.0.0.1:2222"), taken(None, "uid 4000000"));
        assert_eq!(check("\u{1}\u{2} junk\n: : :\n", "0.0.0.0:2222"), PortUse::Free);
    }

    #[test]
    fn without_the_tables_nothing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find(&HostRoot::at(dir.path()), "0.0.0.0:2222".parse().unwrap()), PortUse::Unknown);
    }
}
