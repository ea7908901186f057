//! Reading layout files.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{DeviceFilter, LayoutContent, LayoutDevices, LayoutEntry, LayoutFile, LayoutFileError, LayoutFormat};
use crate::model::card::shape::MAX_FUNCTIONS;
use crate::model::gpu::VgpuTypeName;
use crate::model::gpu::mig::{MAX_SLICES, MigProfile};

/// The formats are six levels deep.
const MAX_DEPTH: usize = 12;
/// NVIDIA's own file of all their cards has less than a tenth of it.
const MAX_NODES: usize = 40_000;
/// Aliases are allowed, for people who write what is alike once.
const MAX_ALIASES: usize = 200;
/// Bytes of all that aliases can stand for.
const MAX_ANCHORED: usize = 32 << 10;
/// Longest name of a config.
const MAX_NAME: usize = 128;
/// Cards of one host.
const MAX_CARDS: u64 = 256;
/// Filters of one entry.
const MAX_FILTERS: usize = 256;

type Read<T> = Result<T, LayoutFileError>;

/// A place in the file, for messages.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    config: &'a str,
    /// Counted from 1.
    entry: usize,
}

impl Place<'_> {
    fn wrong(self, key: &str, problem: impl Into<String>) -> LayoutFileError {
        let Self { config, entry } = self;
        let key = if key.is_empty() { String::new() } else { format!(", {key}") };
        shape(format!("config {config:?}, entry {entry}{key}"), problem)
    }
}

fn shape(at: impl Into<String>, problem: impl Into<String>) -> LayoutFileError {
    LayoutFileError::Shape { at: at.into(), problem: problem.into() }
}

impl LayoutFile {
    /// Most bytes of a file.
    pub const MAX_SIZE: usize = 1 << 20;

    /// Reads a file of either format; the key of its configs tells which.
    ///
    /// # Errors
    /// [`LayoutFileError`], with the place and what to do.
    pub fn read(text: &str) -> Read<Self> {
        if text.len() > Self::MAX_SIZE {
            return Err(LayoutFileError::TooLarge(text.len()));
        }
        let top = "the file";
        let Value::Object(root) = parse(text)? else {
            return Err(shape(top, "it has to be a mapping with `version: v1` and `mig-configs` or `vgpu-configs`"));
        };
        match root.get("version") {
            Some(Value::String(version)) if version == "v1" => {}
            Some(other) => return Err(shape("version", format!("{} is not known; write `version: v1`", shown(other)))),
            None => return Err(shape(top, "`version` is missing; write `version: v1` at its top")),
        }
        let format = match (root.contains_key("mig-configs"), root.contains_key("vgpu-configs")) {
            (true, false) => LayoutFormat::MigParted,
            (false, true) => LayoutFormat::VgpuDeviceManager,
            (true, true) => {
                return Err(shape(top, "it has `mig-configs` and `vgpu-configs`; make two files of it"));
            }
            (false, false) => return Err(shape(top, "it has neither `mig-configs` nor `vgpu-configs`")),
        };
        if let Some(key) = root.keys().find(|key| *key != "version" && *key != format.configs_key()) {
            let has = format.configs_key();
            return Err(shape(top, format!("the key {} is not known; beside `version` there is `{has}`", quoted(key))));
        }
        let configs = match root.get(format.configs_key()) {
            Some(Value::Object(configs)) if !configs.is_empty() => configs,
            _ => {
                return Err(shape(
                    format.configs_key(),
                    "it has to be a mapping of names to lists of entries, not empty",
                ));
            }
        };
        let read = configs.iter().map(|(name, entries)| Ok((name.clone(), config(format, name, entries)?)));
        Ok(Self { format, configs: read.collect::<Read<BTreeMap<_, _>>>()? })
    }
}

fn config(format: LayoutFormat, name: &str, entries: &Value) -> Read<Vec<LayoutEntry>> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let problem = format!("the name of a config has 1 to {MAX_NAME} printable characters");
        return Err(shape(format!("config {}", quoted(name)), problem));
    }
    let Value::Array(entries) = entries else {
        return Err(shape(format!("config {name:?}"), "it has to be a list of entries, each with `devices`"));
    };
    if entries.is_empty() {
        return Err(shape(format!("config {name:?}"), "it has no entries; write at least one"));
    }
    let read = |(at, value): (usize, &Value)| entry(format, Place { config: name, entry: at + 1 }, value);
    entries.iter().enumerate().map(read).collect()
}

