//! The client's half of a pump: data and requests, to the guest.
//!
//! russh gives a client new window as soon as it has received data, not when the data is gone, and waits for the
//! channel's task where that does not take it. A program that reads nothing would therefore block the client's
//! whole connection, keepalives included. So while a channel is stuck its task goes on taking what the client may
//! still send, at most a window of it, into memory, and the client gets next to no new window; see
//! [`Conn::window`].

use std::collections::VecDeque;
use std::time::Duration;

use russh::{ChannelMsg, ChannelReadHalf, Error};
use tokio_util::bytes::BytesMut;

use super::cert::Rights;
use super::conn::{Conn, TRICKLE, WINDOW};
use super::pump::{Ask, Asked, End, Inner, is_stuck};

/// How long a guest may take nothing before its channel counts as stuck.
const PATIENCE: Duration = Duration::from_millis(250);
/// What is taken in for a stuck channel: what was received and waited for the task, the window that the client had,
/// and the part of it that was given again before the holding back took effect; then room for crumbs.
const BACKLOG_MAX: usize = 3 * WINDOW as usize;
/// Pause after each of the crumbs that a client sends while it gets next to no window.
const CRUMB_PAUSE: Duration = Duration::from_millis(20);

/// What came while the channel was stuck.
#[derive(Default)]
struct Backlog {
    messages: VecDeque<ChannelMsg>,
    /// Crumbs, put together: one by one they would take more memory for themselves than for their bytes.
    crumbs: BytesMut,
    bytes: usize,
}

impl Backlog {
    fn push(&mut self, message: ChannelMsg) {
        match message {
            ChannelMsg::Data { data } if data.len() <= TRICKLE as usize => {
                self.bytes += data.len();
                self.crumbs.extend_from_slice(&data);
            }
            message => {
                self.sweep();
                if let ChannelMsg::Data { data } = &message {
                    self.bytes += data.len();
                }
                self.messages.push_back(message);
            }
        }
    }

    fn pop(&mut self) -> Option<ChannelMsg> {
        if self.messages.is_empty() {
            self.sweep();
        }
        let message = self.messages.pop_front();
        if let Some(ChannelMsg::Data { data }) = &message {
            self.bytes -= data.len();
        }
        message
    }

    fn sweep(&mut self) {
        if !self.crumbs.is_empty() {
            self.messages.push_back(ChannelMsg::Data { data: self.crumbs.split().freeze() });
        }
    }
}

/// Moves everything from the client to the guest until one of them is gone.
pub(super) async fn run(conn: &Conn, from: &mut ChannelReadHalf, to: &Inner, asked: &Asked) -> End {
    let mut backlog = Backlog::default();
    let mut stall = None;
    loop {
        let message = match backlog.pop() {
            Some(message) => message,
            None => {
                stall = None;
                match from.wait().await {
                    Some(message) => message,
                    None => return End::Client,
                }
            }
        };
        let sent = match message {
            ChannelMsg::Data { data } => {
                conn.note_progress();
                let send = to.data_bytes(data);
                tokio::pin!(send);
                match tokio::time::timeout(PATIENCE, &mut send).await {
                    Ok(sent) => sent,
                    Err(_) => {
                        stall.get_or_insert_with(|| conn.stall());
                        tokio::select! {
                            sent = &mut send => sent,
                            end = take_in(from, &mut backlog, to) => return end,
                            () = is_stuck(conn) => return End::Stalled,
                        }
                    }
                }
            }
            ChannelMsg::Close => return End::Client,
            ChannelMsg::Eof => {
                asked.end_input();
                to.eof().await
            }
            other => match request(other, to, asked, conn.rights()).await {
                Ok(sent) => sent,
                Err(end) => return end,
            },
        };
        if sent.is_err() {
            return End::GuestLost;
        }
    }
}

/// Takes in what the client may still send while the guest takes nothing. What is no data does not wait for it.
/// Ends only with the client.
async fn take_in(from: &mut ChannelReadHalf, backlog: &mut Backlog, to: &Inner) -> End {
    loop {
        if backlog.bytes >= BACKLOG_MAX {
            // It sends more than it was allowed to: then its connection waits after all.
            std::future::pending::<()>().await;
        }
        let is_sent = match from.wait().await {
            Some(ChannelMsg::Signal { signal }) => to.signal(signal).await.is_ok(),
            Some(ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height }) => {
                to.window_change(col_width, row_height, pix_width, pix_height).await.is_ok()
            }
            Some(ChannelMsg::Close) | None => return End::Client,
            Some(message) => {
                let is_crumb = matches!(&message, ChannelMsg::Data { data } if data.len() <= TRICKLE as usize);
                backlog.push(message);
                if is_crumb {
                    tokio::time::sleep(CRUMB_PAUSE).await;
                }
                true
            }
        };
        if !is_sent {
            return End::GuestLost;
        }
    }
}

/// Passes one request on. The answers to all but the program's start were given already; see `handler`.
async fn request(message: ChannelMsg, to: &Inner, asked: &Asked, rights: Rights) -> Result<Result<(), Error>, End> {
    Ok(match message {
        ChannelMsg::ExtendedData { data, ext } => to.extended_data_bytes(ext, data).await,
        ChannelMsg::RequestPty { .. } if !rights.has_pty => Ok(()),
        ChannelMsg::AgentForward { .. } if !rights.has_agent => Ok(()),
        ChannelMsg::RequestPty { term, col_width, row_height, pix_width, pix_height, terminal_modes, .. } => {
            asked.ask(Ask::Pty)?;
            to.request_pty(true, &term, col_width, row_height, pix_width, pix_height, &terminal_modes).await
        }
        ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height } => {
            to.window_change(col_width, row_height, pix_width, pix_height).await
        }
        ChannelMsg::SetEnv { variable_name, variable_value, .. } => {
            to.set_env(false, variable_name, variable_value).await
        }
        ChannelMsg::AgentForward { .. } => to.agent_forward(false).await,
        ChannelMsg::RequestShell { .. } => {
            asked.ask(Ask::Start)?;
            to.request_shell(true).await
        }
        ChannelMsg::Exec { command, .. } => {
            asked.ask(Ask::Start)?;
            to.exec(true, command).await
        }
        ChannelMsg::RequestSubsystem { name, .. } => {
            asked.ask(Ask::Start)?;
            to.request_subsystem(true, name).await
        }
        ChannelMsg::Signal { signal } => to.signal(signal).await,
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_keeps_the_order_and_puts_crumbs_together() {
        let data = |text: &'static str| ChannelMsg::Data { data: text.as_bytes().into() };
        let mut backlog = Backlog::default();
        for message in [data("large one"), data("a"), data("bc"), data("second"), data("d"), ChannelMsg::Eof, data("e")]
        {
            backlog.push(message);
        }
        assert_eq!(backlog.bytes, 20);
        let mut seen = Vec::new();
        while let Some(message) = backlog.pop() {
            seen.push(match message {
                ChannelMsg::Data { data } => String::from_utf8_lossy(&data).into_owned(),
                other => format!("{other:?}"),
            });
        }
        assert_eq!(seen, ["large one", "abc", "second", "d", "Eof", "e"]);
        assert_eq!(backlog.bytes, 0);
    }
}
