//! Profiles: named shapes that an administrator offers and a member picks.

use serde::{Deserialize, Serialize};

use super::caps::Caps;
use super::gpu::GpuRequest;
use super::image::Boot;
use super::name::{GuestUser, ImageName, ProfileName};
use super::units::{Mib, Seconds};

/// A profile as it stands in its file; what is not said is inherited, then defaulted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileFile {
    /// The profile it starts from.
    pub inherits: Option<ProfileName>,
    /// One line for people.
    pub description: Option<String>,
    /// Name of the image; left out, and ignored where inherited, with `boot = "firmware"`.
    pub image: Option<ImageName>,
    /// How it boots.
    pub boot: Option<Boot>,
    /// Virtual CPUs.
    pub cpus: Option<u32>,
    /// Memory, such as `"2G"`.
    pub memory: Option<String>,
    /// Root disk, such as `"20G"`.
    pub disk: Option<String>,
    /// GPUs, each as on the command line.
    pub gpu: Option<Vec<String>>,
    /// Limits.
    pub caps: Option<Caps>,
    /// TPM 2.0.
    pub tpm: Option<bool>,
    /// UEFI secure boot.
    pub secure_boot: Option<bool>,
    /// A VNC display.
    pub graphics: Option<bool>,
    /// Lifetime after each start.
    pub ttl: Option<String>,
    /// Login inside; else the image's.
    pub guest_user: Option<GuestUser>,
    /// Added to cloud-init, a `#cloud-config` document.
    pub user_data: Option<String>,
    /// Users who may use it; empty means everybody.
    pub allow: Option<Vec<String>>,
}

/// A profile with its inheritance resolved and every value parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: ProfileName,
    /// One line for people.
    pub description: String,
    /// Name of the image; `None` exactly where `boot` is [`Boot::Firmware`].
    pub image: Option<ImageName>,
    /// How it boots.
    pub boot: Boot,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Memory.
    pub memory: Mib,
    /// Root disk.
    pub disk: Mib,
    /// GPUs.
    pub gpus: Vec<GpuRequest>,
    /// Limits.
    pub caps: Caps,
    /// TPM 2.0.
    pub tpm: bool,
    /// UEFI secure boot.
    pub secure_boot: bool,
    /// A VNC display.
    pub graphics: bool,
    /// Lifetime after each start.
    pub ttl: Option<Seconds>,
    /// Login inside; else the image's.
    pub guest_user: Option<GuestUser>,
    /// Added to cloud-init.
    pub user_data: Option<String>,
    /// Users who may use it; empty means everybody.
    pub allow: Vec<String>,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It inherits from one that is not there.
    #[error("profile {name} inherits from {parent}, which does not exist")]
    NoParent {
        /// The profile.
        name: ProfileName,
        /// What it names.
        parent: ProfileName,
    },
    /// It inherits from itself, perhaps through others.
    #[error("profile {0} inherits from itself")]
    Cycle(ProfileName),
    /// A needed value is nowhere.
    #[error("profile {name} does not say its {key}; add `{key} = ...`")]
    Missing {
        /// The profile.
        name: ProfileName,
        /// The key.
        key: &'static str,
    },
    /// A value is not of its kind.
    #[error("profile {name}: {key}: {problem}")]
    Value {
        /// The profile.
        name: ProfileName,
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
}

impl ProfileFile {
    /// This file's values where said, else those of `base`.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        let caps = match (self.caps, base.caps) {
            (Some(own), Some(base)) => Some(own.or(&base)),
            (own, base) => own.or(base),
        };
        Self {
            inherits: None,
            description: self.description.or(base.description),
            image: self.image.or(base.image),
            boot: self.boot.or(base.boot),
            cpus: self.cpus.or(base.cpus),
            memory: self.memory.or(base.memory),
            disk: self.disk.or(base.disk),
            gpu: self.gpu.or(base.gpu),
            caps,
            tpm: self.tpm.or(base.tpm),
            secure_boot: self.secure_boot.or(base.secure_boot),
            graphics: self.graphics.or(base.graphics),
            ttl: self.ttl.or(base.ttl),
            guest_user: self.guest_user.or(base.guest_user),
            user_data: self.user_data.or(base.user_data),
            allow: self.allow.or(base.allow),
        }
    }
}

impl Profile {
    /// Resolves inheritance among `files` and parses the values of the profile `name`; `None` where no such file is.
    ///
    /// # Errors
    /// Says which profile and key is wrong, and what to write.
    pub fn resolve(
        name: &ProfileName,
        files: &std::collections::BTreeMap<ProfileName, ProfileFile>,
    ) -> Option<Result<Self, ProfileError>> {
        files.get(name).map(|file| Self::resolve_file(name, file.clone(), files))
    }