fn entry(format: LayoutFormat, place: Place<'_>, value: &Value) -> Read<LayoutEntry> {
    let Value::Object(map) = value else {
        return Err(place.wrong("", "it has to be a mapping of `key: value`"));
    };
    let known: &[&str] = match format {
        LayoutFormat::MigParted => &["device-filter", "devices", "mig-enabled", "mig-devices"],
        LayoutFormat::VgpuDeviceManager => &["device-filter", "devices", "vgpu-devices"],
    };
    if let Some(key) = map.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(place.wrong(&quoted(key), format!("the key is not known; there are {}", known.join(", "))));
    }
    let filter = map.get("device-filter").map_or(Ok(Vec::new()), |value| filters(place, value))?;
    let devices = map.get("devices").ok_or_else(|| {
        place.wrong("devices", "it is missing; write `devices: all`, or the numbers of cards: `devices: [0, 1]`")
    })?;
    let devices = indexes(place, devices)?;
    let content = match format {
        LayoutFormat::MigParted => mig(place, map)?,
        LayoutFormat::VgpuDeviceManager => vgpu(place, map)?,
    };
    Ok(LayoutEntry { filter, devices, content })
}

fn filters(place: Place<'_>, value: &Value) -> Read<Vec<DeviceFilter>> {
    let one = |value: &Value| {
        let read = value.as_str().and_then(DeviceFilter::parse);
        read.ok_or_else(|| {
            let how = "write device and maker as one number in quotes, \"0x20B210DE\"; lspci -n says them the other way \
                       round (10de:20b2)";
            place.wrong("device-filter", format!("{} is no PCI number of a card; {how}", shown(value)))
        })
    };
    match value {
        // As in the programs whose format it is, an empty one lets all through.
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::Array(list) if list.len() > MAX_FILTERS => {
            Err(place.wrong("device-filter", format!("it has {} numbers; at most {MAX_FILTERS} are read", list.len())))
        }
        Value::Array(list) => list.iter().map(one).collect(),
        other => Ok(vec![one(other)?]),
    }
}

fn indexes(place: Place<'_>, value: &Value) -> Read<LayoutDevices> {
    let how =
        "write `all`, or a list of numbers from 0, as `gvm gpu layout export` does; addresses are not in this format";
    let list = match value {
        Value::String(word) if word == "all" => return Ok(LayoutDevices::All),
        Value::Array(list) => list,
        other => return Err(place.wrong("devices", format!("{} names no cards; {how}", shown(other)))),
    };
    let mut read: Vec<u32> = Vec::new();
    for value in list {
        let index = value.as_u64().filter(|index| *index < MAX_CARDS).and_then(|index| u32::try_from(index).ok());
        let index =
            index.ok_or_else(|| place.wrong("devices", format!("{} is no number of a card; {how}", shown(value))))?;
        if read.contains(&index) {
            return Err(place.wrong("devices", format!("it names card {index} twice; write each once")));
        }
        read.push(index);
    }
    match read.is_empty() {
        true => Err(place.wrong("devices", format!("it names no card; {how}, or leave the entry out"))),
        false => Ok(LayoutDevices::Indexes(read)),
    }
}

fn mig(place: Place<'_>, map: &Map<String, Value>) -> Read<LayoutContent> {
    let is_on = match map.get("mig-enabled") {
        Some(Value::Bool(is_on)) => *is_on,
        Some(other) => {
            return Err(place.wrong("mig-enabled", format!("{} is neither true nor false", shown(other))));
        }
        None => return Err(place.wrong("mig-enabled", "it is missing; write true, or false for a card without MIG")),
    };
    let counts = map.get("mig-devices").map(|value| counts(place, "mig-devices", value, MAX_SLICES)).transpose()?;
    match (is_on, counts) {
        (true, None) => Err(place.wrong(
            "mig-devices",
            "it is missing; with `mig-enabled: true` write how many of each \
             profile there are to be, or {} for none",
        )),
        (false, Some(counts)) if !counts.is_empty() => {
            Err(place.wrong("mig-devices", "there can be none with `mig-enabled: false`; leave it out, or write true"))
        }
        (false, _) => Ok(LayoutContent::MigOff),
        (true, Some(counts)) => {
            let mut read: Vec<(MigProfile, u32)> = Vec::new();
            for (name, count) in counts {
                let profile: MigProfile =
                    name.parse().map_err(|error| place.wrong("mig-devices", format!("{error}")))?;
                if !profile.is_whole() {
                    let problem = format!(
                        "{profile} is a part of an instance, and gvm makes each with one compute instance that has all \
                         of it; write {}g.{}gb",
                        profile.slices(),
                        profile.memory_gb()
                    );
                    return Err(place.wrong("mig-devices", problem));
                }
                if read.iter().any(|(other, _)| *other == profile) {
                    return Err(place.wrong("mig-devices", format!("{profile} is counted twice; write it once")));
                }
                read.push((profile, count));
            }
            read.sort_unstable();
            Ok(LayoutContent::Mig(read))
        }
    }
}

