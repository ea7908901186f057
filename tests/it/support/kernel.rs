//! A small kernel for PCI drivers: a tree of plain files, and a thread that does to them what the kernel does when
//! somebody writes there. The rules are those of `drivers/base/bus.c` and of libvirt's `virpcimock`:
//!
//! - a probe brings the driver that `driver_override` names, else the device's own, if the device has none;
//! - `unbind` takes a device from the driver in whose folder it is written, `bind` gives it one that may have it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gvm::gpu::{GpuOptions, HostGpus};
use gvm::model::gpu::PciAddress;

pub const HELPER: &str = env!("CARGO_BIN_EXE_gvm");

/// The tree and its thread.
pub struct Kernel {
    dir: tempfile::TempDir,
    /// The drivers that devices get without an override.
    own: BTreeMap<String, String>,
    thread: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

pub fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

impl Kernel {
    pub fn new() -> Self {
        let kernel = Self { dir: tempfile::tempdir().unwrap(), own: BTreeMap::new(), thread: None };
        kernel.write("sys/bus/pci/drivers_probe", "");
        kernel.driver("vfio-pci");
        kernel
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub fn device_path(&self, address: &str, name: &str) -> PathBuf {
        self.path(&format!("sys/bus/pci/devices/{address}/{name}"))
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// A driver that is loaded.
    pub fn driver(&self, name: &str) {
        for file in ["bind", "unbind", "new_id"] {
            self.write(&format!("sys/bus/pci/drivers/{name}/{file}"), "");
        }
    }

    /// A device with the driver that it gets by itself.
    pub fn device(&mut self, address: &str, ids: &str, class: u32, driver: Option<&str>) {
        let (vendor, device) = ids.split_once(':').unwrap();
        let real = format!("sys/devices/pci/{address}");
        self.write(&format!("{real}/vendor"), format!("0x{vendor}\n"));
        self.write(&format!("{real}/device"), format!("0x{device}\n"));
        self.write(&format!("{real}/class"), format!("{class:#08x}\n"));
        self.write(&format!("{real}/config"), [0x10_u8; 64]);
        self.write(&format!("{real}/driver_override"), "(null)\n");
        self.link(&format!("sys/bus/pci/devices/{address}"), format!("../../../devices/pci/{address}"));
        if let Some(driver) = driver {
            self.own.insert(address.to_owned(), driver.to_owned());
            if !self.path(&format!("sys/bus/pci/drivers/{driver}")).exists() {
                self.driver(driver);
            }
            self.link(&format!("{real}/driver"), format!("../../../bus/pci/drivers/{driver}"));
        }
    }

    /// A GPU and its audio function in a group of their own.
    pub fn card(&mut self, slot: &str, driver: Option<&str>, group: u32) {
        let audio = driver.map(|driver| if driver == "vfio-pci" { driver } else { "snd_hda_intel" });
        self.device(&format!("{slot}.0"), "10de:1ff2", 0x03_0000, driver);
        self.device(&format!("{slot}.1"), "10de:10fa", 0x04_0300, audio);
        for function in 0..2 {
            let folder = format!("sys/kernel/iommu_groups/{group}");
            let address = format!("{slot}.{function}");
            self.link(
                &format!("sys/devices/pci/{address}/iommu_group"),
                format!("../../../kernel/iommu_groups/{group}"),
            );
            self.link(&format!("{folder}/devices/{address}"), format!("../../../../bus/pci/devices/{address}"));
        }
    }

    /// A process with a file open.
    pub fn holder(&self, pid: u32, comm: &str, node: &str) {
        self.write(&format!("proc/{pid}/comm"), format!("{comm}\n"));
        self.link(&format!("proc/{pid}/fd/3"), node);
    }

    /// The driver that a probe brings from here on.
    pub fn brings(&mut self, address: &str, driver: &str) {
        self.driver(driver);
        self.own.insert(address.to_owned(), driver.to_owned());
    }

    /// Puts a pipe that nobody reads where a file was.
    pub fn block(&self, path: &str) {
        let _ = fs::remove_file(self.path(path));
        nix::unistd::mkfifo(&self.path(path), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }

    /// Puts a plain file where a pipe was.
    pub fn unblock(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
        self.write(path, "");
    }

    /// From here on it reacts.
    pub fn run(&mut self) {
        self.stop();
        let (root, own) = (self.root().to_owned(), self.own.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                react(&root, &own);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        self.thread = Some((is_over, thread));
    }

    fn stop(&mut self) {
        if let Some((is_over, thread)) = self.thread.take() {
            is_over.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }
    }

    pub fn driver_of(&self, address: &str) -> Option<String> {
        driver_of(self.root(), address)
    }

    pub fn override_of(&self, address: &str) -> String {
        fs::read_to_string(self.device_path(address, "driver_override")).unwrap().trim().to_owned()
    }

    /// Driver and override of the two functions of a slot.
    pub fn both(&self, slot: &str) -> [(Option<String>, String); 2] {
        [0, 1].map(|function| {
            let address = format!("{slot}.{function}");
            (self.driver_of(&address), self.override_of(&address))
        })
    }

    pub fn options(&self, patience: Duration) -> GpuOptions {
        GpuOptions {
            root: self.root().to_owned(),
            nvml: Some(self.path("no-nvml.so")),
            helper: HELPER.into(),
            bind_patience: patience,
            ..GpuOptions::default()
        }
    }

    pub fn host(&self) -> HostGpus {
        HostGpus::new(self.options(Duration::from_secs(30)))
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop();
    }
}

fn driver_of(root: &Path, address: &str) -> Option<String> {
    let link = fs::read_link(root.join(format!("sys/bus/pci/devices/{address}/driver"))).ok()?;
    Some(link.file_name().unwrap().to_str().unwrap().to_owned())
}

/// What was written into a file, which is empty again afterwards.
fn take(path: &Path) -> Option<String> {
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let text = fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))?;
    fs::write(path, "").unwrap();
    Some(text.trim().to_owned())
}

fn react(root: &Path, own: &BTreeMap<String, String>) {
    let pci = root.join("sys/bus/pci");
    let device = |address: &str| root.join(format!("sys/devices/pci/{address}"));
    let only = |address: &str| {
        let text = fs::read_to_string(device(address).join("driver_override")).unwrap_or_default().trim().to_owned();
        (!text.is_empty() && text != "(null)").then_some(text)
    };
    let attach = |address: &str, driver: &str| {
        if driver_of(root, address).is_none() && pci.join("drivers").join(driver).exists() {
            let target = format!("../../../bus/pci/drivers/{driver}");
            std::os::unix::fs::symlink(target, device(address).join("driver")).unwrap();
        }
    };
    for entry in fs::read_dir(pci.join("drivers")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if let Some(address) = take(&entry.path().join("unbind")).filter(|a| driver_of(root, a).as_ref() == Some(&name))
        {
            fs::remove_file(device(&address).join("driver")).unwrap();
        }
        if let Some(address) = take(&entry.path().join("bind")).filter(|a| only(a).is_none_or(|only| only == name)) {
            attach(&address, &name);
        }
    }
    let probed = take(&pci.join("drivers_probe"));
    let wanted = probed.and_then(|address| Some((only(&address).or_else(|| own.get(&address).cloned())?, address)));
    if let Some((driver, address)) = wanted {
        attach(&address, &driver);
    }
}
