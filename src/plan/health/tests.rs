use super::*;
use crate::model::card::RemappedRows;
use crate::model::card::history::{SanitiseMethod, Sanitised};
use crate::model::id::VmId;
use crate::plan::inventory::recognise;
use crate::plan::inventory::tests::{card, now};

fn entries(cards: &[Card]) -> Vec<Entry> {
    recognise(&[], cards, "boot", now(0)).entries
}

/// An A100 that NVML knows, changed.
fn asked(change: impl FnOnce(&mut NvmlFacts)) -> (KnownGpu, Card) {
    let mut card = card("0000:41:00.0", Some("GPU-a"));
    change(card.nvml.as_mut().unwrap());
    let entry = entries(&[card.clone()]).remove(0);
    (entry.known.unwrap(), card)
}

fn read(tally: &mut Tally, text: &str) {
    tally.read(&KernelRecord { sequence: 1, micros: 1, is_kernels: true, text: text.to_owned() });
}

#[test]
fn what_nvml_says_decides_whether_a_card_is_given_away() {
    let check = |change: fn(&mut NvmlFacts)| {
        let (row, card) = asked(change);
        let kept = verdict(&row, Some(&card), None);
        (service(&row, &card, false), kept.is_some(), remedy(&row, Some(&card)).unwrap_or_default())
    };
    let (state, is_kept, fix) = check(|_| {});
    assert_eq!((state, is_kept, fix.as_str()), (Service::Good, false, ""));
    let (state, is_kept, fix) = check(|nvml| nvml.recovery = Some(RecoveryAction::Reset));
    assert!(matches!(state, Service::Draining(why) if why.contains("asks for a reset")) && !is_kept);
    assert!(fix.contains("nvidia-smi --gpu-reset -i 0000:41:00.0"), "{fix}");
    for action in [RecoveryAction::DrainPeers, RecoveryAction::DrainAndReset, RecoveryAction::Other(9)] {
        let (row, card) = asked(|nvml| nvml.recovery = Some(action));
        assert!(matches!(service(&row, &card, true), Service::Draining(_)), "{action:?}");
        assert_eq!(refusal(&row, &Card { is_vfio: true, ..card.clone() }), None, "a machine goes on with it");
        assert!(refusal(&row, &card).is_some());
    }
    let (state, is_kept, fix) = check(|nvml| nvml.recovery = Some(RecoveryAction::Reboot));
    assert!(matches!(state, Service::Quarantined(why) if why.contains("restart of the host")));
    assert_eq!((is_kept, fix.as_str()), (false, "reboot"));
    let (state, is_kept, _) = check(|nvml| nvml.recovery = Some(RecoveryAction::None));
    assert_eq!((state, is_kept), (Service::Good, false));
    let (state, is_kept, _) =
        check(|nvml| nvml.remapped = Some(RemappedRows { is_pending: true, ..RemappedRows::default() }));
    assert!(matches!(state, Service::Draining(why) if why.contains("next reset")) && !is_kept);
    let (state, is_kept, fix) = check(|nvml| {
        nvml.remapped = Some(RemappedRows { has_failed: true, uncorrectable: 8, ..RemappedRows::default() })
    });
    assert!(matches!(state, Service::Quarantined(why) if why.contains("8 were")) && is_kept);
    assert!(fix.contains("repaired"), "{fix}");
    let (state, is_kept, _) = check(|nvml| nvml.throttled = vec!["power brake".to_owned()]);
    assert!(matches!(state, Service::Noted(why) if why.contains("power brake")) && !is_kept);
    let (state, is_kept, fix) = check(|nvml| nvml.faults = vec!["memory: Unknown Error".to_owned()]);
    assert!(matches!(state, Service::Draining(why) if why.contains("cannot say how it is: memory")) && !is_kept);
    assert!(fix.contains("dmesg"), "{fix}");
}

#[test]
fn what_was_decided_comes_before_what_is_seen_and_a_used_card_is_nobodys() {
    let (mut row, card) = asked(|nvml| nvml.throttled = vec!["heat".to_owned()]);
    row.history.used_by = Some(VmId::generate());
    assert!(matches!(service(&row, &card, false), Service::Draining(why) if why.contains("not sanitised")));
    assert!(matches!(service(&row, &card, true), Service::Noted(_)));
    row.history = with_sign(&row.history, &Verdict::Drain("Xid 63".to_owned()), "boot", now(1));
    assert_eq!((service(&row, &card, true), since(&row)), (Service::Draining("Xid 63".to_owned()), Some(now(1))));
    row.withheld = Some(Withheld::Quarantined { why: "Xid 79".to_owned(), at: now(2) });
    assert_eq!((service(&row, &card, true), since(&row)), (Service::Quarantined("Xid 79".to_owned()), Some(now(2))));
    assert!(remedy(&row, None).unwrap().starts_with("gvm gpu readmit 0000:41:00.0"));
    // What is kept is not decided again.
    let told = Told { severity: Severity::Lost, why: "Xid 79".to_owned(), lines: 3 };
    assert_eq!(verdict(&row, Some(&card), Some(&told)), None);
    row.withheld = None;
    assert_eq!(
        verdict(&row, None, Some(&told)),
        Some(Verdict::Quarantine("Xid 79 (3 lines about it at once)".to_owned()))
    );
}