fn vgpu(place: Place<'_>, map: &Map<String, Value>) -> Read<LayoutContent> {
    let key = "vgpu-devices";
    let value = map.get(key).ok_or_else(|| {
        place.wrong(key, "it is missing; write how many of each type there are to be, or {} for none")
    })?;
    let mut read: Vec<(VgpuTypeName, u32)> = Vec::new();
    let mut has_slices = None;
    for (text, count) in counts(place, key, value, MAX_FUNCTIONS)? {
        let grade = VgpuTypeName::parse(text).and_then(|name| Some((name.grade()?, name)));
        let Some((grade, name)) = grade else {
            let how = "write its name as the driver does: L40S-12Q, or A100-1-5C with a MIG instance behind it";
            return Err(place.wrong(key, format!("{} is no type of a vGPU; {how}", quoted(text))));
        };
        if has_slices.is_some_and(|has| has != grade.slices.is_some()) {
            let problem = "some types share the card by time and some have MIG instances behind them, which cannot be on \
                           one card; write one kind of them";
            return Err(place.wrong(key, problem));
        }
        has_slices = Some(grade.slices.is_some());
        if read.iter().any(|(other, _)| *other == name) {
            return Err(place.wrong(key, format!("{name} is counted twice; write it once")));
        }
        read.push((name, count));
    }
    read.sort_unstable();
    Ok(LayoutContent::Vgpu(read))
}

/// How many of each name, from 1; names in the order of their letters.
fn counts<'a>(place: Place<'_>, key: &str, value: &'a Value, most: u32) -> Read<Vec<(&'a str, u32)>> {
    let Value::Object(map) = value else {
        return Err(place.wrong(key, "it has to be a mapping of names to numbers, such as `\"1g.10gb\": 7`"));
    };
    let one = |(name, value): (&'a String, &Value)| {
        if name.len() > MAX_NAME {
            return Err(place.wrong(key, format!("{} is longer than any name of a card's parts", quoted(name))));
        }
        let count =
            value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| (1..=most).contains(count));
        let count = count.ok_or_else(|| {
            let problem = format!("{} is no number of {}; a card has 1 to {most}", shown(value), quoted(name));
            place.wrong(key, format!("{problem}, and what there is none of is left out"))
        })?;
        Ok((name.as_str(), count))
    };
    map.iter().map(one).collect()
}

fn parse(text: &str) -> Read<Value> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: MAX_NODES * 2,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_recorded_anchor_events: MAX_NODES * 2,
            // What an alias stands for is copied for each.
            max_recorded_anchor_bytes: MAX_ANCHORED,
            max_total_scalar_bytes: LayoutFile::MAX_SIZE,
            // One more than allowed: the parser's own word for that is clearer than the budget's.
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_NODES,
            max_replay_stack_depth: MAX_DEPTH,
        },
        reject_unsupported_tags: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let problem = problem(&error.without_snippet().to_string());
        LayoutFileError::Yaml { line, column, problem }
    })
}

/// The parser's message in one line, without what is said already (the place) or what nobody here can do (its options).
fn problem(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    if line.starts_with("recursive references") {
        return "an alias stands within what it stands for; write it out plainly".to_owned();
    }
    if ["budget", "alias", "recursion limit"].iter().any(|start| line.starts_with(start)) {
        return "the file is nested too deeply, too long, or its aliases stand for too much; write it out plainly, \
                or in several files"
            .to_owned();
    }
    let end = [" at line ", ", set ", "; use "].iter().filter_map(|mark| line.find(mark)).min();
    line.get(..end.unwrap_or(line.len())).unwrap_or(line).chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A stranger's word for a message.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// A stranger's value for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Number(number) => number.to_string(),
        Value::Bool(is) => is.to_string(),
        Value::Null => "nothing".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
