//! gvm with cards that are not there: the real program and the real backend over a mock of NVIDIA's library and the
//! kernel's files of the same cards, which answer as driver and kernel do.

mod daemon;
mod discovery;
mod faults;
mod manager;
mod own;
mod shape;
mod vgpus;

use serde_json::Value;

use crate::support::card_host::CardHost;

const CARD: &str = "0000:41:00.0";
const OTHER: &str = "0000:c1:00.0";
/// The first virtual function of [`CARD`].
const FIRST: &str = "0000:41:00.4";
const SECOND: &str = "0000:41:00.5";

/// Does a job of the helper: the lines that it told.
#[track_caller]
fn does(host: &CardHost, verb: &str, words: &[&str]) -> Vec<Value> {
    let text = host.helper(verb, words).text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Does a job, and whether it changed anything.
#[track_caller]
fn changes(host: &CardHost, verb: &str, words: &[&str]) -> bool {
    let lines = does(host, verb, words);
    let done = lines.last().unwrap();
    assert_eq!(done["step"], "done", "{lines:?}");
    done["is_changed"].as_bool().unwrap()
}

/// Why a job is not done; as refused, or as failed.
#[track_caller]
fn fails(host: &CardHost, verb: &str, words: &[&str], kind: &str) -> String {
    let ended = host.helper(verb, words);
    assert_eq!(ended.code, 1, "{verb} {words:?} should fail: {}", ended.stdout);
    let last: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["step"], &last["kind"]), (&"failed".into(), &kind.into()), "{last}");
    last["text"].as_str().unwrap().to_owned()
}

#[track_caller]
fn refuses(host: &CardHost, verb: &str, words: &[&str]) -> String {
    fails(host, verb, words, "refused")
}
