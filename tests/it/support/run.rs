//! Programs with a deadline, and waiting for what must come.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How one ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What was run.
    pub what: String,
    /// Exit code; -1 where a signal ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Itself, where it succeeded.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{} failed:\n{}{}", self.what, self.stdout, self.stderr);
        self
    }

    /// Its error, where it ended with this code.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}:\n{}{}", self.what, self.stdout, self.stderr);
        self.stderr
    }

    /// Its standard output without the last line's end, where it succeeded.
    #[track_caller]
    pub fn text(self) -> String {
        self.ok().stdout.trim_end().to_owned()
    }

    /// Its standard output read as JSON, where it succeeded.
    #[track_caller]
    pub fn json<T: serde::de::DeserializeOwned>(self) -> T {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}"))
    }
}

/// Runs a program to its end.
#[track_caller]
pub fn run(command: Command, deadline: Duration) -> Ended {
    run_with(command, b"", deadline)
}

/// Runs a program to its end with this on its standard input.
#[track_caller]
pub fn run_with(mut command: Command, input: &[u8], deadline: Duration) -> Ended {
    let what = described(&command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A program that does not want it all is fine.
    std::thread::spawn(move || drop(std::io::Write::write_all(&mut stdin, &input)));
    let stdout = reader(child.stdout.take().unwrap());
    let stderr = reader(child.stderr.take().unwrap());
    let end = Instant::now() + deadline;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            kill(&mut child);
            panic!("{what} did not end within {deadline:?}:\n{}{}", stdout.join().unwrap(), stderr.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    Ended { what, code: status.code().unwrap_or(-1), stdout, stderr }
}

/// Ends a child and takes it off the table.
pub fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn described(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits until something holds.
#[track_caller]
pub fn until(what: &str, deadline: Duration, mut holds: impl FnMut() -> bool) {
    until_some(what, deadline, || holds().then_some(()));
}

/// Waits until something is there.
#[track_caller]
pub fn until_some<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
