//! Examines a disk file of a stranger: our own parser first, then qemu-img and qemu-io without rights.
//!
//! The programs get the file as standard input and open it again as `/dev/fd/0`: no path of ours or of a stranger
//! is on their command line, and no folder needs to be passable for `nobody`.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use serde_json::Value;

use super::disk::DiskTools;
use super::error::{ImageError, ImageErrorKind, Result};
use super::header::{self, Admitted};
use super::partition;
use crate::child::{ChildCall, ChildOutput};
use crate::model::image::{DiskFormat, Growth};
use crate::model::units::Mib;

/// A sound image of 100 GB takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// CPU time of one look.
const CPU: Duration = Duration::from_secs(60);

/// Address space of one look, bytes; refcounts of the largest file allowed fit many times.
const SPACE: u64 = 2 << 30;

/// The open file as its programs see it.
const STDIN: &str = "/dev/fd/0";

/// Reads head and tail of a file and decides whether QEMU may see it.
pub(super) fn admit(file: &File, said: Option<DiskFormat>, doing: &str) -> Result<Admitted> {
    let failed = |e: std::io::Error| ImageError::io(doing, &e);
    let mut file = file;
    let size = file.metadata().map_err(failed)?.len();
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut head = Vec::new();
    let bound = u64::try_from(header::HEAD).unwrap_or(u64::MAX);
    file.take(bound).read_to_end(&mut head).map_err(failed)?;
    let mut tail = vec![0; header::TAIL.min(usize::try_from(size).unwrap_or(header::TAIL))];
    let tail_size = u64::try_from(tail.len()).unwrap_or(size);
    file.read_exact_at(&mut tail, size.saturating_sub(tail_size)).map_err(failed)?;
    header::admit(&head, &tail, size, said).map_err(|why| ImageError::invalid(doing, why.to_string()))
}

/// Lets qemu-img read an admitted file: both must see the same, and qcow2 must be sound.
pub(super) async fn check(tools: &DiskTools, file: &File, admitted: Admitted, doing: &str) -> Result<()> {
    let format = admitted.format.as_str();
    let info = look(&tools.qemu_img, ["info", "--output=json", "-f", format, STDIN], file, doing).await?;
    if !info.is_success() {
        return Err(ImageError::invalid(doing, format!("qemu-img cannot read it: {}", info.complaint())));
    }
    let value: Value = serde_json::from_slice(&info.stdout)
        .map_err(|e| ImageError::new(ImageErrorKind::Permanent, doing, format!("qemu-img info says no JSON: {e}")))?;
    agrees(&value, admitted).map_err(|why| ImageError::invalid(doing, why))?;
    if admitted.format == DiskFormat::Raw {
        return Ok(());
    }
    let check = look(&tools.qemu_img, ["check", "--output=json", "-f", format, STDIN], file, doing).await?;
    match check.status.code() {
        // 3: space is wasted inside, nothing is wrong.
        Some(0 | 3) => Ok(()),
        _ => Err(ImageError::invalid(
            doing,
            "the image is damaged; mend it first with `qemu-img check -r all FILE` or fetch it again",
        )),
    }
}

/// Compares what qemu-img says with what our own parser saw; a difference means that one of them was fooled.
fn agrees(info: &Value, admitted: Admitted) -> std::result::Result<(), String> {
    for key in ["backing-filename", "full-backing-filename"] {
        if info.get(key).is_some() {
            return Err("the image refers to another file".to_owned());
        }
    }
    if info.pointer("/format-specific/data/data-file").is_some() {
        return Err("the image keeps its data in another file".to_owned());
    }
    if info.get("encrypted").and_then(Value::as_bool) == Some(true) {
        return Err("the image is encrypted".to_owned());
    }
    let size = info.get("virtual-size").and_then(Value::as_u64);
    // Sizes are rounded up to sectors.
    if size != Some(admitted.virtual_size.next_multiple_of(512)) {
        return Err(format!("its size is not clear: {} or {size:?} bytes", admitted.virtual_size));
    }
    Ok(())
}

