use super::*;
use crate::model::gpu::{Fabric, GpuMode, GroupMember, Service, Vendor};
use crate::model::pci::MemberRole;
use crate::model::units::Mib;

/// `ADDRESS MODEL GIB [node=N] [up=A,B] [group=N]`
pub(super) fn card(text: &str) -> GpuDevice {
    let mut words = text.split(' ');
    let mut word = || words.next().unwrap();
    let (bdf, model, gib) = (word(), word().replace('_', " "), word().parse::<u64>().unwrap());
    let bdf: crate::model::gpu::PciAddress = format!("0000:{bdf}:00.0").parse().unwrap();
    let mut card = GpuDevice::new(GpuId(format!("GPU-{bdf}")), bdf, model, Mib(gib << 10));
    card.vendor = Vendor::Nvidia;
    for (key, value) in words.map(|word| word.split_once('=').unwrap()) {
        match key {
            "node" => card.numa_node = Some(value.parse().unwrap()),
            "group" => card.iommu_group = Some(value.parse().unwrap()),
            "up" => card.upstream = value.split(',').map(|port| port.parse().unwrap()).collect(),
            other => panic!("{other}"),
        }
    }
    card
}

fn cards(texts: &[&str]) -> Vec<GpuDevice> {
    texts.iter().map(|text| card(text)).collect()
}

fn held(buses: &[&str]) -> Held {
    let holder = |bus: &&str| {
        let (bus, vm) = bus.split_once('=').unwrap_or((bus, ""));
        let vm = Some(vm.to_owned()).filter(|vm| !vm.is_empty());
        (GpuId(format!("GPU-0000:{bus}:00.0")), Holder { state: LeaseState::Attached, vm })
    };
    buses.iter().map(holder).collect()
}

fn requests(text: &str) -> Vec<GpuRequest> {
    text.split('+').map(|part| part.parse().unwrap()).collect()
}

/// The buses of the picked cards, or the refusal.
fn check(request: &str, cards: &[GpuDevice], taken: &[&str]) -> Result<String, String> {
    let picked = pick(&requests(request), cards, &held(taken)).map_err(|e| e.to_string())?;
    let bus = |partition: &Partition| partition.gpu().0.get(9..11).unwrap().to_owned();
    Ok(picked.iter().map(bus).collect::<Vec<_>>().join(" "))
}

fn granted(request: &str, cards: &[GpuDevice], taken: &[&str]) -> String {
    check(request, cards, taken).unwrap()
}

fn refusal(request: &str, cards: &[GpuDevice], taken: &[&str]) -> String {
    check(request, cards, taken).unwrap_err()
}

fn mixed() -> Vec<GpuDevice> {
    cards(&["41 NVIDIA_A100-SXM4-80GB 80", "c1 Tesla_T4 16", "81 NVIDIA_A100-SXM4-40GB 40"])
}

/// Two nodes, on each two switches, below each two A100.
fn eight() -> Vec<GpuDevice> {
    cards(&[
        "11 NVIDIA_A100 80 node=0 up=0000:10:01.0,0000:10:02.0",
        "12 NVIDIA_A100 80 node=0 up=0000:10:01.0,0000:10:02.0",
        "15 NVIDIA_A100 80 node=0 up=0000:14:01.0,0000:14:02.0",
        "16 NVIDIA_A100 80 node=0 up=0000:14:01.0,0000:14:02.0",
        "91 NVIDIA_A100 80 node=1 up=0000:90:01.0,0000:90:02.0",
        "92 NVIDIA_A100 80 node=1 up=0000:90:01.0,0000:90:02.0",
        "95 NVIDIA_A100 80 node=1 up=0000:94:01.0,0000:94:02.0",
        "96 NVIDIA_A100 80 node=1 up=0000:94:01.0,0000:94:02.0",
    ])
}

