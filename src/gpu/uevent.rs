//! The kernel's word that devices came, went or changed their drivers: its uevents, over netlink.
//!
//! Only a reason to look: nothing is taken from a message, and a lost one is made up for by the next tick.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use tokio::io::unix::AsyncFd;

/// The group of messages that come from the kernel itself; 2 are those that udev has worked on.
const KERNEL: u32 = 1;

/// A message has at most so many bytes (kernel, `UEVENT_BUFFER_SIZE` with its head).
const MAX_MESSAGE: usize = 8192;

/// Devices that a change of cards shows by.
const SUBSYSTEMS: [&str; 4] = ["pci", "drm", "vfio", "vfio-dev"];

/// The socket, opened at the first wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Events(Arc<OnceLock<Option<AsyncFd<OwnedFd>>>>);

impl Events {
    /// Waits for the next change; for ever where the kernel tells nothing.
    pub(super) async fn next(&self) {
        let opened = self.0.get_or_init(|| open().inspect_err(|e| tracing::warn!(error = %e, "no device events")).ok());
        let Some(events) = opened else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = events.readable().await else { return std::future::pending().await };
            let mut buffer = [0; MAX_MESSAGE];
            let read =
                ready.try_io(|fd| recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from));
            match read {
                Ok(Ok(count)) if is_about_cards(buffer.get(..count).unwrap_or_default()) => return,
                Ok(Ok(_)) | Err(_) => {}
                // More came than the kernel keeps for us: something changed.
                Ok(Err(e)) if e.raw_os_error() == Some(Errno::ENOBUFS as i32) => return,
                Ok(Err(_)) => return std::future::pending().await,
            }
        }
    }
}

fn open() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkKObjectUEvent)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
    // Deprecated for types that may give another descriptor each time; this one owns its only one.
    #[allow(deprecated, reason = "the other way is unsafe")]
    AsyncFd::new(fd)
}

/// `add@/devices/...`, then `NAME=value` parts, each ended by a zero.
fn is_about_cards(message: &[u8]) -> bool {
    let parts = message.split(|byte| *byte == 0);
    let mut subsystems = parts.filter_map(|part| std::str::from_utf8(part).ok()?.strip_prefix("SUBSYSTEM="));
    subsystems.any(|name| SUBSYSTEMS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_cards_are_told_from_others() {
        let check = |text: &str| is_about_cards(text.as_bytes());
        assert!(check("bind@/devices/pci0000:40/0000:41:00.0\0ACTION=bind\0SUBSYSTEM=pci\0DRIVER=vfio-pci\0"));
        assert!(!check("add@/devices/virtual/net/vnet0\0ACTION=add\0SUBSYSTEM=net\0NAME=SUBSYSTEM=pci\0"));
        assert!(!check("") && !is_about_cards(&[0xff, 0, 0xfe]));
    }

    #[tokio::test]
    async fn the_kernels_socket_can_be_opened() {
        assert!(open().is_ok());
    }
}
