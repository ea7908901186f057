//! Cards that are out of service, or worth a word, by what is seen of them now.

use super::{Finding, Level, bad};
use crate::model::gpu::Service;
use crate::plan::health::{remedy, service};
use crate::plan::inventory::Entry;

/// What there is to say of a card that no decision keeps out of use.
pub(super) fn seen(entry: &Entry) -> Option<Finding> {
    let (row, card) = (entry.known.as_ref()?, entry.card.as_ref()?);
    let name = format!("{} {}", card.address, entry.model());
    let (level, text) = match service(row, card, true) {
        Service::Good => return None,
        Service::Noted(why) => (Level::Note, format!("{name} is in service, and: {why}")),
        Service::Draining(why) => (Level::Warn, format!("{name} is given to no further machine: {why}")),
        Service::Quarantined(why) | Service::Stuck(why) => (Level::Fail, format!("{name} is out of service: {why}")),
    };
    let fix = remedy(row, Some(card)).unwrap_or_else(|| format!("nvidia-smi -q -i {}", card.address));
    Some(bad("gpu", level, text, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::card::{NvmlFacts, RecoveryAction};
    use crate::plan::inventory::recognise;
    use crate::plan::inventory::tests::{card, now};

    #[test]
    fn sick_cards_are_told_with_what_helps() {
        let check = |change: fn(&mut NvmlFacts)| {
            let mut card = card("0000:41:00.0", Some("GPU-a"));
            card.nvml.as_mut().map(change).unwrap();
            let found = recognise(&[], &[card], "boot", now(0));
            let finding = seen(&found.entries[0]);
            finding.map(|finding| (finding.level, finding.message, finding.fix.unwrap()))
        };
        assert_eq!(check(|_| {}), None);
        let (level, message, fix) = check(|nvml| nvml.recovery = Some(RecoveryAction::Reset)).unwrap();
        assert!(level == Level::Warn && message.contains("given to no further machine: its driver asks for a reset"));
        assert_eq!(fix, "nvidia-smi --gpu-reset -i 0000:41:00.0; gvm gpu readmit 0000:41:00.0  # once no VM has it");
        let (level, message, fix) = check(|nvml| nvml.recovery = Some(RecoveryAction::Reboot)).unwrap();
        assert!(level == Level::Fail && message.contains("restart of the host") && fix == "reboot", "{message}");
        let (level, message, fix) = check(|nvml| nvml.throttled = vec!["heat".to_owned()]).unwrap();
        assert!(level == Level::Note && message.contains("is in service, and: its clocks are held down: heat"));
        assert_eq!(fix, "nvidia-smi -q -i 0000:41:00.0");
    }
}
