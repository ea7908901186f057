//! How far a guest's boot has come, read from the record of its serial line.
//!
//! The words come from inside of the machine and are only shown to its owner; nothing is decided by them that the
//! owner could not decide anyway. Lines are taken in order and the last one that says something wins; the banner
//! of firmware or kernel starts anew, so that a reboot does not show the end of the boot before it.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::error::{ImageError, ImageErrorKind, Result};
use super::files;
use crate::model::state::FirstBoot;

/// So much of the end of the record is read: a verbose Debian boot is about 80 KiB.
const TAIL: u64 = 256 << 10;

/// Longest stage or reason that is passed on, characters.
const MAX_WORDS: usize = 300;

/// What our own reports begin with; see `templates/cloud-init/report.sh` and the `tiny` image.
const MARK: &str = "gvm: ";

/// Reads the end of a record, from byte `from` on (its length when the machine was started; 0 where the record is
/// begun anew at each start).
///
/// # Errors
/// Where the file cannot be read; a missing one is `Waiting`.
pub async fn read(serial_log: &Path, from: u64) -> Result<FirstBoot> {
    let path = serial_log.to_owned();
    let doing = format!("reading {}", path.display());
    files::blocking(doing.clone(), move || {
        let mut file = match files::open_regular(&path) {
            Ok(file) => file,
            Err(e) if e.kind == ImageErrorKind::NotFound => return Ok(FirstBoot::Waiting),
            Err(e) => return Err(e),
        };
        let failed = |e: std::io::Error| ImageError::io(&doing, &e);
        let size = file.metadata().map_err(failed)?.len();
        // A record that is shorter than it was has been begun anew.
        let from = if from > size { 0 } else { from };
        file.seek(SeekFrom::Start(from.max(size.saturating_sub(TAIL)))).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes).map_err(failed)?;
        Ok(parse(&String::from_utf8_lossy(&bytes)))
    })
    .await
}

/// Reads the state out of a text of a serial line. A last line without its end is not looked at.
pub fn parse(text: &str) -> FirstBoot {
    let plain = without_escapes(text);
    let whole = plain.rfind('\n').and_then(|end| plain.get(..end)).unwrap_or_default();
    let mut boot = Boot::default();
    whole.lines().for_each(|line| boot.take(line.trim()));
    boot.state
}

#[derive(Default)]
struct Boot {
    state: FirstBoot,
    /// Our report speaks in this boot; it knows better than the plain lines.
    has_report: bool,
}

impl Boot {
    fn take(&mut self, line: &str) {
        if let Some(said) = report(line) {
            self.take_report(said);
        } else if line.contains("Linux version ") {
            *self = Self { state: FirstBoot::Stage("kernel".to_owned()), has_report: false };
        } else if ["SeaBIOS (version", "UEFI firmware (version", "BdsDxe: loading"].iter().any(|b| line.contains(b)) {
            *self = Self { state: FirstBoot::Stage("firmware".to_owned()), has_report: false };
        } else if let Some((_, why)) = line.split_once("Kernel panic - not syncing: ") {
            self.state = FirstBoot::Failed(format!("the guest's kernel has stopped: {}", words(why)));
        } else if line.contains("You are in emergency mode") {
            self.state = FirstBoot::Failed("the guest waits in emergency mode; look at its console".to_owned());
        } else if !self.has_report {
            self.take_cloud_init(line);
        }
    }

    fn take_report(&mut self, said: &str) {
        if let Some(stage) = said.strip_prefix("stage ") {
            self.state = FirstBoot::Stage(words(stage));
        } else if said == "ready" {
            self.state = FirstBoot::Done;
        } else if let Some(why) = said.strip_prefix("failed:") {
            self.state = FirstBoot::Failed(words(why));
        } else {
            return;
        }
        self.has_report = true;
    }

    /// Lines of cloud-init itself, for images whose boot does not run our report.
    fn take_cloud_init(&mut self, line: &str) {
        if line.contains("Cloud-init v.") {
            if line.contains(" finished at ") {
                self.state = match line.contains("DataSourceNone") {
                    true => FirstBoot::Failed("cloud-init has not found its seed".to_owned()),
                    false => FirstBoot::Done,
                };
            } else if let Some((_, rest)) = line.split_once(" running '") {
                let stage = rest.split('\'').next().unwrap_or_default();
                self.state = FirstBoot::Stage(words(stage));
            }
        } else if let Some((_, unit)) = line.split_once("Failed to start ")
            && unit.to_ascii_lowercase().contains("cloud")
        {
            let unit = unit.trim_end_matches(['.', '\u{2026}']);
            self.state = FirstBoot::Failed(format!("in the guest, {} has failed", words(unit)));
        }
    }
}

/// What a line of ours says. Other output may stand before it on the same line.
fn report(line: &str) -> Option<&str> {
    let at = line.rfind(MARK)?;
    let before = line.get(..at)?.chars().next_back();
    let is_own_word = !before.is_some_and(|c| c.is_alphanumeric() || "-_\"'`".contains(c));
    is_own_word.then(|| line.get(at + MARK.len()..).unwrap_or_default().trim())
}

/// Bounded, without control characters, single blanks.
fn words(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_WORDS).collect()
}

