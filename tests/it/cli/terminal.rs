//! A terminal for commands that look whether there is one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

/// A command on a terminal of its own.
pub struct OnTerminal {
    child: Child,
    ours: File,
    theirs: OwnedFd,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl OnTerminal {
    pub fn start(mut command: Command) -> Self {
        let window = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&window), None).unwrap();
        let side = || Stdio::from(pty.slave.try_clone().unwrap());
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        let ours = File::from(pty.master);
        let mut reader = ours.try_clone().unwrap();
        let (to, screen) = sync_channel(64);
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(read) = reader.read(&mut buffer) {
                if read == 0 || to.send(buffer[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, ours, theirs: pty.slave, screen, seen: String::new() }
    }

    /// Waits until the screen has shown a text.
    pub fn until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let Ok(bytes) = self.screen.recv_timeout(Duration::from_secs(10)) else {
                panic!("no {text:?} in {:?}", self.seen);
            };
            self.seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    pub fn is_raw(&self) -> bool {
        !tcgetattr(self.theirs.as_fd()).unwrap().local_flags.contains(LocalFlags::ICANON)
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub fn type_in(&mut self, bytes: &[u8]) {
        self.ours.write_all(bytes).unwrap();
    }

    /// Waits for the end and returns the exit code.
    pub fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it did not end: {}", self.seen);
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Over already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
