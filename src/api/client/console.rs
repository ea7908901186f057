//! The serial console of a machine over the manager's socket: a WebSocket whose binary frames are bytes both ways.
//!
//! The manager explains every end by a close code: [`close::DONE`] with a reason (the machine was shut down),
//! [`close::GOING_AWAY`] or [`close::RESTART`] when it restarts itself, and 4000 plus the HTTP status of an
//! [`ErrorCode`] for a refusal after the upgrade ([`close::HELD`] when somebody else types there already).

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};

use super::{Client, ClientError, STREAM_DEADLINE, refusal, segment};
use crate::api::error::ErrorCode;

/// Largest message that is taken; the manager sends pieces of a few KiB.
const MESSAGE_MAX: usize = 1 << 20;

/// Close codes.
pub mod close {
    /// The console has come to its end.
    pub const DONE: u16 = 1000;
    /// The manager shuts down.
    pub const GOING_AWAY: u16 = 1001;
    /// The manager restarts.
    pub const RESTART: u16 = 1012;
    /// Somebody else holds the console for writing.
    pub const HELD: u16 = 4409;
}

/// What a viewer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleMode {
    /// Types; one at a time.
    Write,
    /// Looks on.
    Read,
}

/// What comes out of a console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConsoleEvent {
    /// Bytes of the guest.
    Bytes(Bytes),
    /// The manager closed it and said why.
    Closed {
        /// Close code; see [`close`].
        code: u16,
        /// In plain words.
        reason: String,
    },
    /// The connection broke.
    Lost,
}

/// An open console.
#[derive(Debug)]
pub struct Console {
    socket: WebSocketStream<UnixStream>,
}

impl Console {
    /// Waits for what comes next. May be dropped and called again without loss.
    pub async fn next(&mut self) -> ConsoleEvent {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Binary(bytes))) => return ConsoleEvent::Bytes(bytes),
                Some(Ok(Message::Text(text))) => return ConsoleEvent::Bytes(text.into()),
                Some(Ok(Message::Close(frame))) => {
                    return match frame {
                        Some(frame) => {
                            ConsoleEvent::Closed { code: frame.code.into(), reason: frame.reason.to_string() }
                        }
                        None => ConsoleEvent::Lost,
                    };
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return ConsoleEvent::Lost,
            }
        }
    }

    /// Types `bytes`.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn send(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.socket.send(Message::binary(bytes)).await.map_err(|e| ClientError::Upgrade(e.to_string()))
    }

    /// Takes leave.
    pub async fn close(mut self) {
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        // The manager sees the end of the connection in any case.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(1), self.socket.close(Some(frame))).await;
    }
}

impl Client {
    /// Opens the serial console of a machine.
    ///
    /// # Errors
    /// The manager's refusal, or that it cannot be reached.
    pub async fn console(&self, vm: &str, mode: ConsoleMode) -> Result<Console, ClientError> {
        let mode = match mode {
            ConsoleMode::Write => "write",
            ConsoleMode::Read => "read",
        };
        let url = format!("ws://gvm/v1/vms/{}/console?mode={mode}", segment(vm));
        let unreachable = |source| ClientError::Unreachable { socket: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(unreachable)?;
        let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
        let upgrade = tokio_tungstenite::client_async_with_config(url, stream, Some(config));
        match tokio::time::timeout(STREAM_DEADLINE, upgrade).await {
            Ok(Ok((socket, _))) => Ok(Console { socket }),
            Ok(Err(Error::Http(answer))) => {
                Err(refusal(answer.status().as_u16(), answer.body().as_deref().unwrap_or_default()))
            }
            Ok(Err(error)) => Err(ClientError::Upgrade(error.to_string())),
            Err(_) => Err(unreachable(std::io::ErrorKind::TimedOut.into())),
        }
    }
}

/// The error code that a close code stands for, where it is a refusal.
pub const fn refusal_of(close: u16) -> Option<ErrorCode> {
    match close {
        4400..=4599 => Some(ErrorCode::of_status(close - 4000)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_travel_as_close_codes() {
        assert_eq!(refusal_of(close::HELD), Some(ErrorCode::Conflict));
        assert_eq!(refusal_of(4503), Some(ErrorCode::Unavailable));
        assert_eq!(refusal_of(close::DONE), None);
    }
}