#[test]
fn the_smallest_card_that_fits_is_taken() {
    for (request, picked) in [
        ("1", "c1"),
        ("20GiB", "81"),
        ("40GiB", "81"),
        ("41GiB", "41"),
        ("a100", "81"),
        ("a100-80g", "41"),
        ("a100:80GiB", "41"),
        ("2xa100", "41 81"),
        ("3", "41 81 c1"),
        ("nvidia", "c1"),
    ] {
        assert_eq!(granted(request, &mixed(), &[]), picked, "{request}");
    }
    assert_eq!(granted("1", &mixed(), &["c1"]), "81");
}

#[test]
fn sizes_are_those_on_the_box() {
    let check = |told: u64, asked: u64| super::search::is_as_sold(Mib(told), Mib(asked << 10));
    // L40S, T4, L4, H100, H200.
    for (told, sold) in [(46_068, 48), (15_360, 16), (23_034, 24), (81_559, 80), (143_771, 141)] {
        assert!(check(told, sold) && !check(told, sold + 8), "{told}");
    }
    // A card of 10 GiB is none of 12, one of 40 none of 41.
    assert!(!check(10_240, 12) && !check(40_960, 41));
}

#[test]
fn several_requests_are_met_together() {
    // One by one the first would take the card that the second needs.
    assert_eq!(granted("a100+a100-40g", &mixed(), &[]), "41 81");
    assert_eq!(granted("20GiB+1+a100-40g", &mixed(), &[]), "41 81 c1");
    assert_eq!(granted("1+1+1", &mixed(), &[]), "41 81 c1");
    assert_eq!(pick(&[], &mixed(), &Held::new()), Ok(Vec::new()));
}

#[test]
fn cards_of_one_request_are_alike_and_near() {
    let cards = cards(&["11 T4 16 node=0", "12 A100 80 node=0", "13 A100 80 node=0", "91 T4 16 node=1"]);
    assert_eq!(granted("2", &cards, &[]), "12 13", "one node before small cards");
    assert_eq!(granted("2xt4", &cards, &[]), "11 91");
    assert_eq!(granted("3", &cards, &[]), "11 12 13", "different where it must be");
    for (request, taken, picked) in [
        ("2", vec![], "11 12"),
        ("2", vec!["11"], "15 16"),
        ("2", vec!["11", "15", "91", "95"], "12 16"),
        ("3", vec!["11"], "12 15 16"),
        ("4", vec![], "11 12 15 16"),
        ("4", vec!["11"], "91 92 95 96"),
        ("5", vec!["96"], "11 12 15 16 95"),
        ("4", vec!["11", "91"], "15 16 95 96"),
        ("2:same-switch", vec!["11", "15"], "91 92"),
        ("4:same-node", vec!["12"], "91 92 95 96"),
        ("2:same-switch+2:same-switch", vec!["11", "15"], "91 92 95 96"),
    ] {
        assert_eq!(granted(request, &eight(), &taken), picked, "{request} beside {taken:?}");
    }
}

#[test]
fn pairs_are_left_whole_where_a_single_card_will_do() {
    for (request, taken, picked) in
        [("1", vec!["95"], "96"), ("1", vec!["11", "95", "15"], "96"), ("1", vec!["11", "12", "16"], "15")]
    {
        assert_eq!(granted(request, &eight(), &taken), picked, "{request} beside {taken:?}");
    }
    let odd = cards(&["11 T4 16 node=0", "12 T4 16 node=0", "91 T4 16 node=1", "92 T4 16 node=1", "93 T4 16 node=1"]);
    assert_eq!(granted("1", &odd, &[]), "91", "of three, so that a pair is left on each node");
}

