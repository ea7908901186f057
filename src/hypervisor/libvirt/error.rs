//! libvirt's errors -> a kind for the planner and plain words for people.
//!
//! libvirt has few codes and says most by text. [`MEANINGS`] is the list of texts that were met, each with what it
//! means and what mends it; what is on no list goes by its code. The text itself is always kept: it is what an
//! administrator can search for.

use virt::error::{Error, ErrorNumber};

use crate::hypervisor::{ErrorKind, HypervisorError, Result};

/// A text of libvirt or QEMU, in lower case, with what it means.
struct Meaning {
    /// All of these are in the message.
    texts: &'static [&'static str],
    kind: ErrorKind,
    words: &'static str,
}

const fn meaning(texts: &'static [&'static str], kind: ErrorKind, words: &'static str) -> Meaning {
    Meaning { texts, kind, words }
}

/// First match counts.
const MEANINGS: &[Meaning] = &[
    meaning(
        &["failed to connect socket", "permission denied"],
        ErrorKind::Permanent,
        "gvm's user may not use libvirt; add it to the group libvirt",
    ),
    meaning(&["failed to connect socket"], ErrorKind::Transient, "libvirtd does not run or its socket is elsewhere"),
    meaning(
        &["unable to execute qemu agent command"],
        ErrorKind::Invalid,
        "the guest agent cannot do that inside the guest",
    ),
    meaning(&["client socket is closed"], ErrorKind::Transient, "the connection to libvirtd was lost"),
    meaning(
        &["specified qdisc kind is unknown"],
        ErrorKind::Permanent,
        "the kernel has no SFQ queue discipline (sch_sfq), which libvirt needs for network caps; load it \
         (modprobe sch_sfq) or take the network caps away",
    ),
    meaning(
        &["failed to bind dhcp server socket"],
        ErrorKind::Permanent,
        "another DHCP server holds port 67 of the host; find it with `ss -ulpn sport = 67`",
    ),
    meaning(
        &["failed to create listening socket", "address already in use"],
        ErrorKind::Permanent,
        "another DNS server holds port 53 on the network's address; make it listen on its own addresses only",
    ),
    meaning(
        &["resolv-file is missing"],
        ErrorKind::Permanent,
        "the host's /etc/resolv.conf points to nowhere; start its resolver or write the file",
    ),
    meaning(
        &["network is already in use by interface"],
        ErrorKind::Conflict,
        "the subnet is that of an interface of the host; choose another for [network] subnet",
    ),
    meaning(&["bridge name", "already in use"], ErrorKind::Conflict, "another network has this bridge"),
    meaning(
        &["network", "is not active"],
        ErrorKind::Transient,
        "its network is not active; start it with `virsh net-start`",
    ),
    meaning(
        &["failed to get", "lock"],
        ErrorKind::Conflict,
        "a disk image is in use by another process: another machine, a backup or qemu-img",
    ),
    meaning(
        &["no space left on device"],
        ErrorKind::Transient,
        "the host's storage is full; free space where the images are",
    ),
    meaning(
        &["vfio_map_dma", "cannot allocate memory"],
        ErrorKind::Permanent,
        "the memory of a machine with a host device cannot be pinned: too little is free, or the locked-memory limit \
         of libvirtd is below the machine's size",
    ),
    meaning(
        &["cannot limit locked memory"],
        ErrorKind::Permanent,
        "libvirtd may not lock as much memory as a machine with a host device needs; it has to run with \
         CAP_SYS_RESOURCE, or with LimitMEMLOCK=infinity",
    ),
    meaning(
        &["is not viable"],
        ErrorKind::Conflict,
        "another device of the same IOMMU group is still used by the host; `gvm doctor` names it",
    ),
    meaning(
        &["must be manually detached from the host"],
        ErrorKind::Conflict,
        "the host device is not bound to vfio-pci",
    ),
    meaning(&["not found: could not access", "/config"], ErrorKind::Permanent, "the host has no such PCI device"),
    meaning(&["is in use by driver"], ErrorKind::Conflict, "another machine has the host device"),
    meaning(
        &["cannot set up guest memory"],
        ErrorKind::Transient,
        "the host has too little free memory for this machine",
    ),
    meaning(&["cannot allocate memory"], ErrorKind::Transient, "the host has too little free memory"),
    meaning(
        &["does not support virt type 'kvm'"],
        ErrorKind::Permanent,
        "KVM is not available to libvirt: /dev/kvm is missing, or virtualisation is off in the firmware",
    ),
    meaning(
        &["could not access kvm kernel module"],
        ErrorKind::Permanent,
        "QEMU may not use KVM: check that /dev/kvm exists and belongs to group kvm",
    ),
    meaning(
        &["failed to initialize kvm"],
        ErrorKind::Permanent,
        "KVM does not work on this host; set accelerator = \"emulation\" or look at the kernel's log",
    ),
    meaning(
        &["could not find capabilities for"],
        ErrorKind::Permanent,
        "this host's QEMU cannot run such machines; is qemu-system-x86 installed and /dev/kvm there?",
    ),
    meaning(
        &["unable to find any firmware"],
        ErrorKind::Permanent,
        "no fitting UEFI firmware is installed (package ovmf); for secure boot it must have enrolled keys",
    ),
    meaning(
        &["swtpm"],
        ErrorKind::Permanent,
        "the software TPM does not work (packages swtpm and swtpm-tools); its log is in /var/log/swtpm/libvirt/qemu",
    ),
    meaning(
        &["tpm version '2.0' is not supported"],
        ErrorKind::Permanent,
        "no software TPM is installed (packages swtpm and swtpm-tools)",
    ),
    meaning(
        &["does not support o_direct"],
        ErrorKind::Permanent,
        "the file system of the images cannot bypass the page cache; use another one, or cache='writeback' in your own \
         domain template",
    ),
    meaning(
        &["does not support machine type"],
        ErrorKind::Permanent,
        "this QEMU no longer has the machine type that the machine was made with; make a copy of it",
    ),
    meaning(&["numa node", "is unavailable"], ErrorKind::Permanent, "the host has no such NUMA node"),
    meaning(
        &["filterref", "not found"],
        ErrorKind::Permanent,
        "libvirt has no filter `clean-traffic` (package libvirt-daemon-config-nwfilter)",
    ),
    meaning(
        &["no more available pci slots"],
        ErrorKind::Conflict,
        "all spare PCIe ports are taken; more devices need a restart",
    ),
    meaning(
        &["permission denied"],
        ErrorKind::Permanent,
        "QEMU may not open the file: every folder above it must be passable for its user (o+x), and the security \
         profile must allow it (`journalctl -k | grep DENIED`)",
    ),
    meaning(&["no such file or directory"], ErrorKind::Permanent, "a file of the machine is missing"),
    meaning(&["already exists with uuid"], ErrorKind::Conflict, "a domain of this name or UUID exists"),
    meaning(&["cannot acquire state change lock"], ErrorKind::Transient, "another call on the machine has not ended"),
];

