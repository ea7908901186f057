//! The terminal in raw mode, and back again on every way out: return, error, panic, signal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, Once, PoisonError};

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// What the terminal was before; here and not in the guard, so that the panic hook finds it.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// Holds the terminal in raw mode for as long as it lives.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Puts the terminal of standard input into raw mode; `None` where it is no terminal.
    ///
    /// # Errors
    /// Where the terminal refuses.
    pub fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                next(panic);
            }));
        });
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // A guest may have left colours on and the cursor off.
        let mut out = io::stdout().lock();
        let _ = out.write_all(b"\x1b[0m\x1b[?25h").and_then(|()| out.flush());
        // Not after the output has drained: a terminal that reads nothing would hold us for ever.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &before);
    }
}

/// Rows and columns of the window, where there is one.
pub fn size() -> Option<(u16, u16)> {
    terminal_size::terminal_size().map(|(columns, rows)| (rows.0, columns.0))
}
