//! `image.toml`: what a recipe of `vm-images/` says about the folder it made.

use serde::Deserialize;

use super::header::WhyRefused;
use crate::model::image::DiskFormat;
use crate::model::name::{GuestUser, ImageName};
use crate::model::units::Mib;

/// Name of the file in an image's folder.
pub const FILE: &str = "image.toml";

/// A manifest is a page of text.
pub const MAX_SIZE: u64 = 64 << 10;

/// The whole file. Unknown keys are left alone, so that a recipe may be newer than we are.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Manifest {
    /// The image's name.
    pub name: ImageName,
    /// Version, a short word.
    pub version: String,
    /// Operating system, a short word.
    pub os: String,
    /// Machine word such as `x86_64`.
    pub arch: String,
    /// The usual login.
    pub user: GuestUser,
    /// The smallest disk that works.
    pub min_disk_mib: u64,
    /// For direct boot.
    pub kernel: Option<KernelPart>,
    /// The disk.
    pub disk: Option<DiskPart>,
}

/// The kernel part.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct KernelPart {
    /// File name in the folder.
    pub file: String,
    /// Hex SHA-256.
    pub sha256: String,
    /// File name of the initrd.
    pub initrd: String,
    /// Hex SHA-256 of the initrd.
    pub initrd_sha256: String,
    /// Kernel arguments.
    pub cmdline: String,
}

/// The disk part.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct DiskPart {
    /// File name in the folder.
    pub file: String,
    /// Its format.
    pub format: DiskFormat,
    /// Hex SHA-256.
    pub sha256: String,
    /// Size the guest sees, where the recipe says it.
    pub virtual_size_mib: Option<u64>,
    /// Number of the partition that holds the root file system.
    pub root_partition: Option<u32>,
}

impl Manifest {
    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let manifest: Self = toml::from_str(text).map_err(|e| format!("{FILE} is not usable: {}", e.message()))?;
        let host = std::env::consts::ARCH;
        if manifest.arch != host {
            return Err(format!("the image is for {}, this host is {host}", manifest.arch));
        }
        if manifest.kernel.is_none() && manifest.disk.is_none() {
            return Err(format!("{FILE} names neither a kernel nor a disk"));
        }
        check_word("version", &manifest.version)?;
        check_word("os", &manifest.os)?;
        if let Some(kernel) = &manifest.kernel {
            check_file(&kernel.file)?;
            check_file(&kernel.initrd)?;
            check_digest(&kernel.sha256)?;
            check_digest(&kernel.initrd_sha256)?;
            // The kernel takes 2048 bytes on x86 (COMMAND_LINE_SIZE).
            if kernel.cmdline.len() > 2047 || kernel.cmdline.chars().any(char::is_control) {
                return Err("the kernel arguments are longer than 2047 bytes or have control characters".to_owned());
            }
        }
        if let Some(disk) = &manifest.disk {
            check_file(&disk.file)?;
            check_digest(&disk.sha256)?;
        }
        Ok(manifest)
    }

    /// Refuses a disk that is not of the size the recipe says.
    pub(super) fn must_fit(disk: &DiskPart, found: Mib) -> Result<(), String> {
        match disk.virtual_size_mib {
            Some(said) if Mib(said) != found => Err(format!("its disk is of {found}, {FILE} says {}", Mib(said))),
            _ => Ok(()),
        }
    }
}

/// A version or system word: shown in tables, so short and without surprises.
pub(super) fn check_word(what: &str, text: &str) -> Result<(), String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.+:".contains(&b);
    match (1..=64).contains(&text.len()) && text.bytes().all(fits) {
        true => Ok(()),
        false => Err(format!("{what} {text:?} cannot be used; use 1 to 64 letters, digits, -, _, ., + or :")),
    }
}

/// A name inside of the folder: no way to another one.
fn check_file(text: &str) -> Result<(), String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let is_plain = (1..=128).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with(['.', '-']);
    if is_plain { Ok(()) } else { Err(format!("the file name {text:?} cannot be used")) }
}

/// 64 hex digits.
pub(super) fn check_digest(text: &str) -> Result<(), String> {
    match text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(()),
        false => Err(format!("{text:?} is not a SHA-256 digest; write 64 hex digits")),
    }
}

/// Refuses what no x86 boot loader takes for a kernel (Linux boot protocol: `HdrS` at 0x202).
pub(super) fn check_kernel(head: &[u8]) -> Result<(), WhyRefused> {
    match head.get(0x202..0x206) == Some(b"HdrS".as_slice()) {
        true => Ok(()),
        false => Err(WhyRefused::NotADisk("not a Linux kernel (bzImage)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: (&str, &str)) -> String {
        let digest = "a".repeat(64);
        let text = format!(
            "name='x'\nversion='1'\nos='tiny'\narch='x86_64'\nuser='gvm'\nmin_disk_mib=16\n\
             [kernel]\nfile='vmlinuz'\nsha256='{digest}'\ninitrd='initrd.img'\ninitrd_sha256='{digest}'\ncmdline='quiet'\n"
        );
        assert!(Manifest::parse(&text).is_ok(), "{text}");
        Manifest::parse(&text.replace(change.0, change.1)).unwrap_err()
    }

    #[test]
    fn faults_are_named() {
        assert_eq!(fault(("vmlinuz", "../vmlinuz")), "the file name \"../vmlinuz\" cannot be used");
        assert_eq!(fault(("vmlinuz", "-x")), "the file name \"-x\" cannot be used");
        assert_eq!(fault(("x86_64", "arm64")), "the image is for arm64, this host is x86_64");
        assert!(fault(("version='1'", "version='a b'")).starts_with("version \"a b\" cannot be used"));
        assert!(fault(("'quiet'", "\"a\\nb\"")).starts_with("the kernel arguments"));
        assert!(fault(("sha256='aa", "sha256='zz")).contains("is not a SHA-256 digest"));
        assert_eq!(fault(("[kernel]", "[other]")), "image.toml names neither a kernel nor a disk");
        assert!(fault(("name='x'", "name='../x'")).starts_with("image.toml is not usable"));
    }
}