/// An error of libvirt met while doing something.
pub(super) fn classify(doing: &str, error: &Error) -> HypervisorError {
    let said = error.message();
    let (kind, words) = judge(said, error.code().known());
    let message = words.map_or_else(|| said.to_owned(), |words| format!("{words} (libvirt: {said})"));
    HypervisorError::new(kind, doing, message)
}

/// What kind of error it is, and what it means where that is known.
fn judge(said: &str, code: Option<ErrorNumber>) -> (ErrorKind, Option<&'static str>) {
    let lower = said.to_lowercase();
    match MEANINGS.iter().find(|meaning| meaning.texts.iter().all(|text| lower.contains(text))) {
        Some(meaning) => (meaning.kind, Some(meaning.words)),
        None => (kind_of_code(code), None),
    }
}

fn kind_of_code(code: Option<ErrorNumber>) -> ErrorKind {
    match code {
        Some(ErrorNumber::NoDomain | ErrorNumber::NoNetwork) => ErrorKind::NotFound,
        Some(
            ErrorNumber::DomExist
            | ErrorNumber::NetworkExist
            | ErrorNumber::OperationInvalid
            | ErrorNumber::ResourceBusy
            | ErrorNumber::BlockCopyActive,
        ) => ErrorKind::Conflict,
        Some(
            ErrorNumber::XmlError
            | ErrorNumber::XmlDetail
            | ErrorNumber::XmlInvalidSchema
            | ErrorNumber::InvalidArg
            | ErrorNumber::InvalidMac
            | ErrorNumber::Overflow,
        ) => ErrorKind::Invalid,
        Some(
            ErrorNumber::AuthFailed
            | ErrorNumber::AuthCancelled
            | ErrorNumber::AccessDenied
            | ErrorNumber::OperationDenied
            | ErrorNumber::NoSupport
            | ErrorNumber::ArgumentUnsupported
            | ErrorNumber::OperationUnsupported
            | ErrorNumber::ConfigUnsupported,
        ) => ErrorKind::Permanent,
        // Busy, timeouts, lost connections, and all that libvirt has no better code for: worth another try, and the
        // manager counts the tries.
        _ => ErrorKind::Transient,
    }
}

