//! Child programs with a deadline: the one way in which adapters run a program and wait for its end.
//!
//! A leaf beside [`crate::config`]: it knows no model and no host. A program is given its arguments as a list
//! (no shell), an empty environment with `LC_ALL=C`, `/` as working directory and no standard input. It is
//! killed when the deadline passes and when the caller stops waiting; what it prints is read up to a bound.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// Where programs are looked for: a daemon's own PATH may lack the sbin folders.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Standard output is read up to this size unless told otherwise; more is an error.
const MAX_OUTPUT: usize = 1 << 20;

/// So much of the end of standard error is kept.
const MAX_STDERR: usize = 4096;

/// A killed child that does not go away within this time sits in the kernel; it is left to init.
const REAP: Duration = Duration::from_secs(2);

/// The user that programs are run as which look at files of strangers (`nobody` on every Linux).
const NOBODY: u32 = 65_534;

/// Why a child program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program is not installed.
    #[error("{0} is not installed")]
    Missing(String),
    /// It could not be started or read from.
    #[error("cannot run {program}")]
    Io {
        /// The program.
        program: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It took longer than it may.
    #[error("{program} did not end within {} s and was killed", .after.as_secs_f32())]
    Deadline {
        /// The program.
        program: String,
        /// The deadline.
        after: Duration,
    },
    /// It printed more than could be meant.
    #[error("{0} printed more than it may")]
    TooMuch(String),
}

/// How a child program ended.
#[derive(Debug)]
pub struct ChildOutput {
    /// Its name, for messages.
    pub program: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Everything on standard output.
    pub stdout: Vec<u8>,
    /// The end of standard error.
    pub stderr: String,
}

impl ChildOutput {
    /// True where it ended with 0.
    pub fn is_success(&self) -> bool {
        self.status.success()
    }

    /// What it said last on standard error, else how it ended; one line for messages.
    pub fn complaint(&self) -> String {
        let last = self.stderr.lines().rev().map(str::trim).find(|line| !line.is_empty());
        match last {
            Some(line) => line.chars().filter(|c| !c.is_control()).take(500).collect(),
            None => format!("{} ended with {}", self.program, self.status),
        }
    }
}

/// A program to be run.
pub struct ChildCall {
    program: OsString,
    args: Vec<OsString>,
    deadline: Duration,
    stdin: Option<File>,
    user: Option<u32>,
    /// CPU seconds and bytes of address space.
    limits: Option<(u64, u64)>,
    max_output: usize,
}

impl fmt::Debug for ChildCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.program, self.args)
    }
}

impl ChildCall {
    /// A call of `program`, which is a name on [`SEARCH_PATH`] or an absolute path.
    pub fn new(program: impl AsRef<OsStr>, deadline: Duration) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            deadline,
            stdin: None,
            user: None,
            limits: None,
            max_output: MAX_OUTPUT,
        }
    }

    /// Adds arguments. Everything that did not come from us belongs behind a `--` or in an absolute path.
    #[must_use]
    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Gives it an open file as standard input, which it can open again as `/dev/fd/0`.
    #[must_use]
    pub fn stdin(mut self, file: File) -> Self {
        self.stdin = Some(file);
        self
    }

    /// Limits its CPU time and its address space (by prlimit(1)).
    #[must_use]
    pub fn limits(mut self, cpu: Duration, address_space: u64) -> Self {
        self.limits = Some((cpu.as_secs().max(1), address_space));
        self
    }

    /// Runs it as `nobody` where we are root; else as ourselves.
    #[must_use]
    pub fn as_nobody(mut self) -> Self {
        self.user = nix::unistd::Uid::effective().is_root().then_some(NOBODY);
        self
    }

    /// Allows at most so many bytes on standard output.
    #[must_use]
    pub fn max_output(mut self, bytes: usize) -> Self {
        self.max_output = bytes;
        self
    }

    /// The name for messages: without folders.
    fn name(&self) -> String {
        let path = PathBuf::from(&self.program);
        path.file_name().unwrap_or(&self.program).to_string_lossy().into_owned()
    }

    /// The command, not started; for callers that watch the output while it runs.
    pub fn command(&mut self) -> Command {
        let mut command = match self.limits {
            Some((cpu, space)) => {
                let mut command = Command::new("prlimit");
                command.arg(format!("--cpu={cpu}")).arg(format!("--as={space}")).arg("--core=0").arg("--");
                command.arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        if let Some(id) = self.user {
            command.uid(id).gid(id);
        }
        command
            .args(&self.args)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(self.stdin.take().map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A ^C on the terminal of a manager in the foreground must not end its children half way.
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    /// Starts it and waits for its end.
    ///
    /// # Errors
    /// Only where it gave no answer; a bad exit status is an answer.
    pub async fn run(mut self) -> Result<ChildOutput, ChildError> {
        let program = self.name();
        let io = |source| ChildError::Io { program: program.clone(), source };
        let mut child = self.command().spawn().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => ChildError::Missing(program.clone()),
            _ => io(e),
        })?;
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io(std::io::ErrorKind::BrokenPipe.into()));
        };
        let all = async {
            // One byte more than allowed tells "exactly full" from "more".
            let bound = u64::try_from(self.max_output).unwrap_or(u64::MAX).saturating_add(1);
            let mut out = Vec::new();
            let reading = async {
                stdout.take(bound).read_to_end(&mut out).await?;
                Ok::<_, std::io::Error>(out.len() > self.max_output)
            };
            let (too_much, err) = tokio::join!(reading, read_tail(stderr));
            if too_much.map_err(io)? {
                return Err(ChildError::TooMuch(program.clone()));
            }
            let status = child.wait().await.map_err(io)?;
            Ok((status, out, err.map_err(io)?))
        };
        let result = tokio::time::timeout(self.deadline, all).await;
        match result {
            Ok(Ok((status, stdout, stderr))) => Ok(ChildOutput { program, status, stdout, stderr }),
            Ok(Err(error)) => {
                end(&mut child).await;
                Err(error)
            }
            Err(_) => {
                end(&mut child).await;
                Err(ChildError::Deadline { program, after: self.deadline })
            }
        }
    }
}

