//! A host with cards that are not there: the mock of NVIDIA's library, and the kernel's files of the same cards.
//!
//! ```text
//!   CardHost -- lib/libnvidia-ml.so.1, lib/nvml-mock.json     a copy of the library with its state
//!            \- root/                                         the files: as they are at one moment, or mounted (FUSE),
//!                                                             where writes do what the driver does
//! ```
#![allow(clippy::cast_possible_truncation, reason = "files of some bytes")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use gvm::gpu::{GpuOptions, HostGpus};
use gvm_nvml_mock::state::{FILE, State, Store};
use gvm_nvml_mock::tree::{Node, Tree};
use gvm_nvml_mock::writes;

use super::kernel::HELPER;
use super::run::{Ended, run};

/// The mock as cargo has built it: beside the tests.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("libgvm_nvml_mock.so");
    assert!(library.exists(), "{} is built with the tests, as their dependency", library.display());
    library
}

pub struct CardHost {
    /// Of the helper, with what it waits for.
    pub patience: Duration,
    session: Option<BackgroundSession>,
    store: Arc<Store>,
    dir: tempfile::TempDir,
}

impl CardHost {
    /// Cards by kind and address, with the library alone.
    fn new(cards: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["lib", "root"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
        }
        std::fs::copy(library(), dir.path().join("lib/libnvidia-ml.so.1")).unwrap();
        let store = Arc::new(Store::at(dir.path().join("lib").join(FILE)));
        let host = Self { patience: Duration::from_secs(5), session: None, store, dir };
        host.change(|state| {
            for (kind, address) in cards {
                state.add(kind, address);
            }
        });
        host
    }

    /// With the kernel's files as they are after a change of the state. They are plain files: what is written there
    /// changes nothing.
    pub fn plain(cards: &[(&str, &str)], change: impl FnOnce(&mut State)) -> Self {
        let host = Self::new(cards);
        host.change(change);
        Tree::of(&host.state()).write_below(&host.root()).unwrap();
        host
    }

    /// With the kernel's files, which do what the driver does when they are written; why not, where it cannot be mounted.
    pub fn mounted(cards: &[(&str, &str)]) -> Result<Self, String> {
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".to_owned());
        }
        if !nix::unistd::geteuid().is_root() {
            return Err("needs root (mounts)".to_owned());
        }
        let mut host = Self::new(cards);
        let files = CardFiles::new(Arc::clone(&host.store));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("gvm-cards".to_owned()), MountOption::Exec];
        config.n_threads = Some(2);
        let session = fuser::spawn_mount(files, host.root(), &config);
        host.session = Some(session.map_err(|error| format!("cannot mount: {error}"))?);
        Ok(host)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn nvml(&self) -> PathBuf {
        self.dir.path().join("lib/libnvidia-ml.so.1")
    }

    pub fn state(&self) -> Arc<State> {
        self.store.read().unwrap()
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.store.change(change).unwrap()
    }

    /// A file's text, below the root.
    pub fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}")).trim().to_owned()
    }

    /// A file of a device.
    pub fn device(&self, address: &str, file: &str) -> String {
        self.text(&format!("sys/bus/pci/devices/{address}/{file}"))
    }

    pub fn options(&self) -> GpuOptions {
        GpuOptions { root: self.root(), nvml: Some(self.nvml()), helper: HELPER.into(), ..GpuOptions::default() }
    }

    pub fn gpus(&self) -> HostGpus {
        HostGpus::new(self.options())
    }

    /// `gvm gpu scan`.
    pub fn scan(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(HELPER);
        command.args(["gpu", "scan", "--root"]).arg(self.root()).arg("--nvml").arg(self.nvml()).args(arguments);
        run(command, Duration::from_secs(60))
    }

    /// `gvm helper`.
    pub fn helper(&self, verb: &str, words: &[&str]) -> Ended {
        let mut command = Command::new(HELPER);
        command.args(["helper", verb, "--root"]).arg(self.root()).arg("--nvml").arg(self.nvml());
        command.args(["--patience-ms", &self.patience.as_millis().to_string(), "--"]).args(words);
        run(command, Duration::from_secs(60))
    }
}

impl Drop for CardHost {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Also where something still has a file open.
            let _ = nix::mount::umount2(&self.root(), nix::mount::MntFlags::MNT_DETACH);
            drop(session);
        }
    }
}

/// A mounted host with these cards; a test that cannot have one says so and ends.
macro_rules! mounted {
    ($($card:expr),+ $(,)?) => {{
        fn here() {}
        match $crate::support::card_host::CardHost::mounted(&[$($card),+]) {
            Ok(host) => host,
            Err(why) => {
                let test = $crate::support::skip::test_of(std::any::type_name_of_val(&here));
                return $crate::support::skip::say(test, &why);
            }
        }
    }};
}

pub(crate) use mounted;

// --- the mounted files ------------------------------------------------------------------------------------------------

/// Nothing is kept by the kernel: everything may be different the next time.
const TTL: Duration = Duration::ZERO;

struct CardFiles {
    store: Arc<Store>,
    /// Paths by their numbers, from 1; a path keeps its number.
    paths: Mutex<Vec<String>>,
    last: Mutex<Option<(Arc<State>, Arc<Tree>)>>,
}

