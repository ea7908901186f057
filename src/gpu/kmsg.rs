//! The kernel's log, `/dev/kmsg`: read record by record, and never waited for.
//!
//! ```text
//!   open, O_NONBLOCK --> read: one record each, until EAGAIN
//!                          \-- EPIPE: records were overwritten before they were read; it goes on with the oldest
//!   a file or a pipe below another root: lines, as many as are there
//! ```
//!
//! The kernel's ring is the queue, and it is bounded: what is not fetched in time is overwritten there and told as a gap.
//! Nothing is kept here but the rest of a line. Without the right to read it (`CAP_SYSLOG`, or `kernel.dmesg_restrict=0`)
//! there is no log, which is told and no failure: all other signs of a card's health are looked at without it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::{GpuOptions, LogBatch};
use crate::model::card::kernel_log::KernelRecord;

const FILE: &str = "dev/kmsg";

/// Records of one batch: a burst of a driver has some hundreds.
const MAX_RECORDS: usize = 2048;

/// More than any record: the kernel's own bound is 8 KiB (`CONSOLE_EXT_LOG_MAX`).
const BUFFER: usize = 16 << 10;

/// A record of a file that has no end; it is thrown away at this length.
const MAX_REST: usize = 64 << 10;

/// The log below a root, opened at the first read.
#[derive(Debug)]
pub(super) struct KernelLog {
    path: PathBuf,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// What came of a record that has not ended yet.
    rest: Vec<u8>,
}

impl KernelLog {
    pub(super) fn new(options: &GpuOptions) -> Self {
        Self { path: options.root.join(FILE), open: Mutex::default() }
    }

    /// What has come since the last call; from the oldest record on at the first. Does not block.
    ///
    /// # Errors
    /// In plain words, where there is no log that can be read. The next call tries again.
    pub(super) fn read(&self) -> Result<LogBatch, String> {
        let mut slot = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match slot.as_mut() {
            Some(open) => open,
            None => slot.insert(Open { file: self.open()?, rest: Vec::new() }),
        };
        let batch = read(&mut open.file, &mut open.rest).map_err(|error| self.said(&error));
        if batch.is_err() {
            *slot = None;
        }
        batch
    }

    fn open(&self) -> Result<File, String> {
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.path);
        opened.map_err(|error| self.said(&error))
    }

    fn said(&self, error: &std::io::Error) -> String {
        format!("the kernel's log ({}) cannot be read: {error}", self.path.display())
    }
}

fn read(from: &mut impl Read, rest: &mut Vec<u8>) -> std::io::Result<LogBatch> {
    let mut batch = LogBatch::default();
    let mut buffer = vec![0; BUFFER];
    while batch.records.len() < MAX_RECORDS {
        match from.read(&mut buffer) {
            // The end of a file, or nobody writes to the pipe at the moment.
            Ok(0) => return Ok(batch),
            Ok(count) => take(buffer.get(..count).unwrap_or_default(), rest, &mut batch),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => return Ok(batch),
                Some(Errno::EINTR) => {}
                // Overwritten before it was read; the next read goes on with the oldest that is left.
                Some(Errno::EPIPE) => {
                    batch.has_gap = true;
                    rest.clear();
                }
                // A record that is longer than any may be; the next read goes on behind it.
                Some(Errno::EINVAL) => batch.has_gap = true,
                _ => return Err(error),
            },
        }
    }
    batch.has_more = true;
    Ok(batch)
}