    fn resolve_file(
        name: &ProfileName,
        mut file: ProfileFile,
        files: &std::collections::BTreeMap<ProfileName, ProfileFile>,
    ) -> Result<Self, ProfileError> {
        let mut seen = vec![name.clone()];
        while let Some(parent) = file.inherits.clone() {
            if seen.contains(&parent) {
                return Err(ProfileError::Cycle(name.clone()));
            }
            let base = files
                .get(&parent)
                .ok_or_else(|| ProfileError::NoParent { name: name.clone(), parent: parent.clone() })?;
            let next = base.inherits.clone();
            file = file.over(base.clone());
            file.inherits = next;
            seen.push(parent);
        }
        Self::parse(name, file)
    }

    fn parse(name: &ProfileName, file: ProfileFile) -> Result<Self, ProfileError> {
        let missing = |key| ProfileError::Missing { name: name.clone(), key };
        let wrong = |key, problem: String| ProfileError::Value { name: name.clone(), key, problem };
        let size = |key, text: Option<String>| {
            let text = text.ok_or_else(|| missing(key))?;
            text.parse::<Mib>().map_err(|e| wrong(key, e.to_string()))
        };
        let caps = file.caps.unwrap_or_default();
        caps.check().map_err(|e| wrong("caps", e.to_string()))?;
        let gpus = GpuRequest::parse_list(&file.gpu.unwrap_or_default());
        let boot = file.boot.unwrap_or_default();
        let image = match boot {
            Boot::Firmware => None,
            Boot::Uefi | Boot::Kernel => Some(file.image.ok_or_else(|| missing("image"))?),
        };
        let secure_boot = file.secure_boot.unwrap_or(false);
        if secure_boot && boot != Boot::Uefi {
            return Err(wrong("secure_boot", "needs boot = \"uefi\"".to_owned()));
        }
        let vcpus = file.cpus.ok_or_else(|| missing("cpus"))?;
        if !(1..=1024).contains(&vcpus) {
            return Err(wrong("cpus", format!("{vcpus} is not 1 to 1024")));
        }
        Ok(Self {
            description: file.description.unwrap_or_default(),
            image,
            boot,
            vcpus,
            memory: size("memory", file.memory)?,
            disk: size("disk", file.disk)?,
            gpus: gpus.map_err(|e| wrong("gpu", e.to_string()))?,
            caps,
            tpm: file.tpm.unwrap_or(false),
            secure_boot,
            graphics: file.graphics.unwrap_or(true),
            ttl: file.ttl.map(|t| t.parse::<Seconds>().map_err(|e| wrong("ttl", e.to_string()))).transpose()?,
            guest_user: file.guest_user,
            user_data: file.user_data,
            allow: file.allow.unwrap_or_default(),
            name: name.clone(),
        })
    }

    /// True where the user of that name may use it.
    pub fn allows(&self, user: &str) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|name| name == user)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn files(list: &[(&str, &str)]) -> BTreeMap<ProfileName, ProfileFile> {
        list.iter().map(|(name, text)| (name.parse().unwrap(), toml::from_str(text).unwrap())).collect()
    }

    fn check(list: &[(&str, &str)], name: &str) -> Result<Profile, String> {
        Profile::resolve(&name.parse().unwrap(), &files(list)).unwrap().map_err(|e| e.to_string())
    }

    const BASE: (&str, &str) = ("base", "image='debian'\ncpus=2\nmemory='2G'\ndisk='10G'\ncaps.cpu_percent=200");

    #[test]
    fn a_child_says_only_what_differs() {
        let child = check(&[BASE, ("big", "inherits='base'\nmemory='8G'\ncaps.disk_iops=500")], "big").unwrap();
        assert_eq!((child.vcpus, child.memory), (2, Mib(8192)));
        assert_eq!((child.caps.cpu_percent, child.caps.disk_iops), (Some(200), Some(500)));
    }

    #[test]
    fn only_firmware_boots_without_an_image() {
        let shape = "cpus=1\nmemory='64M'\ndisk='1G'\n";
        assert_eq!(check(&[("f", &format!("{shape}boot='firmware'"))], "f").unwrap().image, None);
        let fault = check(&[("k", &format!("{shape}boot='kernel'"))], "k").unwrap_err();
        assert_eq!(fault, "profile k does not say its image; add `image = ...`");
    }

    #[test]
    fn faults_name_the_profile_and_the_key() {
        let fault = |list: &[(&str, &str)], name| check(list, name).unwrap_err();
        assert_eq!(fault(&[("a", "inherits='b'"), ("b", "inherits='a'")], "a"), "profile a inherits from itself");
        assert_eq!(fault(&[("a", "inherits='b'")], "a"), "profile a inherits from b, which does not exist");
        assert_eq!(fault(&[("a", "image='x'")], "a"), "profile a does not say its cpus; add `cpus = ...`");
        assert!(
            fault(&[BASE, ("a", "inherits='base'\nmemory='lots'")], "a")
                .starts_with("profile a: memory: \"lots\" is not a size")
        );
    }
}
