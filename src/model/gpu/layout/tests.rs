//! What is read, what is refused and how, and that what is written is read again as the same.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

/// Shapes that mig-parted's own configurations have, in our own words.
const MIG: &str = r#"
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.10gb:
    # A100-80 and H100-80
    - device-filter: ["0x20B210DE", "0x20B510DE", "0x233010DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
  all-balanced:
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.6gb": 2, "2g.12gb": 1}
    - device-filter: "0x25B610DE:0x14A910DE"
      devices: [3, 1]
      mig-enabled: true
      mig-devices: {"1g.10gb+me": 1, "2g.20gb": 1, "3g.40gb": 1}
  empty:
    - {devices: [0], mig-enabled: true, mig-devices: {}}
"#;

const VGPU: &str = r#"
version: v1
vgpu-configs:
  none: [{devices: all, vgpu-devices: {}}]
  mixed:
    - devices: [0]
      vgpu-devices: {A100-10C: 4}
    - devices: [1]
      vgpu-devices:
        "A100-1-5C": 6
        "A100-1-5CME": 1
"#;

fn fault(text: &str) -> String {
    LayoutFile::read(text).unwrap_err().to_string()
}

#[test]
fn the_shapes_of_both_programs_are_read() {
    let file = LayoutFile::read(MIG).unwrap();
    assert_eq!(file.format, LayoutFormat::MigParted);
    assert_eq!(file.configs.keys().collect::<Vec<_>>(), ["all-1g.10gb", "all-balanced", "all-disabled", "empty"]);
    assert_eq!(
        file.configs["all-disabled"],
        [LayoutEntry { filter: Vec::new(), devices: LayoutDevices::All, content: LayoutContent::MigOff }]
    );
    let [small, a16] = file.configs["all-balanced"].as_slice() else { panic!("two entries") };
    assert_eq!(
        small.content,
        LayoutContent::Mig(vec![("1g.6gb".parse().unwrap(), 2), ("2g.12gb".parse().unwrap(), 1)])
    );
    assert_eq!(a16.devices, LayoutDevices::Indexes(vec![3, 1]));
    assert_eq!(a16.filter[0].to_string(), "0x25B610DE:0x14A910DE");
    assert_eq!(file.configs["all-1g.10gb"][0].filter.len(), 3);
    assert_eq!(file.configs["empty"][0].content, LayoutContent::Mig(Vec::new()));

    let file = LayoutFile::read(VGPU).unwrap();
    assert_eq!(file.format, LayoutFormat::VgpuDeviceManager);
    assert_eq!(file.configs["none"][0].content, LayoutContent::Vgpu(Vec::new()));
    let name = |text: &str| VgpuTypeName::parse(text).unwrap();
    assert_eq!(
        file.configs["mixed"][1].content,
        LayoutContent::Vgpu(vec![(name("A100-1-5C"), 6), (name("A100-1-5CME"), 1)])
    );
    for crlf in [MIG, VGPU].map(|text| text.replace('\n', "\r\n")) {
        assert!(LayoutFile::read(&crlf).is_ok());
    }
}

/// An alias is a way to write what is alike once.
#[test]
fn aliases_are_read() {
    let text = "version: v1\nmig-configs:\n  one: &one\n    - {devices: all, mig-enabled: false}\n  other: *one\n";
    let file = LayoutFile::read(text).unwrap();
    assert_eq!(file.configs["one"], file.configs["other"]);
}

#[test]
fn a_filter_is_device_first_and_board_where_told() {
    let ids = |device, subsystem| PciIds { vendor: 0x10de, device, subsystem, class: 0x03_0200 };
    let filter = |text: &str| DeviceFilter::parse(text).unwrap();
    let (a16, a2) = (ids(0x25b6, Some((0x10de, 0x14a9))), ids(0x25b6, Some((0x10de, 0x157e))));
    assert!(filter("0x25B610DE").lets(&a16) && filter("0x25b610de").lets(&a2) && filter("0X25b610DE").lets(&a2));
    assert!(filter("0x25B610DE:0x14A910DE").lets(&a16) && !filter("0x25B610DE:0x14A910DE").lets(&a2));
    assert!(!filter("0x10DE25B6").lets(&a16) && !filter("0x25B610DE:0x14A910DE").lets(&ids(0x25b6, None)));
    assert_eq!(DeviceFilter::of(&a16).to_string(), "0x25B610DE");
    for bad in
        ["", "0x", "25B610DE", "0x25B6", "0x25B610DEE", "0x25B610D\u{e9}", "0x25B610DE:", "0x+5B610DE", "10de:25b6"]
    {
        assert_eq!(DeviceFilter::parse(bad), None, "{bad}");
    }
}

/// An entry of a config of mig-parted's, in a file.
fn mig(entry: &str) -> String {
    format!("version: v1\nmig-configs:\n  a:\n    - {{devices: all, mig-enabled: false}}\n    - {{{entry}}}\n")
}

fn vgpu(entry: &str) -> String {
    format!("version: v1\nvgpu-configs:\n  a:\n    - {{{entry}}}\n")
}

#[test]
fn what_is_no_layout_is_told_where_and_what_to_do() {
    let on = |rest: &str| mig(&format!("devices: all, mig-enabled: true, {rest}"));
    let types = |rest: &str| vgpu(&format!("devices: all, vgpu-devices: {{{rest}}}"));
    let cases = [
        String::new(),
        "just words".to_owned(),
        "[]".to_owned(),
        "mig-configs: {}".to_owned(),
        "version: v2\nmig-configs: {}".to_owned(),
        "version: 1\nmig-configs: {}".to_owned(),
        "version: v1".to_owned(),
        "version: v1\nmig-configs: {}".to_owned(),
        "version: v1\nmig-configs: []".to_owned(),
        "version: v1\nmig-configs: {a: []}\nvgpu-configs: {a: []}".to_owned(),
        "version: v1\nmig-configs: {a: []}\nmore: 1".to_owned(),
        "version: v1\nmig-configs: {a: []}".to_owned(),
        "version: v1\nmig-configs: {a: all}".to_owned(),
        "version: v1\nmig-configs: {a: [all]}".to_owned(),
        "version: v1\nmig-configs: {\"a\\nb\": []}".to_owned(),
        "version: v1\nversion: v1\nmig-configs: {a: []}".to_owned(),
        "version: v1\nmig-configs:\n\ta: []".to_owned(),
        "version: v1\nmig-configs: {a: [}".to_owned(),
        "version: v1\n---\nversion: v1\n".to_owned(),
        mig("mig-enabled: false"),
        mig("devices: all"),
        mig("devices: all, mig-enabled: false, mig-device: {}"),
        mig("devices: all, mig-enabled: false, devices: [0]"),
        mig("devices: all, mig-enabled: maybe"),
        mig("devices: all, mig-enabled: true"),
        mig("devices: all, mig-enabled: false, mig-devices: {1g.10gb: 1}"),
        mig("devices: some, mig-enabled: false"),
        mig("devices: [], mig-enabled: false"),
        mig("devices: [0, 1, 0], mig-enabled: false"),
        mig("devices: [-1], mig-enabled: false"),
        mig("devices: [0.5], mig-enabled: false"),
        mig("devices: [4000000000], mig-enabled: false"),
        mig("devices: [\"0000:41:00.0\"], mig-enabled: false"),
        mig("devices: 0, mig-enabled: false"),
        mig("device-filter: 10de:20b2, devices: all, mig-enabled: false"),
        mig("device-filter: [0x20B210DE], devices: all, mig-enabled: false"),
        mig("device-filter: {a: 1}, devices: all, mig-enabled: false"),
        on("mig-devices: [1g.10gb]"),
        on("mig-devices: {1g.10gb: 0}"),
        on("mig-devices: {1g.10gb: -1}"),
        on("mig-devices: {1g.10gb: 33}"),
        on("mig-devices: {1g.10gb: 1.5}"),
        on("mig-devices: {1g.10gb: \"7\"}"),
        on("mig-devices: {1g.10gb: 1, 1g.10gb: 2}"),
        on("mig-devices: {1g.10gb: 1, 1c.1g.10gb: 2}"),
        on("mig-devices: {1c.3g.40gb: 1}"),
        on("mig-devices: {\"19\": 1}"),
        on("mig-devices: {A100-1-5C: 1}"),
        vgpu("devices: all"),
        vgpu("devices: all, vgpu-devices: {}, mig-enabled: true"),
        types("nvidia-475: 1"),
        types("1g.10gb: 1"),
        types("A100-4C: 0"),
        types("A100-4C: 300"),
        types("A100-4C: 1, A100-1-5C: 1"),
        types("A100-4C: 1, NVIDIA A100-4C: 1"),
    ];
    let mut told = String::new();
    for text in cases {
        writeln!(told, "{}\n    -> {}\n", text.trim().lines().last().unwrap_or_default().trim(), fault(&text)).unwrap();
    }
    insta::assert_snapshot!(told);
}

/// Whatever a stranger sends, the answer comes at once and says something.
#[test]
fn bombs_cost_little() {
    let mut laughs = String::from("version: v1\na: &a [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for (one, before) in ('b'..='z').zip('a'..) {
        let list = vec![format!("*{before}"); 9].join(", ");
        writeln!(laughs, "{one}: &{one} [{list}]").unwrap();
    }
    let anchors = (0..300).fold(String::from("version: v1\n"), |text, at| format!("{text}k{at}: &a{at} x\n"));
    let aliases = format!("version: v1\na: &a x\nmig-configs: {{a: [{}]}}", vec!["*a"; 5000].join(", "));
    let copies = format!("version: v1\na: &a {}\nb: [{}]", "x".repeat(1 << 19), vec!["*a"; 199].join(", "));
    let merges = "version: v1\na: &a {k: 1}\nb: &b {<<: [*a, *a]}\nmig-configs: {c: {<<: [*b, *b, *b]}}".to_owned();
    let deep = format!("version: v1\nmig-configs: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    let blocks = (0..10_000).fold(String::from("version: v1\n"), |text, depth| {
        if depth > 400 { text } else { format!("{text}{}- \n", " ".repeat(depth)) }
    });
    let many = format!("version: v1\nmig-configs: {{a: [{}]}}", "0,".repeat(400_000));
    let keys = (0..60_000).fold(String::from("version: v1\n"), |text, at| text + &format!("k{at}: 1\n"));
    let scalar = format!("version: v1\nmig-configs: {{a: \"{}\"}}", "x".repeat(100 << 20));
    let name = format!("version: v1\nmig-configs: {{{}: []}}", "x".repeat(900));
    let profile = mig(&format!("devices: all, mig-enabled: true, mig-devices: {{\"{}\": 1}}", "9".repeat(900)));
    let cycle = "version: v1\nmig-configs: &a {a: *a}".to_owned();
    for (what, text) in [
        ("laughs", laughs),
        ("anchors", anchors),
        ("aliases", aliases),
        ("copies", copies),
        ("merges", merges),
        ("deep", deep),
        ("blocks", blocks),
        ("many", many),
        ("keys", keys),
        ("scalar", scalar),
        ("name", name),
        ("profile", profile),
        ("cycle", cycle),
    ] {
        let from = Instant::now();
        let error = fault(&text);
        // Far above what it takes in a debug build on a busy machine, and far below what a bomb would.
        assert!(from.elapsed() < Duration::from_secs(5), "{what}: {:?}", from.elapsed());
        assert!(error.len() < 1200 && !error.contains('\n'), "{what}: {error}");
        println!("{what} ({:?}): {error}", from.elapsed());
    }
}