/// Case A-numa-unknown: GPU A with node 1, GPU B with -1.
#[test]
fn an_unknown_node_is_near_to_nothing() {
    let cards = cards(&["41 T4 16 node=1", "42 T4 16"]);
    let node = |taken: &[&str]| numa_node(&pick(&requests("1"), &cards, &held(taken)).unwrap());
    assert_eq!((node(&["42"]), node(&["41"])), (Some(1), None));
    assert_eq!(numa_node(&pick(&requests("2"), &cards, &Held::new()).unwrap()), None, "nothing is pinned");
    assert_eq!(numa_node(&[]), None);
    insta::assert_snapshot!(refusal("2:same-node", &cards, &[]), @r#"
2:same-node: no GPUs here are that close to each other; 2 of 2 that fit are free;
  0000:41:00.0 T4, 16 GiB: free;
  0000:42:00.0 T4, 16 GiB: its NUMA node is not known;
1 or 2 would do now
"#);
    // Two unknown ones are not on one node.
    let unknown = self::cards(&["41 T4 16", "42 T4 16", "43 T4 16 node=0", "44 T4 16 node=0"]);
    assert_eq!(granted("2", &unknown, &[]), "43 44");
}

/// Case A-shared-iommu-group: an NVMe drive in the card's group, an audio function in its slot, a bridge that the
/// inventory leaves out.
#[test]
fn a_group_with_a_stranger_is_unusable_and_the_stranger_is_named() {
    let mut cards = cards(&["41 RTX_4090 24 group=12", "43 RTX_4090 24 group=12", "51 RTX_4090 24 group=13"]);
    cards[0].siblings = vec!["0000:41:00.1".parse().unwrap()];
    cards[0].blockers = vec![GroupMember {
        address: "0000:42:00.0".parse().unwrap(),
        class: Some(0x01_0802),
        driver: Some("nvme".to_owned()),
        role: MemberRole::Blocking,
    }];
    assert_eq!(granted("1", &cards, &[]), "51");
    insta::assert_snapshot!(refusal("2", &cards, &[]), @r#"
2 is more than this host has: 1 of 1 that fit is free;
  0000:41:00.0 RTX 4090, 24 GiB: its IOMMU group 12 cannot go along: 0000:42:00.0 (nvme), NVMe disk of class 0x010802, is used by the host;
  0000:43:00.0 RTX 4090, 24 GiB: goes only together with 0000:41:00.0, which is not to be had (its IOMMU group 12 cannot go along: 0000:42:00.0 (nvme), NVMe disk of class 0x010802, is used by the host);
  0000:51:00.0 RTX 4090, 24 GiB: free;
1 would do now
"#);
    cards[0].blockers.clear();
    let picked = pick(&requests("2"), &cards[..2], &Held::new()).unwrap();
    assert!(matches!(&picked[0], Partition::Whole { siblings, .. } if siblings[0].to_string() == "0000:41:00.1"));
}

#[test]
fn a_group_goes_as_a_whole() {
    let cards =
        cards(&["41 T4 16 group=1", "42 T4 16 group=1", "51 T4 16 group=2", "52 L4 24 group=2", "61 L4 24 group=3"]);
    for (request, picked) in
        [("2xt4", "41 42"), ("1", "61"), ("t4+l4", "51 52"), ("3xt4+l4", "41 42 51 52"), ("2", "41 42")]
    {
        assert_eq!(granted(request, &cards, &[]), picked, "{request}");
    }
    insta::assert_snapshot!(refusal("t4", &cards, &[]), @r#"
t4: the GPUs here that fit go only together with others of their IOMMU group;
  0000:41:00.0 T4, 16 GiB: free, goes only together with 0000:42:00.0;
  0000:42:00.0 T4, 16 GiB: free, goes only together with 0000:41:00.0;
  0000:51:00.0 T4, 16 GiB: goes only together with 0000:52:00.0, which is not to be had (another model);
  0000:52:00.0 L4, 24 GiB: another model;
  0000:61:00.0 L4, 24 GiB: another model;
2xt4 would do now
"#);
    insta::assert_snapshot!(refusal("2xt4", &cards, &["41=train"]), @r#"
2xt4 is not free now: 1 of 3 that fit is free;
  0000:41:00.0 T4, 16 GiB: in use by VM train;
  0000:42:00.0 T4, 16 GiB: goes only together with 0000:41:00.0, which is not to be had (in use by VM train);
  0000:51:00.0 T4, 16 GiB: goes only together with 0000:52:00.0, which is not to be had (another model);
  0000:52:00.0 L4, 24 GiB: another model;
  0000:61:00.0 L4, 24 GiB: another model;
2xt4 will do once others have given back
"#);
}

/// Case A-nvswitch-partition: eight cards on a board with switches, modules 1, 2, 5, 6, 7 free.
#[test]
fn boards_with_switches_are_refused() {
    let mut cards: Vec<GpuDevice> = (0..8).map(|module| card(&format!("1{module} NVIDIA_H100 80 node=0"))).collect();
    cards.iter_mut().for_each(|card| card.fabric = Fabric::Nvswitch);
    let taken = ["10", "13", "14"];
    for request in ["1", "2", "4"] {
        assert!(refusal(request, &cards, &taken).contains("on an NVSwitch board"), "{request}");
    }
    insta::assert_snapshot!(refusal("4", &cards[..2], &taken), @r#"
no GPU here fits 4;
  0000:10:00.0 NVIDIA H100, 80 GiB: on an NVSwitch board: CUDA in a machine needs a partition of the fabric, which this gvm cannot activate yet;
  0000:11:00.0 NVIDIA H100, 80 GiB: on an NVSwitch board: CUDA in a machine needs a partition of the fabric, which this gvm cannot activate yet
"#);
    let missing = "FABRIC_MODE is 0 in /etc/fm.cfg, and partitions need 1 (shared NVSwitch)";
    cards.iter_mut().for_each(|card| card.fabric_why = Some(missing.to_owned()));
    insta::assert_snapshot!(refusal("2", &cards[..1], &[]), @r#"
    no GPU here fits 2;
      0000:10:00.0 NVIDIA H100, 80 GiB: on an NVSwitch board, where CUDA in a machine needs a partition of the fabric: FABRIC_MODE is 0 in /etc/fm.cfg, and partitions need 1 (shared NVSwitch)
    "#);
    cards.iter_mut().for_each(|card| card.fabric = Fabric::Nvlink);
    assert_eq!(granted("2", &cards, &taken), "11 12");
}

/// Cases A-card-lost-after-stop, A-foreign-vfio-devices, A-unhealthy-forever.
#[test]
fn each_card_has_its_reason() {
    let mut cards: Vec<GpuDevice> = (0..9).map(|bus| card(&format!("4{bus} NVIDIA_A100 80"))).collect();
    cards[0].service = Service::Quarantined("no answer after reset".to_owned());
    cards[1].is_foreign = true;
    cards[1].blocked = Some("held by pid 4411 (qemu-system-x86)".to_owned());
    cards[2].service = Service::Draining("Xid 63, a row remap is pending".to_owned());
    cards[3].mode = GpuMode::Vgpu;
    cards[4].blocked = Some("it shows the console of the host".to_owned());
    cards[7].service = Service::Stuck("unbinding it from nvidia".to_owned());
    cards[8].service = Service::Noted("Xid 31, a fault of the application".to_owned());
    let mut all = cards.clone();
    all.push(card("c1 Tesla_T4 16"));
    let mut taken = held(&["45=train", "46"]);
    assert_eq!(pick(&requests("a100"), &all, &taken).unwrap().len(), 1, "a note is no reason");
    insta::assert_snapshot!(pick(&requests("3xa100"), &all, &taken).unwrap_err(), @r#"
3xa100 is not free now: 1 of 3 that fit is free;
  0000:40:00.0 NVIDIA A100, 80 GiB: kept out of use: no answer after reset;
  0000:41:00.0 NVIDIA A100, 80 GiB: not managed by gvm: held by pid 4411 (qemu-system-x86);
  0000:42:00.0 NVIDIA A100, 80 GiB: to be reset or repaired first: Xid 63, a row remap is pending;
  0000:43:00.0 NVIDIA A100, 80 GiB: in vgpu mode; an administrator changes it by `gvm gpu mode 0000:43:00.0 passthrough`;
  0000:44:00.0 NVIDIA A100, 80 GiB: blocked: it shows the console of the host;
  0000:45:00.0 NVIDIA A100, 80 GiB: in use by VM train;
  0000:46:00.0 NVIDIA A100, 80 GiB: in use;
  0000:47:00.0 NVIDIA A100, 80 GiB: stuck in the kernel until the host restarts: unbinding it from nvidia;
  0000:48:00.0 NVIDIA A100, 80 GiB: free;
  0000:c1:00.0 Tesla T4, 16 GiB: another model;
a100 would do now; 3xa100 once others have given back
"#);
    let why = pick(&requests("3xa100"), &all, &taken).unwrap_err();
    assert!(why.is_for_now());
    taken.get_mut(&cards[5].id).unwrap().state = LeaseState::Sanitising;
    assert!(pick(&requests("2xa100"), &all, &taken).unwrap_err().to_string().contains("being cleaned after VM train"));
    assert!(!pick(&requests("4xa100"), &all, &taken).unwrap_err().is_for_now());
    let json = serde_json::to_value(&why).unwrap();
    assert_eq!((&json["reason"], &json["terms"][0]["exist"]), (&"not_free".into(), &3.into()));
    assert_eq!((&json["cards"][5]["detail"]["vm"], &json["now"][0]), (&"train".into(), &"a100".into()));
}

#[test]
fn refusals_say_what_there_is_and_what_would_do() {
    let cards = mixed();
    insta::assert_snapshot!(refusal("1", &[], &[]), @"no GPU here fits 1: this host has no GPU that gvm manages");
    insta::assert_snapshot!(refusal("h100", &cards, &[]), @r#"
no GPU here is called h100 (there are: a100, t4); did you mean a100?;
  0000:41:00.0 NVIDIA A100-SXM4-80GB, 80 GiB: another model;
  0000:81:00.0 NVIDIA A100-SXM4-40GB, 40 GiB: another model;
  0000:c1:00.0 Tesla T4, 16 GiB: another model
"#);
    insta::assert_snapshot!(refusal("a10", &cards, &[]), @r#"
no GPU here is called a10 (there are: a100, t4); did you mean a100?;
  0000:41:00.0 NVIDIA A100-SXM4-80GB, 80 GiB: another model;
  0000:81:00.0 NVIDIA A100-SXM4-40GB, 40 GiB: another model;
  0000:c1:00.0 Tesla T4, 16 GiB: another model
"#);
    insta::assert_snapshot!(refusal("4", &cards, &[]), @r#"
4 is more than this host has: 3 of 3 that fit are free;
  0000:41:00.0 NVIDIA A100-SXM4-80GB, 80 GiB: free;
  0000:81:00.0 NVIDIA A100-SXM4-40GB, 40 GiB: free;
  0000:c1:00.0 Tesla T4, 16 GiB: free;
3 would do now
"#);
    insta::assert_snapshot!(refusal("2xa100", &cards, &["41=train"]), @r#"
2xa100 is not free now: 1 of 2 that fit is free;
  0000:41:00.0 NVIDIA A100-SXM4-80GB, 80 GiB: in use by VM train;
  0000:81:00.0 NVIDIA A100-SXM4-40GB, 40 GiB: free;
  0000:c1:00.0 Tesla T4, 16 GiB: another model;
a100 would do now; 2xa100 once others have given back
"#);
    insta::assert_snapshot!(refusal("a100:96GiB", &cards, &[]), @r#"
no GPU here fits a100:96GiB;
  0000:41:00.0 NVIDIA A100-SXM4-80GB, 80 GiB: less memory than 96 GiB;
  0000:81:00.0 NVIDIA A100-SXM4-40GB, 40 GiB: less memory than 96 GiB;
  0000:c1:00.0 Tesla T4, 16 GiB: another model
"#);
    insta::assert_snapshot!(refusal("t4+2xa100", &cards, &["41"]), @r#"
t4 + 2xa100 is not free now: 1 of 1 that fit t4 is free, 1 of 2 that fit 2xa100 is free;
  0000:41:00.0 NVIDIA A100-SXM4-80GB, 80 GiB: in use;
  0000:81:00.0 NVIDIA A100-SXM4-40GB, 40 GiB: free;
  0000:c1:00.0 Tesla T4, 16 GiB: free;
t4 or a100 would do now; t4 + 2xa100 once others have given back
"#);
    insta::assert_snapshot!(refusal("2:same-switch", &eight(), &["11", "15", "91", "95"]), @r#"
2:same-switch is not free now: 4 of 8 that fit are free;
  0000:11:00.0 NVIDIA A100, 80 GiB: in use;
  0000:12:00.0 NVIDIA A100, 80 GiB: free;
  0000:15:00.0 NVIDIA A100, 80 GiB: in use;
  0000:16:00.0 NVIDIA A100, 80 GiB: free;
  0000:91:00.0 NVIDIA A100, 80 GiB: in use;
  0000:92:00.0 NVIDIA A100, 80 GiB: free;
  0000:95:00.0 NVIDIA A100, 80 GiB: in use;
  0000:96:00.0 NVIDIA A100, 80 GiB: free;
1 or 2 would do now; 2:same-switch once others have given back
"#);
    insta::assert_snapshot!(refusal("3:same-switch", &eight()[..4], &[]), @r#"
3:same-switch: no GPUs here are that close to each other; 4 of 4 that fit are free;
  0000:11:00.0 NVIDIA A100, 80 GiB: free;
  0000:12:00.0 NVIDIA A100, 80 GiB: free;
  0000:15:00.0 NVIDIA A100, 80 GiB: free;
  0000:16:00.0 NVIDIA A100, 80 GiB: free;
2:same-switch or 3 would do now
"#);
    insta::assert_snapshot!(refusal("mig:3g.40gb", &cards, &[]), @"mig:3g.40gb: no card of this host is divided by MIG so that machines can have a part of it. A bare MIG instance is no PCI device; it goes to a machine as a vGPU, for which NVIDIA's vGPU host driver is needed (`gvm gpu mode GPU mig`). Ask for a whole card, which can be divided inside of the machine, or for what `gvm gpu offers` says there is");
    insta::assert_snapshot!(refusal("vgpu:L40S-12Q", &cards, &[]), @"vgpu:L40S-12Q: no card of this host is divided into vGPUs. Ask for a count, a model or a size; `gvm gpu offers` says what there is");
    insta::assert_snapshot!(refusal("9+8", &cards, &[]), @"17 GPUs are more than one machine may have (16); a model named by a number is written with its family (rtx-4090)");
}

#[test]
fn memory_that_is_not_known_is_not_none() {
    let cards = cards(&["41 A100 0", "42 A100 80"]);
    assert_eq!(granted("a100", &cards, &[]), "42", "it may be the largest");
    assert_eq!(granted("a100", &cards, &["42"]), "41");
    assert!(refusal("40GiB", &cards, &["42"]).contains("how much memory it has is not known"));
}

#[test]
fn offers_say_what_can_be_had() {
    let shown = |cards: &[GpuDevice], taken: &[&str]| {
        let line = |o: &Offer| {
            format!(
                "{}: {} of {} {:?} node {} switch {}",
                o.request, o.free, o.total, o.counts, o.same_node, o.same_switch
            )
        };
        offers(cards, &held(taken)).iter().map(line).collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(shown(&eight(), &["11"]), @"a100: 7 of 8 [1, 2, 3, 4, 5, 6, 7] node 4 switch 2");
    insta::assert_snapshot!(shown(&mixed(), &["c1"]), @r#"
a100-40g: 1 of 1 [1] node 0 switch 0
a100-80g: 1 of 1 [1] node 0 switch 0
t4: 0 of 1 [] node 0 switch 0
"#);
    insta::assert_snapshot!(shown(&cards(&["41 T4 16 group=1", "42 T4 16 group=1", "51 T4 16"]), &["51"]), @"t4: 2 of 3 [2] node 0 switch 0");
    assert_eq!(shown(&[], &[]), "");
}