impl CardFiles {
    fn new(store: Arc<Store>) -> Self {
        Self { store, paths: Mutex::new(vec![String::new()]), last: Mutex::new(None) }
    }

    fn tree(&self) -> Result<Arc<Tree>, Errno> {
        let state = self.store.read().map_err(|_| Errno::EIO)?;
        let mut last = self.last.lock().unwrap();
        if let Some((_, tree)) = last.as_ref().filter(|(of, _)| Arc::ptr_eq(of, &state)) {
            return Ok(Arc::clone(tree));
        }
        // What comes by itself after a time is looked at anew. It may come while the tree is made.
        let now = gvm_nvml_mock::state::now();
        let tree = Arc::new(Tree::of(&state));
        let is_settled = !state.cards.iter().flat_map(|card| &card.functions).any(|function| function.bound_at > now);
        *last = is_settled.then(|| (state, Arc::clone(&tree)));
        Ok(tree)
    }

    fn path(&self, number: INodeNo) -> Result<String, Errno> {
        let at = usize::try_from(number.0 - 1).map_err(|_| Errno::ENOENT)?;
        self.paths.lock().unwrap().get(at).cloned().ok_or(Errno::ENOENT)
    }

    fn number(&self, path: &str) -> INodeNo {
        let mut paths = self.paths.lock().unwrap();
        let at = paths.iter().position(|one| one == path).unwrap_or_else(|| {
            paths.push(path.to_owned());
            paths.len() - 1
        });
        INodeNo(at as u64 + 1)
    }

    fn node(&self, path: &str) -> Result<Node, Errno> {
        if path.is_empty() {
            return Ok(Node::Folder);
        }
        self.tree()?.0.get(path).cloned().ok_or(Errno::ENOENT)
    }

    fn attributes(&self, path: &str) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match self.node(path)? {
            Node::Folder => (FileType::Directory, 0o755, 0),
            Node::File(content, is_writable) => {
                (FileType::RegularFile, if is_writable { 0o644 } else { 0o444 }, content.len())
            }
            Node::Program(content) => (FileType::RegularFile, 0o755, content.len()),
            Node::Link(target) => (FileType::Symlink, 0o777, target.len()),
        };
        let time = SystemTime::UNIX_EPOCH;
        Ok(FileAttr {
            ino: self.number(path),
            size: size as u64,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// How long a file takes to be read or written.
fn latency(store: &Store, path: &str) -> Option<Duration> {
    store.read().ok()?.latency.get(name(path)).copied().map(Duration::from_millis)
}

/// What a write does. It takes its time first.
fn write(store: &Store, path: &str, text: &str) -> Result<(), Errno> {
    let name = name(path);
    std::thread::sleep(latency(store, path).unwrap_or_default());
    let done = store.change(|state| match state.errors.get(name) {
        Some(fault) => Err(nix::errno::Errno::from_raw(fault.code as i32)),
        None => writes::write(state, path, text),
    });
    done.map_err(|_| Errno::EIO)?.map_err(|errno| Errno::from_i32(errno as i32))
}

impl Filesystem for CardFiles {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.path(parent).and_then(|parent| {
            let name = name.to_str().ok_or(Errno::ENOENT)?;
            self.attributes(&if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") })
        });
        match found {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(ino).and_then(|path| self.attributes(&path)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    /// Files are cut before they are written, which means nothing here.
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(req, ino, fh, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.path(ino).and_then(|path| self.node(&path)) {
            Ok(Node::Link(target)) => reply.data(target.as_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let wants_write = flags.0 & nix::libc::O_ACCMODE != nix::libc::O_RDONLY;
        match self.path(ino).and_then(|path| self.node(&path)) {
            Ok(Node::File(_, false) | Node::Program(_)) if wants_write => reply.error(Errno::EACCES),
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (path, node) = match self.path(ino).and_then(|path| Ok((self.node(&path)?, path))) {
            Ok((node, path)) => (path, node),
            Err(errno) => return reply.error(errno),
        };
        let (Node::File(content, _) | Node::Program(content)) = node else { return reply.error(Errno::EISDIR) };
        let from = content.len().min(offset as usize);
        let to = content.len().min(from + size as usize);
        let answer = move || reply.data(&content[from..to]);
        match latency(&self.store, &path) {
            // One that takes long holds nobody else up.
            Some(wait) => drop(std::thread::spawn(move || {
                std::thread::sleep(wait);
                answer();
            })),
            None => answer(),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let path = match self.path(ino) {
            Ok(path) => path,
            Err(errno) => return reply.error(errno),
        };
        let (store, count) = (Arc::clone(&self.store), data.len() as u32);
        let text = String::from_utf8_lossy(data).into_owned();
        // One that takes long holds nobody else up.
        std::thread::spawn(move || match write(&store, &path, &text) {
            Ok(()) => reply.written(count),
            Err(errno) => reply.error(errno),
        });
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.path(ino).and_then(|folder| Ok((self.tree()?, folder)));
        let (tree, folder) = match listed {
            Ok(listed) => listed,
            Err(errno) => return reply.error(errno),
        };
        for (at, name) in tree.names(&folder).into_iter().enumerate().skip(offset as usize) {
            let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            let kind = match tree.0.get(&path) {
                Some(Node::Link(_)) => FileType::Symlink,
                Some(Node::File(..) | Node::Program(_)) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            if reply.add(self.number(&path), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