/// Removes the escape sequences of terminals and makes every carriage return an end of line.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' => out.push('\n'),
            '\u{1b}' => match chars.next() {
                // CSI: parameters up to a letter.
                Some('[') => while chars.next().is_some_and(|c| !('\u{40}'..='\u{7e}').contains(&c)) {},
                // OSC, DCS and their kin: up to BEL or the string terminator, and never past a line.
                Some(']' | 'P' | '_' | '^' | 'X') => {
                    while chars.peek().is_some_and(|c| !['\n', '\r'].contains(c)) {
                        if matches!(chars.next(), Some('\u{7}' | '\\')) {
                            break;
                        }
                    }
                }
                // Character sets take one more.
                Some('(' | ')' | '*' | '+' | '#' | '%' | ' ') => drop(chars.next()),
                Some('\n') => out.push('\n'),
                _ => {}
            },
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(word: &str) -> FirstBoot {
        FirstBoot::Stage(word.to_owned())
    }

    fn failed(why: &str) -> FirstBoot {
        FirstBoot::Failed(why.to_owned())
    }

    fn check(text: &str, expected: FirstBoot) {
        assert_eq!(parse(text), expected, "{text:?}");
    }

    #[test]
    fn our_own_reports_are_read() {
        check("", FirstBoot::Waiting);
        check("noise\r\nmore\r\n", FirstBoot::Waiting);
        check("gvm: stage network\r\n", stage("network"));
        check("gvm: stage network\r\n\r\ngvm: ready\r\n\r\nlogin: ", FirstBoot::Done);
        check("gvm: failed: no DHCP answer on eth0 within 60 s\n", failed("no DHCP answer on eth0 within 60 s"));
        check("[    3.1] random: crng gvm: ready\r\n", FirstBoot::Done);
        check("\u{1b}[0;32m  OK  \u{1b}[0m\u{1b}]0;title\u{7}gvm: ready\u{1b}[K\r\n", FirstBoot::Done);
        check("gvm: stage ssh\r\ngvm: read", stage("ssh"));
        check("echo \"gvm: ready\"\n", FirstBoot::Waiting);
        check("mygvm: ready\ngvm: nonsense\n", FirstBoot::Waiting);
    }

    #[test]
    fn a_new_boot_starts_anew() {
        let old = "gvm: stage x\r\ngvm: ready\r\n";
        check(&format!("{old}[    0.000000] Linux version 6.1.0\r\n"), stage("kernel"));
        check(&format!("{old}BdsDxe: loading Boot0001\r\n"), stage("firmware"));
        check(&format!("{old}gvm: stage cloud-init\r\n"), stage("cloud-init"));
        check("gvm: failed: x\nSeaBIOS (version 1.16)\ngvm: stage a\ngvm: ready\n", FirstBoot::Done);
    }

    #[test]
    fn plain_lines_of_cloud_init_count_where_no_report_speaks() {
        let finished = "[   30.1] cloud-init[700]: Cloud-init v. 25.1 finished at Mon, 01 Jan 2026. Datasource DataSourceNoCloud [seed=/dev/vdb].  Up 30.1 seconds\n";
        check(finished, FirstBoot::Done);
        check(&finished.replace("NoCloud", "None"), failed("cloud-init has not found its seed"));
        check("Cloud-init v. 25.1 running 'modules:final' at Mon\n", stage("modules:final"));
        check(&format!("gvm: stage cloud-init\n{finished}"), stage("cloud-init"));
        check(
            "[FAILED] Failed to start cloud-final.service - Cloud-init: Final Stage.\r\n",
            failed("in the guest, cloud-final.service - Cloud-init: Final Stage has failed"),
        );
        check("Failed to start apache2.service\n", FirstBoot::Waiting);
    }

    #[test]
    fn a_dead_guest_is_told() {
        check(
            "Kernel panic - not syncing: VFS: Unable to mount root fs\n",
            failed("the guest's kernel has stopped: VFS: Unable to mount root fs"),
        );
        check(
            "You are in emergency mode. After logging in\n",
            failed("the guest waits in emergency mode; look at its console"),
        );
    }

    #[test]
    fn words_of_the_guest_are_bounded() {
        let FirstBoot::Failed(why) = parse(&format!("gvm: failed: a\u{8}b\tc{}\n", "x".repeat(5000))) else {
            panic!("not failed")
        };
        assert!(why.starts_with("a b cxxx") && why.chars().count() == MAX_WORDS);
    }

    #[tokio::test]
    async fn only_the_end_and_only_from_the_given_place_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serial.log");
        assert_eq!(read(&path, 0).await.unwrap(), FirstBoot::Waiting);
        let old = "gvm: ready\n";
        std::fs::write(&path, format!("{old}gvm: stage a\n")).unwrap();
        assert_eq!(read(&path, old.len() as u64).await.unwrap(), stage("a"));
        assert_eq!(read(&path, 10_000).await.unwrap(), stage("a"));
        std::fs::write(&path, old).unwrap();
        assert_eq!(read(&path, old.len() as u64).await.unwrap(), FirstBoot::Waiting);
        std::fs::write(&path, format!("{old}{}", "x\n".repeat(200_000))).unwrap();
        assert_eq!(read(&path, 0).await.unwrap(), FirstBoot::Waiting);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(gvm: |stage |ready|failed:|\u{1b}|\\[|\\]|\r|\n|[ -~]|\u{e4}){0,200}") {
            let _ = parse(&text);
        }
    }
}