/// Kills a child and waits a moment for it to be gone.
pub async fn end(child: &mut Child) {
    // Failing means that it has ended already.
    let _ = child.start_kill();
    let _ = tokio::time::timeout(REAP, child.wait()).await;
}

/// Reads to the end and keeps the last [`MAX_STDERR`] bytes.
async fn read_tail(mut from: impl AsyncRead + Unpin) -> std::io::Result<String> {
    let mut kept = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(String::from_utf8_lossy(&kept).into_owned());
        }
        kept.extend_from_slice(buffer.get(..count).unwrap_or_default());
        let excess = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..excess);
    }
}

/// The first of the programs that is not installed: a test that needs it says so and is skipped.
#[cfg(test)]
pub(crate) fn missing(programs: &[&'static str]) -> Option<&'static str> {
    let is_there = |name: &str| SEARCH_PATH.split(':').any(|dir| std::path::Path::new(dir).join(name).is_file());
    programs.iter().copied().find(|name| !is_there(name))
}

/// Ends a test where a program that it needs is not installed.
#[cfg(test)]
macro_rules! needs {
    ($($program:literal),+) => {
        if let Some(program) = crate::child::missing(&[$($program),+]) {
            eprintln!("skipped: {program} is not installed");
            return;
        }
    };
}
#[cfg(test)]
pub(crate) use needs;

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sh(script: &str, deadline: Duration) -> ChildCall {
        ChildCall::new("sh", deadline).args(["-c", script])
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn output_status_and_complaint_are_kept_apart() {
        let out = sh("echo out; echo first >&2; echo 'No space' >&2; exit 3", LONG).run().await.unwrap();
        assert_eq!((out.stdout.as_slice(), out.status.code()), (b"out\n".as_slice(), Some(3)));
        assert_eq!(out.complaint(), "No space");
        let silent = sh("exit 4", LONG).run().await.unwrap();
        assert_eq!(silent.complaint(), "sh ended with exit status: 4");
    }

    #[tokio::test]
    async fn the_deadline_kills() {
        let begun = Instant::now();
        let error = sh("exec sleep 60", Duration::from_millis(200)).run().await.unwrap_err();
        assert!(matches!(error, ChildError::Deadline { .. }), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn dropping_the_future_kills() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("pid");
        let script = format!("echo $$ > {}; exec sleep 60", mark.display());
        let run = sh(&script, LONG).run();
        let _ = tokio::time::timeout(Duration::from_millis(500), run).await;
        let pid: i32 = std::fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
        for _ in 0..100 {
            if nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{pid} still lives");
    }

    #[tokio::test]
    async fn a_flood_is_refused_and_stderr_is_cut() {
        let error = sh("yes", LONG).max_output(1000).run().await.unwrap_err();
        assert!(matches!(error, ChildError::TooMuch(_)), "{error}");
        let out = sh("yes | head -c 100000 >&2; echo end >&2", LONG).run().await.unwrap();
        assert!(out.stderr.len() <= MAX_STDERR && out.stderr.ends_with("end\n"));
    }

    #[tokio::test]
    async fn limits_and_missing_programs() {
        let out = sh("ulimit -t; ulimit -v", LONG).limits(Duration::from_secs(7), 1 << 30).run().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), "7\n1048576\n");
        let error = ChildCall::new("gvm-no-such-program", LONG).run().await.unwrap_err();
        assert_eq!(error.to_string(), "gvm-no-such-program is not installed");
    }

    #[tokio::test]
    async fn standard_input_can_be_opened_again_as_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        std::os::unix::fs::chown(&path, None, None).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
        let file = File::open(&path).unwrap();
        let out = ChildCall::new("cat", LONG).args(["/dev/fd/0"]).stdin(file).as_nobody().run().await.unwrap();
        assert_eq!(out.stdout, b"content", "{}", out.stderr);
    }
}
