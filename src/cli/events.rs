//! `gvm events`: what happens to machines, as it happens.

use clap::Args;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::context::Context;
use super::error::{CliResult, plain};
use super::live::{self, Live};
use super::vm_ref::VmRef;
use crate::api::types::EventView;

/// Options of `gvm events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Machine: NAME, NAME.OWNER or id [default: all of yours]
    vm: Option<VmRef>,
}

/// Runs `gvm events`, until Ctrl-C or until the machine is gone.
///
/// # Errors
/// See [`super::error::CliError`].
pub async fn run(cx: &Context, args: &EventsArgs) -> CliResult {
    let path = match &args.vm {
        Some(vm) => format!("{}/events", VmRef::by_id(&cx.vm(vm).await?.id).path()),
        None => {
            // The stream tells of a manager that is down only as of something that passes; this one tells at once.
            let _: crate::api::types::Me = cx.client.get("/v1/me").await?;
            "/v1/events".to_owned()
        }
    };
    let mut events = live::events(&cx.client, &path);
    while let Some(item) = events.next().await {
        match item {
            Live::Event(event) => {
                let is_gone = args.vm.is_some() && event.stage == "gone";
                cx.out.item(&event, || line(&event, &TimeZone::system()))?;
                if is_gone {
                    break;
                }
            }
            Live::Down => cx.out.say("the manager does not answer; waiting for it"),
            Live::Up => cx.out.say("the manager is back"),
            Live::End(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn line(event: &EventView, zone: &TimeZone) -> String {
    if event.stage == "lagged" {
        return "(some events were lost; `gvm list` shows the present state)".to_owned();
    }
    let at = match event.at.parse::<Timestamp>() {
        Ok(at) => at.to_zoned_datetime(zone.clone()).strftime("%H:%M:%S").to_string(),
        Err(_) => event.at.clone(),
    };
    plain(format!("{at}  {:<12}  {:<10}  {:<9}  {}", event.vm, event.stage, event.state, event.message))
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = EventView {
            vm_id: "1".to_owned(),
            vm: "dev".to_owned(),
            at: "2026-11-30T12:00:01.5Z".to_owned(),
            stage: "disk".to_owned(),
            message: "made\nit".to_owned(),
            state: "creating".to_owned(),
        };
        assert_eq!(line(&event, &TimeZone::UTC), "12:00:01  dev           disk        creating   made it");
    }
}