/// True where libvirt's code is this one.
pub(super) fn is(error: &Error, wanted: ErrorNumber) -> bool {
    error.code().is(wanted)
}

/// Turns libvirt's results into the port's.
pub(super) trait Said<T> {
    /// `doing` names the call and its object for people, such as `starting domain gvm-...`.
    fn said(self, doing: &str) -> Result<T>;
}

impl<T> Said<T> for std::result::Result<T, Error> {
    fn said(self, doing: &str) -> Result<T> {
        self.map_err(|error| classify(doing, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages as libvirt 11.3 and QEMU 10.0 gave them, or as people reported them.
    const SAID: &[(&str, ErrorNumber, ErrorKind, &str)] = &[
        (
            "internal error: Child process (tc qdisc add dev vnet0 parent 1:1 handle 2: sfq perturb 10) unexpected exit \
             status 2: Error: Specified qdisc kind is unknown.",
            ErrorNumber::InternalError,
            ErrorKind::Permanent,
            "sch_sfq",
        ),
        (
            "Failed to connect socket to '/var/run/libvirt/libvirt-sock': No such file or directory",
            ErrorNumber::SystemError,
            ErrorKind::Transient,
            "libvirtd does not run",
        ),
        (
            "Failed to connect socket to '/var/run/libvirt/libvirt-sock': Permission denied",
            ErrorNumber::SystemError,
            ErrorKind::Permanent,
            "group libvirt",
        ),
        ("internal error: client socket is closed", ErrorNumber::InternalError, ErrorKind::Transient, "was lost"),
        (
            "Cannot access storage file '/srv/gpu/base/u24.qcow2' (as uid:64055, gid:64055): Permission denied",
            ErrorNumber::SystemError,
            ErrorKind::Permanent,
            "security profile",
        ),
        (
            "internal error: process exited while connecting to monitor: qemu-system-x86_64: -blockdev {\"node-name\": \
             \"libvirt-1-format\"}: Failed to get \"write\" lock\nIs another process using the image?",
            ErrorNumber::InternalError,
            ErrorKind::Conflict,
            "another machine, a backup",
        ),
        (
            "Requested operation is not valid: network 'gvm' is not active",
            ErrorNumber::OperationInvalid,
            ErrorKind::Transient,
            "net-start",
        ),
        (
            "vfio 0000:41:00.0: group 12 is not viable\nPlease ensure all devices within the iommu_group are bound",
            ErrorNumber::InternalError,
            ErrorKind::Conflict,
            "IOMMU group",
        ),
        (
            "vfio 0000:41:00.0: failed to setup container for group 12: memory listener initialization failed: Region \
             pc.ram: vfio_container_dma_map VFIO_MAP_DMA failed: Cannot allocate memory",
            ErrorNumber::InternalError,
            ErrorKind::Permanent,
            "locked-memory",
        ),
        (
            "internal error: Network is already in use by interface eth0",
            ErrorNumber::InternalError,
            ErrorKind::Conflict,
            "subnet",
        ),
        (
            "unsupported configuration: Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'kvm'",
            ErrorNumber::ConfigUnsupported,
            ErrorKind::Permanent,
            "/dev/kvm",
        ),
        (
            "operation failed: Unable to find any firmware to satisfy 'efi'",
            ErrorNumber::OperationFailed,
            ErrorKind::Permanent,
            "package ovmf",
        ),
        (
            "Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainCreate)",
            ErrorNumber::OperationTimeout,
            ErrorKind::Transient,
            "has not ended",
        ),
    ];

    #[test]
    fn known_texts_have_a_meaning() {
        for (said, code, kind, words) in SAID {
            let (is, meaning) = judge(said, Some(*code));
            assert_eq!(is, *kind, "{said}");
            assert!(meaning.is_some_and(|meaning| meaning.contains(words)), "{said}: {meaning:?}");
        }
    }

    #[test]
    fn other_texts_go_by_their_code() {
        for (code, kind) in [
            (ErrorNumber::NoDomain, ErrorKind::NotFound),
            (ErrorNumber::OperationInvalid, ErrorKind::Conflict),
            (ErrorNumber::XmlInvalidSchema, ErrorKind::Invalid),
            (ErrorNumber::ConfigUnsupported, ErrorKind::Permanent),
            (ErrorNumber::AgentUnresponsive, ErrorKind::Transient),
            (ErrorNumber::InternalError, ErrorKind::Transient),
        ] {
            assert_eq!(judge("something new", Some(code)), (kind, None), "{code:?}");
        }
        assert_eq!(judge("something new", None), (ErrorKind::Transient, None));
    }
}