/// Case A-unhealthy-forever.
#[test]
fn lines_of_the_log_are_gathered_card_by_card() {
    let mut vf = card("0000:41:00.4", None);
    vf.physfn = Some("0000:41:00.0".parse().unwrap());
    let cards = [card("0000:41:00.0", Some("GPU-a")), card("0000:42:00.0", Some("GPU-b")), vf];
    let entries = entries(&cards);
    let mut tally = Tally::of(LogReader::default(), BTreeMap::new(), &entries);
    for _ in 0..10_000 {
        read(&mut tally, "NVRM: Xid (PCI:0000:41:00): 31, pid=9, name=python, MMU Fault");
    }
    read(&mut tally, "NVRM: Xid (PCI:0000:42:00): 94, Contained memory error");
    read(&mut tally, "NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.");
    read(&mut tally, "vfio-pci 0000:41:00.4: Unable to change power state from D3cold to D0, device inaccessible");
    let (told, reader) = tally.end();
    let of = |id: &str| told[&GpuId(id.to_owned())].clone();
    assert_eq!(told.len(), 2, "what is no card of ours is nobody's");
    assert_eq!((of("GPU-a").severity, of("GPU-a").lines), (Severity::Lost, 10_001));
    assert!(of("GPU-a").why.contains("device inaccessible"));
    assert_eq!(
        (of("GPU-b").severity, of("GPU-b").why.as_str()),
        (Severity::Application, "Xid 94: Contained memory error")
    );
    let entry = entries.iter().find(|entry| entry.id.0 == "GPU-b").unwrap();
    let row = entry.known.clone().unwrap();
    assert!(matches!(verdict(&row, entry.card.as_ref(), Some(&of("GPU-b"))), Some(Verdict::Note(_))));
    // What was told and not decided on goes on.
    let mut tally = Tally::of(reader, told.clone(), &entries);
    read(&mut tally, "NVRM: Xid (PCI:0000:42:00): 63, Row Remapper: New row marked");
    let (more, _) = tally.end();
    assert_eq!(more[&GpuId("GPU-a".to_owned())], of("GPU-a"));
    let drain = verdict(&row, entry.card.as_ref(), more.get(&GpuId("GPU-b".to_owned())));
    assert!(matches!(drain, Some(Verdict::Drain(why)) if why.starts_with("Xid 63: Row Remapper")));
}

/// The place of a card that is gone may be another's.
#[test]
fn a_line_is_about_the_card_that_is_there_now() {
    let old = entries(&[card("0000:41:00.0", Some("GPU-a"))]).remove(0).known.unwrap();
    let found = recognise(&[old], &[card("0000:41:00.0", Some("GPU-b"))], "boot", now(1)).entries;
    assert_eq!(found.len(), 2);
    let mut tally = Tally::of(LogReader::default(), BTreeMap::new(), &found);
    read(&mut tally, "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.");
    let ids: Vec<String> = tally.end().0.into_keys().map(|id| id.0).collect();
    assert_eq!(ids, ["GPU-b"]);
}

#[test]
fn a_self_test_says_all_that_it_has_against_a_card() {
    let (_, well) = asked(|_| {});
    let state = |answers: Result<(), String>| FunctionState {
        is_there: true,
        answers,
        driver: Some("nvidia".to_owned()),
        ..FunctionState::absent(well.address)
    };
    assert_eq!(objections(Some(&well), &[state(Ok(()))]), Vec::<String>::new());
    assert_eq!(objections(None, &[]), ["it is not there"]);
    let (_, mut ill) = asked(|nvml| {
        nvml.recovery = Some(RecoveryAction::Reset);
        nvml.faults = vec!["power: Unknown Error".to_owned()];
    });
    ill.driver = None;
    let found = objections(Some(&ill), &[state(Err("its config space reads 0xffff".to_owned()))]);
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(found[0].contains("0xffff") && found[1].contains("no driver"), "{found:?}");
}

#[test]
fn signs_of_the_log_end_with_the_boot_and_what_was_done_stays() {
    let (mut row, card) = asked(|_| {});
    row.history = with_sign(&row.history, &Verdict::Drain("Xid 48".to_owned()), "boot", now(0));
    row.history.sanitised =
        Some(Sanitised { method: SanitiseMethod::VfioClose, at: now(0), note: String::new(), fault: None });
    row.history.used_by = Some(VmId::generate());
    let same = recognise(&[row.clone()], std::slice::from_ref(&card), "boot", now(0)).entries.remove(0).known.unwrap();
    assert_eq!(same.history, row.history);
    let next = recognise(&[row.clone()], &[card], "another boot", now(0));
    assert_eq!(next.changed.len(), 1);
    let history = &next.changed[0].history;
    let GpuHistory { draining, used_by, sanitised, .. } = history;
    assert_eq!((draining, used_by, sanitised), (&None, &row.history.used_by, &row.history.sanitised));
}
