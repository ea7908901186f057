//! The guest agent: a program inside that answers on a channel, if the guest has it and it lives.
//!
//! An agent is the guest's own program and may say anything: its answers are parsed as strangers' input.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use virt::connect::Connect;
use virt_sys as sys;

use super::error::Said;
use super::observe::{need, need_active};
use crate::hypervisor::{ErrorKind, HypervisorError, Result};
use crate::model::id::VmId;
use crate::model::vm::domain_name;

/// How long the agent may take for one answer, seconds.
const ANSWER_SECONDS: i32 = 5;

/// Pauses between two looks whether a program has ended: first and longest.
pub(super) const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// What the agent says of a program that it runs.
#[derive(Debug, Deserialize)]
struct Status {
    exited: bool,
    #[serde(default)]
    exitcode: Option<i32>,
    #[serde(default)]
    signal: Option<i32>,
    #[serde(default, rename = "out-data")]
    output: String,
}

/// Starts a program inside; its number there.
pub(super) fn exec(conn: &Connect, vm: VmId, argv: &[String]) -> Result<i64> {
    let doing = doing(vm);
    let Some((path, arguments)) = argv.split_first() else {
        return Err(HypervisorError::new(ErrorKind::Invalid, doing, "no program is named"));
    };
    let arguments = json!({ "path": path, "arg": arguments, "capture-output": true });
    let answer = ask(conn, vm, "guest-exec", &arguments)?;
    let pid = answer.get("pid").and_then(Value::as_i64);
    pid.ok_or_else(|| HypervisorError::new(ErrorKind::Transient, doing, "the guest agent named no process"))
}

/// Exit code and output once it has ended. Ended by a signal counts as 128 and the signal, as in a shell.
pub(super) fn exec_status(conn: &Connect, vm: VmId, pid: i64) -> Result<Option<(i32, Vec<u8>)>> {
    let answer = ask(conn, vm, "guest-exec-status", &json!({ "pid": pid }))?;
    let wrong = |message: String| HypervisorError::new(ErrorKind::Transient, doing(vm), message);
    let status: Status = serde_json::from_value(answer).map_err(|e| wrong(format!("the guest agent's answer: {e}")))?;
    if !status.exited {
        return Ok(None);
    }
    let code = status.exitcode.unwrap_or_else(|| status.signal.map_or(-1, |signal| signal.saturating_add(128)));
    let output = STANDARD.decode(status.output).map_err(|e| wrong(format!("the guest agent's output: {e}")))?;
    Ok(Some((code, output)))
}

fn doing(vm: VmId) -> String {
    format!("asking the guest agent of domain {}", domain_name(vm))
}

fn ask(conn: &Connect, vm: VmId, command: &str, arguments: &Value) -> Result<Value> {
    let doing = doing(vm);
    let ours = need_active(conn, vm, &doing)?;
    if !ours.description.is_agent_connected {
        return Err(HypervisorError::new(ErrorKind::Transient, doing, "the guest agent is not connected"));
    }
    let command = json!({ "execute": command, "arguments": arguments }).to_string();
    let answer = ours.domain.qemu_agent_command(&command, ANSWER_SECONDS, 0).said(&doing)?;
    let mut answer: Value = serde_json::from_str(&answer).map_err(|e| {
        HypervisorError::new(ErrorKind::Transient, doing.as_str(), format!("the guest agent's answer: {e}"))
    })?;
    Ok(answer.get_mut("return").map(Value::take).unwrap_or_default())
}

/// Asks the guest to shut down by its agent. Takes until the guest is off or libvirt gives up, up to a minute.
pub(super) fn shutdown(conn: &Connect, vm: VmId) -> Result<()> {
    let doing = doing(vm);
    let ours = need(conn, vm, &doing)?;
    if !ours.is_active() || !ours.description.is_agent_connected {
        return Ok(());
    }
    ours.domain.shutdown_flags(sys::VIR_DOMAIN_SHUTDOWN_GUEST_AGENT).map(|_| ()).said(&doing)
}
