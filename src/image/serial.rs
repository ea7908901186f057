//! The record of a machine's serial line, for people.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::error::{ImageError, ImageErrorKind, Result};
use super::files;

/// So much of the end is read.
const TAIL: u64 = 1 << 20;

/// The end of the record as text; a machine that never ran has none.
///
/// # Errors
/// Where the file cannot be read.
pub async fn tail(serial_log: &Path) -> Result<String> {
    let path = serial_log.to_owned();
    let doing = format!("reading {}", path.display());
    files::blocking(doing.clone(), move || {
        let failed = |e: std::io::Error| ImageError::io(&doing, &e);
        let mut file = match files::open_regular(&path) {
            Ok(file) => file,
            Err(e) if e.kind == ImageErrorKind::NotFound => return Ok(String::new()),
            Err(e) => return Err(e),
        };
        let size = file.metadata().map_err(failed)?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes).map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    })
    .await
}