#[test]
fn a_layout_of_a_card_is_small_and_tells_itself() {
    let instance = Instance {
        profile: "3g.40gb".parse().unwrap(),
        placement: crate::model::gpu::mig::Placement { start: 4, size: 4 },
    };
    let name = |text: &str| VgpuTypeName::parse(text).unwrap();
    for (layout, text) in [
        (CardLayout::Host, r#"{"layout":"host"}"#),
        (
            CardLayout::Mig { instances: vec![instance], vgpus: Vec::new() },
            r#"{"layout":"mig","instances":[{"profile":"3g.40gb","placement":{"start":4,"size":4}}]}"#,
        ),
        (
            CardLayout::Mig { instances: Vec::new(), vgpus: vec![(name("A100D-3-40C"), 1)] },
            r#"{"layout":"mig","instances":[],"vgpus":[["A100D-3-40C",1]]}"#,
        ),
        (CardLayout::Vgpu { types: vec![(name("L40S-12Q"), 4)] }, r#"{"layout":"vgpu","types":[["L40S-12Q",4]]}"#),
    ] {
        assert_eq!(serde_json::to_string(&layout).unwrap(), text);
        assert_eq!(serde_json::from_str::<CardLayout>(text).unwrap(), layout);
    }
}

fn a_filter() -> impl Strategy<Value = DeviceFilter> {
    (any::<u16>(), any::<u16>(), any::<Option<(u16, u16)>>()).prop_map(|(device, vendor, board)| DeviceFilter {
        device,
        vendor,
        board,
    })
}

fn devices() -> impl Strategy<Value = LayoutDevices> {
    let some = proptest::collection::btree_set(0_u32..256, 1..6).prop_map(|set| set.into_iter().collect());
    prop_oneof![Just(LayoutDevices::All), some.prop_map(LayoutDevices::Indexes)]
}

fn mig_content() -> impl Strategy<Value = LayoutContent> {
    let profile = (1_u8..9, 1_u16..200, 0..5_usize).prop_map(|(slices, memory, variant)| {
        let end = ["", "+me", "+me.all", "+gfx", "-me"][variant];
        format!("{slices}g.{memory}gb{end}").parse::<MigProfile>().unwrap()
    });
    let counts = proptest::collection::btree_map(profile, 1_u32..32, 0..5);
    prop_oneof![Just(LayoutContent::MigOff), counts.prop_map(|map| LayoutContent::Mig(map.into_iter().collect()))]
}

fn vgpu_content() -> impl Strategy<Value = LayoutContent> {
    let name = ("[A-Z][A-Z0-9]{0,5}", 1_u16..200, "[ABCQ]")
        .prop_map(|(card, gib, series)| VgpuTypeName::parse(&format!("{card}-{gib}{series}")).unwrap());
    let counts = proptest::collection::btree_map(name, 1_u32..256, 0..4);
    counts.prop_map(|map| LayoutContent::Vgpu(map.into_iter().collect()))
}

fn file(
    format: LayoutFormat,
    content: impl Strategy<Value = LayoutContent> + 'static,
) -> impl Strategy<Value = LayoutFile> {
    let entry = (proptest::collection::vec(a_filter(), 0..3), devices(), content)
        .prop_map(|(filter, devices, content)| LayoutEntry { filter, devices, content });
    let entries = proptest::collection::vec(entry, 1..4);
    proptest::collection::btree_map("[^\\p{Cc}]{1,20}", entries, 1..4)
        .prop_map(move |configs| LayoutFile { format, configs })
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(
        file in prop_oneof![
            file(LayoutFormat::MigParted, mig_content()),
            file(LayoutFormat::VgpuDeviceManager, vgpu_content()),
        ],
        notes in proptest::collection::vec(any::<String>(), 0..3),
    ) {
        let text = file.write(&notes);
        let read = LayoutFile::read(&text);
        prop_assert_eq!(read.as_ref(), Ok(&file), "{}", text);
        prop_assert_eq!(read.unwrap().write(&notes), text);
    }

    #[test]
    fn no_text_is_too_strange(text in "(version: v1\n)?(mig-configs|vgpu-configs)?[:\\[\\]{}&*a-c0-9 \n\"'<!|>-]{0,80}") {
        let _ = LayoutFile::read(&text);
    }
}