/// Lines that begin with a blank belong to the record before them, and say nothing that is asked here.
fn take(bytes: &[u8], rest: &mut Vec<u8>, batch: &mut LogBatch) {
    rest.extend_from_slice(bytes);
    let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
        if rest.len() > MAX_REST {
            rest.clear();
            batch.has_gap = true;
        }
        return;
    };
    let after = rest.split_off(end + 1);
    let whole = std::mem::replace(rest, after);
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b" "));
    batch.records.extend(lines.filter_map(KernelRecord::parse));
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn log(name: &str) -> (tempfile::TempDir, KernelLog, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dev")).unwrap();
        let options = GpuOptions { root: dir.path().to_owned(), ..GpuOptions::default() };
        let path = dir.path().join(name);
        (dir, KernelLog::new(&options), path)
    }

    fn sequences(log: &KernelLog) -> Vec<u64> {
        log.read().unwrap().records.iter().map(|record| record.sequence).collect()
    }

    #[test]
    fn a_file_is_read_from_its_beginning_and_on_from_where_it_was_left() {
        let (_dir, log, path) = log(FILE);
        let why = log.read().unwrap_err();
        assert!(why.contains("cannot be read") && why.contains("No such file"), "{why}");
        std::fs::write(&path, "6,1,10,-;one\n SUBSYSTEM=pci\n6,2,20,-;two\n6,3,30,-;thr").unwrap();
        assert_eq!(sequences(&log), [1, 2]);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"ee\nrubbish\n\xff\x00;\n6,4,40,-;four\n").unwrap();
        let batch = log.read().unwrap();
        assert_eq!(batch.records.iter().map(|record| record.text.as_str()).collect::<Vec<_>>(), ["three", "four"]);
        assert!(sequences(&log).is_empty());
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_holds_nobody_up() {
        let (_dir, log, path) = log(FILE);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(sequences(&log).is_empty());
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(sequences(&log).is_empty());
        file.write_all(b"6,1,10,-;one\n6,2,2").unwrap();
        assert_eq!(sequences(&log), [1]);
        file.write_all(b"0,-;two\n").unwrap();
        drop(file);
        assert_eq!(sequences(&log), [2]);
    }

    #[test]
    fn a_flood_comes_in_batches_and_a_line_without_end_is_thrown_away() {
        let (_dir, log, path) = log(FILE);
        let mut text: Vec<u8> = Vec::new();
        for number in 0..10_000 {
            writeln!(text, "4,{number},{number},-;NVRM: Xid (PCI:0000:41:00): 31, MMU Fault").unwrap();
        }
        text.extend(vec![b'x'; 200 << 10]);
        text.extend(b"\n4,10000,1,-;last\n");
        std::fs::write(&path, &text).unwrap();
        let (mut count, mut has_gap, mut batches, mut last) = (0, false, 0, String::new());
        loop {
            let batch = log.read().unwrap();
            batches += 1;
            count += batch.records.len();
            has_gap |= batch.has_gap;
            last = batch.records.last().map_or(last, |record| record.text.clone());
            if !batch.has_more {
                break;
            }
        }
        assert_eq!((count, has_gap, last.as_str()), (10_001, true, "last"));
        assert!((3..=6).contains(&batches), "{batches}");
    }

    /// Answers one after the other, as `/dev/kmsg` gives them.
    struct Script(Vec<Result<&'static str, Errno>>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let text = self.0.remove(0).map_err(|errno| std::io::Error::from_raw_os_error(errno as i32))?;
            buffer[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }

    #[test]
    fn overwritten_records_are_told_as_a_gap_and_the_rest_is_read() {
        let mut rest = Vec::new();
        let mut script = Script(vec![
            Ok("6,1,1,-;one\n"),
            Err(Errno::EPIPE),
            Err(Errno::EINTR),
            Ok("6,9,9,-;nine\n KEY=value\n"),
            Err(Errno::EINVAL),
            Ok("6,11,11,-;eleven\n"),
            Err(Errno::EAGAIN),
            Err(Errno::EIO),
        ]);
        let batch = super::read(&mut script, &mut rest).unwrap();
        assert_eq!(batch.records.iter().map(|record| record.sequence).collect::<Vec<_>>(), [1, 9, 11]);
        assert!(batch.has_gap && !batch.has_more);
        assert!(super::read(&mut script, &mut rest).is_err());
    }

    /// The real one, where this user may read it.
    #[test]
    fn the_kernels_own_log_ends_and_is_in_order() {
        let log = KernelLog::new(&GpuOptions::default());
        let mut all: Vec<u64> = Vec::new();
        loop {
            match log.read() {
                Ok(batch) => {
                    all.extend(batch.records.iter().map(|record| record.sequence));
                    if !batch.has_more {
                        break;
                    }
                }
                Err(why) => return eprintln!("skipped: {why}"),
            }
        }
        assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{} records", all.len());
    }
}
