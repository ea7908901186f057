//! Server-sent events, taken out of a stream of bytes.

use super::ClientError;
use crate::api::types::{EventView, RevocationView};

/// Longest message that is kept; a longer one ends the stream.
const MESSAGE_MAX: usize = 64 * 1024;

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    event: String,
    data: String,
}

/// Bytes that came and are not a whole message yet.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<u8>);

impl Held {
    /// More bytes came.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.0.extend_from_slice(bytes);
        if self.0.len() > MESSAGE_MAX && self.end().is_none() {
            return Err(ClientError::Event("it is too long".to_owned()));
        }
        Ok(())
    }

    fn end(&self) -> Option<usize> {
        self.0.windows(2).position(|pair| pair == b"\n\n")
    }

    /// Takes the first whole message out; comments are passed over.
    pub fn take(&mut self) -> Option<Message> {
        while let Some(end) = self.end() {
            let block: Vec<u8> = self.0.drain(..end + 2).collect();
            let block = String::from_utf8_lossy(&block);
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if let Some(event) = field("event:") {
                return Some(Message { event: event.to_owned(), data: field("data:").unwrap_or_default().to_owned() });
            }
        }
        None
    }
}

/// What happens to machines.
pub(super) fn progress(message: &Message) -> Option<Result<EventView, serde_json::Error>> {
    match message.event.as_str() {
        "progress" => Some(serde_json::from_str(&message.data)),
        "lagged" => Some(Ok(EventView {
            vm_id: String::new(),
            vm: String::new(),
            at: String::new(),
            stage: "lagged".to_owned(),
            message: String::new(),
            state: String::new(),
        })),
        _ => None,
    }
}

/// Access that ends; `None` where some messages were lost.
pub(super) fn revocation(message: &Message) -> Option<Result<Option<RevocationView>, serde_json::Error>> {
    match message.event.as_str() {
        "revoked" => Some(serde_json::from_str(&message.data).map(Some)),
        "lagged" => Some(Ok(None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::EndedAccess;

    fn held(text: &str) -> Held {
        let mut held = Held::default();
        held.add(text.as_bytes()).unwrap();
        held
    }

    #[test]
    fn events_are_taken_one_by_one_and_comments_passed_over() {
        let event = r#"{"vm_id":"1","vm":"dev","at":"t","stage":"disk","message":"m","state":"creating"}"#;
        let mut held =
            held(&format!(": hello\n\nevent: progress\ndata: {event}\n\nevent: lagged\ndata: 3\n\nevent: pro"));
        assert_eq!(progress(&held.take().unwrap()).unwrap().unwrap().stage, "disk");
        assert_eq!(progress(&held.take().unwrap()).unwrap().unwrap().stage, "lagged");
        assert_eq!(held.take(), None);
        assert_eq!(held.0, b"event: pro");
        assert!(held.add(&[b'x'; MESSAGE_MAX]).is_err());
    }

    #[test]
    fn revocations_are_of_a_user_or_of_one_key() {
        let mut held = held(
            "event: revoked\ndata: {\"user_id\":\"1\",\"what\":\"all\"}\n\nevent: news\ndata: x\n\n\
             event: revoked\ndata: {\"user_id\":\"1\",\"what\":\"key\",\"key\":\"SHA256:x\"}\n\nevent: lagged\ndata: {}\n\nevent: revoked\ndata: {\n\n",
        );
        let mut next = || revocation(&held.take().unwrap());
        assert_eq!(
            next().unwrap().unwrap(),
            Some(RevocationView { user_id: "1".to_owned(), what: EndedAccess::All, key: None })
        );
        assert!(next().is_none());
        assert_eq!(next().unwrap().unwrap().unwrap().key.unwrap(), "SHA256:x");
        assert_eq!(next().unwrap().unwrap(), None);
        assert!(next().unwrap().is_err());
    }
}
