//! The serial console of a machine: a WebSocket whose binary frames are bytes both ways.
//!
//! The manager explains every end by a close code: [`close::DONE`] with a reason (the machine was shut down),
//! [`close::GOING_AWAY`] or [`close::RESTART`] when it restarts itself, and 4000 plus the HTTP status of an
//! [`ErrorCode`] for a refusal after the upgrade ([`close::HELD`] when somebody else types there already).

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::{Method, StatusCode, Upgraded, header};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::{Client, ClientError, STREAM_DEADLINE, segment};
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
    socket: WebSocketStream<Upgraded>,
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
        let path = format!("/v1/vms/{}/console?mode={mode}", segment(vm));
        let opened = tokio::time::timeout(STREAM_DEADLINE, self.upgrade(&path));
        opened.await.map_err(|_| ClientError::Unreachable {
            place: self.place.clone(),
            source: std::io::ErrorKind::TimedOut.into(),
        })?
    }

    /// The client's side of RFC 6455, section 4.1, over whatever this client speaks through.
    async fn upgrade(&self, path: &str) -> Result<Console, ClientError> {
        let key = generate_key();
        let request = self
            .request(Method::GET, path)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &key);
        let answer = self.send(request).await?;
        let accepted = answer.headers().get(header::SEC_WEBSOCKET_ACCEPT);
        let is_ours = accepted.is_some_and(|accept| accept.as_bytes() == derive_accept_key(key.as_bytes()).as_bytes());
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS || !is_ours {
            return Err(ClientError::Upgrade("the answer is not that of a WebSocket".to_owned()));
        }
        let stream = answer.upgrade().await.map_err(ClientError::Broken)?;
        let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
        Ok(Console { socket: WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await })
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
