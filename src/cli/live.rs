//! The event stream, kept alive: a manager that restarts is waited for.

use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};

use crate::api::client::{Client, ClientError};
use crate::api::types::EventView;

/// First pause before the stream is opened anew; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What the stream tells.
#[derive(Debug)]
pub enum Live {
    /// Something happened to a machine. The stage `lagged` means that messages were lost.
    Event(EventView),
    /// The connection is gone; it is tried again.
    Down,
    /// The connection is there again.
    Up,
    /// It cannot go on, for example because the machine is gone. The last item.
    End(ClientError),
}

struct State {
    client: Client,
    path: String,
    stream: Option<BoxStream<'static, Result<EventView, ClientError>>>,
    pause: Duration,
    link: Link,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Fresh,
    Up,
    /// The manager ended the stream in good order; it is opened anew without a word.
    Over,
    Lost,
    Ended,
}

/// The events at `path`, past any restart of the manager. Nothing is lost when the waiting for an item is given up.
pub fn events(client: &Client, path: &str) -> impl Stream<Item = Live> + Send + Unpin + use<> {
    let state =
        State { client: client.clone(), path: path.to_owned(), stream: None, pause: PAUSE_MIN, link: Link::Fresh };
    Box::pin(futures_util::stream::unfold(state, |mut state| async move {
        loop {
            if state.link == Link::Ended {
                return None;
            }
            if let Some(stream) = &mut state.stream {
                match stream.next().await {
                    Some(Ok(event)) => {
                        state.pause = PAUSE_MIN;
                        return Some((Live::Event(event), state));
                    }
                    Some(Err(error)) if !error.is_passing() => {
                        state.link = Link::Ended;
                        return Some((Live::End(error), state));
                    }
                    Some(Err(_)) => state.stream = None,
                    None => (state.stream, state.link) = (None, Link::Over),
                }
            }
            if state.link == Link::Up {
                state.link = Link::Lost;
                return Some((Live::Down, state));
            }
            if matches!(state.link, Link::Over | Link::Lost) {
                tokio::time::sleep(state.pause).await;
                state.pause = (state.pause * 2).min(PAUSE_MAX);
            }
            match state.client.events(&state.path).await {
                Ok(stream) => {
                    state.stream = Some(stream.boxed());
                    let again = state.link == Link::Lost;
                    state.link = Link::Up;
                    if again {
                        return Some((Live::Up, state));
                    }
                }
                // The first try tells at once; a later one is repeated for as long as somebody listens.
                Err(error) if error.is_passing() && state.link == Link::Lost => {}
                Err(error) if error.is_passing() => {
                    state.link = Link::Lost;
                    return Some((Live::Down, state));
                }
                Err(error) => {
                    state.link = Link::Ended;
                    return Some((Live::End(error), state));
                }
            }
        }
    }))
}
