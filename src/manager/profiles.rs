//! The profiles of this host: the built-in ones, with the administrator's own laid over them.
//!
//! A file `<config_dir>/profiles/NAME.toml` makes the profile NAME. Where NAME is a built-in one and the file names
//! no parent, it has to say only what differs. A file that cannot be used is told as a fault and hides nothing: its
//! built-in namesake stays.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::image::user_data;
use crate::model::name::ProfileName;
use crate::model::profile::{Profile, ProfileError, ProfileFile};

/// The profiles that come with the program, from `templates/profiles/`.
const BUILT_IN: [(&str, &str); 4] = [
    ("tiny", include_str!("../../templates/profiles/tiny.toml")),
    ("debian", include_str!("../../templates/profiles/debian.toml")),
    ("firmware", include_str!("../../templates/profiles/firmware.toml")),
    ("ubuntu-cuda", include_str!("../../templates/profiles/ubuntu-cuda.toml")),
];

/// More files than this are not read: the folder is not what it should be.
const MAX_FILES: usize = 500;

/// A profile with the largest user data fits.
const MAX_SIZE: u64 = 128 << 10;

/// A file that cannot be used, or something in one that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileFault {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, with line and key.
    pub problem: String,
    /// True where the file counts all the same.
    pub is_notice: bool,
}

impl fmt::Display for ProfileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

/// All profiles and what is wrong with the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles {
    /// By name, inheritance not resolved.
    pub files: BTreeMap<ProfileName, ProfileFile>,
    /// In the order of their files.
    pub faults: Vec<ProfileFault>,
}

impl Profiles {
    /// Reads everything; a few small files. Never fails: what cannot be read is a fault.
    pub fn load(config_dir: &Path) -> Self {
        let mut profiles = Self::built_in();
        let dir = config_dir.join("profiles");
        let mut paths = match list(&dir) {
            Ok(paths) => paths,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return profiles,
            Err(e) => {
                profiles.fault(&dir, format!("cannot be read: {e}"));
                return profiles;
            }
        };
        paths.sort();
        if paths.len() > MAX_FILES {
            profiles.fault(&dir, format!("has more than {MAX_FILES} profiles; the others are not read"));
            paths.truncate(MAX_FILES);
        }
        for path in paths {
            if let Err(problem) = profiles.add(&path) {
                profiles.fault(&path, problem);
            }
        }
        profiles
    }

    /// The built-in ones alone.
    pub fn built_in() -> Self {
        let mut profiles = Self::default();
        for (name, text) in BUILT_IN {
            let path = PathBuf::from(format!("built-in profile {name}"));
            match parse(name, text) {
                Ok((name, file, _)) => drop(profiles.files.insert(name, file)),
                Err(problem) => profiles.fault(&path, problem),
            }
        }
        profiles
    }

    /// One profile with its inheritance resolved; `None` where there is no such profile.
    pub fn resolve(&self, name: &ProfileName) -> Option<Result<Profile, ProfileError>> {
        Profile::resolve(name, &self.files)
    }

    /// What is wrong with the file of this name.
    pub fn faults_of(&self, name: &ProfileName) -> impl Iterator<Item = &ProfileFault> {
        let file = format!("{name}.toml");
        self.faults.iter().filter(move |fault| fault.path.file_name().is_some_and(|own| own == file.as_str()))
    }

    fn add(&mut self, path: &Path) -> Result<(), String> {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
        let (name, file, notices) = parse(&stem, &read(path)?)?;
        for notice in notices {
            let problem = format!("user_data: {notice}");
            self.faults.push(ProfileFault { path: path.to_owned(), problem, is_notice: true });
        }
        let file = match self.files.remove(&name) {
            Some(base) if file.inherits.is_none() => file.over(base),
            _ => file,
        };
        self.files.insert(name, file);
        Ok(())
    }

    fn fault(&mut self, path: &Path, problem: String) {
        self.faults.push(ProfileFault { path: path.to_owned(), problem, is_notice: false });
    }
}

fn list(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir)?.take(MAX_FILES * 4) {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn read(path: &Path) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("cannot be read: {e}");
    // A pipe in the folder would hold us for ever.
    let meta = std::fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() {
        return Err("is not a regular file".to_owned());
    }
    if meta.len() > MAX_SIZE {
        return Err(format!("is larger than {MAX_SIZE} bytes"));
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_SIZE).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// The profile in a file with its user data checked, and notices on that.
fn parse(name: &str, text: &str) -> Result<(ProfileName, ProfileFile, Vec<String>), String> {
    let name: ProfileName = name.parse().map_err(|e| format!("{e}"))?;
    let mut file: ProfileFile = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
    let mut notices = Vec::new();
    if let Some(data) = &file.user_data {
        let checked = user_data::check(data).map_err(|e| format!("user_data: {e}"))?;
        notices = checked.notices;
        file.user_data = Some(checked.text);
    }
    Ok((name, file, notices))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::image::Boot;
    use crate::model::units::Mib;

    fn load(files: &[(&str, &str)]) -> (Profiles, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("profiles")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join("profiles").join(name), text).unwrap();
        }
        let profiles = Profiles::load(dir.path());
        let faults = profiles
            .faults
            .iter()
            .map(|fault| format!("{}: {}", fault.path.file_name().unwrap().to_string_lossy(), fault.problem));
        let faults = faults.collect();
        (profiles, faults)
    }

    fn resolve(profiles: &Profiles, name: &str) -> Profile {
        profiles.resolve(&name.parse().unwrap()).unwrap().unwrap()
    }

    #[test]
    fn every_built_in_profile_can_be_used() {
        let profiles = Profiles::built_in();
        assert_eq!((profiles.files.len(), profiles.faults.as_slice()), (BUILT_IN.len(), [].as_slice()));
        for (name, _) in BUILT_IN {
            resolve(&profiles, name);
        }
        let firmware = resolve(&profiles, "firmware");
        assert_eq!((firmware.image, firmware.boot), (None, Boot::Firmware));
        let cuda = resolve(&profiles, "ubuntu-cuda");
        assert_eq!((cuda.gpus.len(), cuda.secure_boot), (1, false));
        let script = cuda.user_data.unwrap();
        assert!(script.starts_with("#!/bin/sh\n"), "{script}");
        let out = std::process::Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(Profiles::load(Path::new("/nonexistent")), profiles);
    }

    #[test]
    fn an_own_file_lies_over_a_built_in_one() {
        let big = "inherits='debian'\nmemory='64G'\nuser_data='#cloud-config'";
        let (profiles, faults) = load(&[("debian.toml", "memory='4G'"), ("big.toml", big), ("notes.txt", "x")]);
        assert_eq!(faults, ["big.toml: user_data: the document says nothing"]);
        let debian = resolve(&profiles, "debian");
        assert_eq!((debian.memory, debian.vcpus), (Mib(4096), 2));
        assert_eq!(resolve(&profiles, "big").memory, Mib(64 << 10));
    }

    #[test]
    fn a_bad_file_is_told_and_hides_nothing() {
        let large = "#".repeat(200 << 10);
        let (profiles, faults) = load(&[
            ("debian.toml", "memroy='4G'"),
            ("Bad Name.toml", "cpus=1"),
            ("cut.toml", "cpus="),
            ("include.toml", "user_data='#include'"),
            ("large.toml", &large),
            ("good.toml", "inherits='tiny'"),
        ]);
        insta::assert_snapshot!(faults.join("\n"));
        assert_eq!(resolve(&profiles, "debian").memory, Mib(2048));
        assert_eq!(resolve(&profiles, "good").vcpus, 1);
    }
}