/// Reads the partition table of an admitted disk. What cannot be found out is `Unknown`, never an error.
pub(super) async fn growth(tools: &DiskTools, file: &File, admitted: Admitted, root: Option<u32>) -> Growth {
    let size = u64::try_from(partition::HEAD).unwrap_or(0).min(admitted.virtual_size);
    let read = format!("read -v 0 {size}");
    let args = ["-r", "-f", admitted.format.as_str(), "-c", &read, STDIN];
    match look(&tools.qemu_io, args, file, "reading the partition table").await {
        Ok(output) => partition::growth(&read_dump(&String::from_utf8_lossy(&output.stdout)), root),
        Err(error) => {
            tracing::info!(error = %error, "the partition table of an image stays unknown");
            Growth::Unknown
        }
    }
}

/// The bytes of qemu-io's dump: lines of `00000010:  00 01 .. 0f  ................`.
fn read_dump(text: &str) -> Vec<u8> {
    let line = |line: &str| {
        let (at, rest) = line.split_once(":  ")?;
        let bytes = rest.split_whitespace().map_while(|word| (word.len() == 2).then(|| u8::from_str_radix(word, 16)));
        (at.len() == 8).then(|| bytes.map_while(std::result::Result::ok).take(16).collect::<Vec<_>>())
    };
    text.lines().filter_map(line).flatten().collect()
}

async fn look<const N: usize>(
    program: impl AsRef<std::ffi::OsStr>,
    args: [&str; N],
    file: &File,
    doing: &str,
) -> Result<ChildOutput> {
    let file = file.try_clone().map_err(|e| ImageError::io(doing, &e))?;
    let call = ChildCall::new(program, PATIENCE).args(args).stdin(file).limits(CPU, SPACE).as_nobody();
    call.run().await.map_err(|e| ImageError::child(doing, &e))
}

/// The hex SHA-256 of a file.
pub(super) async fn digest(file: &File, patience: Duration, doing: &str) -> Result<String> {
    let mut file = file.try_clone().map_err(|e| ImageError::io(doing, &e))?;
    file.seek(SeekFrom::Start(0)).map_err(|e| ImageError::io(doing, &e))?;
    // A child and not a thread of ours: it ends when nobody waits for it any more.
    let output = ChildCall::new("sha256sum", patience).stdin(file).run().await;
    let output = output.map_err(|e| ImageError::child(doing, &e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let word = text.split_whitespace().next().filter(|_| output.is_success()).unwrap_or_default();
    match word.len() {
        64 => Ok(word.to_owned()),
        _ => Err(ImageError::ended(doing, &output)),
    }
}

/// Rounds a size in bytes up.
pub(super) fn whole(admitted: Admitted) -> Mib {
    Mib::from_bytes_ceil(admitted.virtual_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_read_back() {
        let text = "00000000:  eb 63 90 00 ff 0a 20 41 00 00 00 00 00 00 00 01  .c.... A........\n\
                    00000010:  55 aa 00 00 00 00 00 00 00 00 00 00 00 00 00 02  U...............\n\
                    read 32/32 bytes at offset 0\n32 bytes, 1 ops; 00.00 sec\n";
        let bytes = read_dump(text);
        assert_eq!((bytes.len(), bytes[0], bytes[15], bytes[16], bytes[31]), (32, 0xeb, 1, 0x55, 2));
    }

    #[test]
    fn another_opinion_of_qemu_img_is_a_refusal() {
        let admitted = Admitted { format: DiskFormat::Qcow2, virtual_size: 1 << 20 };
        let says = |text: &str| agrees(&serde_json::from_str(text).unwrap(), admitted);
        assert_eq!(says(r#"{"virtual-size": 1048576}"#), Ok(()));
        assert!(says(r#"{"virtual-size": 1048577}"#).is_err());
        assert!(says(r#"{"virtual-size": 1048576, "backing-filename": "x"}"#).is_err());
        assert!(says(r#"{"virtual-size": 1048576, "encrypted": true}"#).is_err());
        assert!(says(r#"{"virtual-size": 1048576, "format-specific": {"data": {"data-file": "x"}}}"#).is_err());
    }
}
