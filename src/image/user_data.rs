//! Checks a member's cloud-init document at the door, where its author still looks.
//!
//! cloud-init decides by the first line what a document is and ignores what it does not know; a mistake shows as a
//! machine that boots without the wanted user, and its log is inside of the machine. So a document is taken only
//! where cloud-init will take it. What has one obvious meaning is put right, with a notice.

use serde_json::{Map, Value};

use super::cloudinit::FIXED_KEYS;
use crate::model::access::PublicKey;

/// EC2 has 16 KiB; above this a document is a misplaced file.
pub const MAX_SIZE: usize = 64 << 10;

/// Deeper or longer than any document that people write; stops alias bombs.
const MAX_DEPTH: usize = 32;
const MAX_NODES: usize = 20_000;
const MAX_ALIASES: usize = 200;

/// First lines that cloud-init knows and gvm does not take, with the reason.
const REFUSED: [(&str, &str); 8] = [
    ("#include", "it is fetched at boot from another place, which may change or fail unseen; give the document itself"),
    ("#part-handler", "it is code for cloud-init itself; use a script (#!/bin/sh)"),
    ("#cloud-config-archive", "give one document; several parts are put together by gvm"),
    ("#cloud-config-jsonp", "give a plain #cloud-config"),
    ("#upstart-job", "cloud-init has dropped it; use a script (#!/bin/sh)"),
    ("Content-Type:", "give one document; several parts are put together by gvm"),
    ("MIME-Version:", "give one document; several parts are put together by gvm"),
    ("From ", "give one document; several parts are put together by gvm"),
];

/// The top-level keys of cloud-init's modules and of its own configuration (its reference, "Module reference").
const KNOWN: &str = "allow_public_ssh_keys ansible apk_repos apt apt_pipelining apt_preserve_sources_list \
    apt_reboot_if_required apt_sources apt_update apt_upgrade authkey_hash autoinstall bootcmd byobu_by_default \
    ca_certs ca-certs chef chpasswd cloud_config_modules cloud_final_modules cloud_init_modules create_hostname_file \
    datasource debug device_aliases disable_ec2_metadata disable_root disable_root_opts disk_setup drivers fan \
    final_message fqdn fs_setup groups growpart hostname keyboard landscape locale locale_configfile lxd \
    manage_etc_hosts manage_resolv_conf manage-resolv-conf mcollective merge_how merge_type mount_default_fields \
    mounts network no_ssh_fingerprints ntp output package_reboot_if_required package_update package_upgrade packages \
    password phone_home power_state prefer_fqdn_over_hostname preserve_hostname puppet random_seed reporting \
    resize_rootfs resolv_conf rh_subscription rpi rsyslog runcmd salt_minion snap spacewalk ssh ssh_authorized_keys \
    ssh_deletekeys ssh_fp_console_blacklist ssh_genkeytypes ssh_import_id ssh_key_console_blacklist ssh_keys \
    ssh_publish_hostkeys ssh_pwauth ssh_quiet_keygen sudo swap system_info timezone ubuntu_advantage ubuntu_pro \
    updates user users vendor_data version wireguard write_files yum_repo_dir yum_repos zypper";

/// Keys whose value has to be a list: any other shape is dropped by cloud-init, or cannot be joined with gvm's own.
const LISTS: [&str; 7] =
    ["users", "bootcmd", "runcmd", "write_files", "packages", "ssh_authorized_keys", "ssh_import_id"];

/// A document that cloud-init will take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedUserData {
    /// The document, put right where needed.
    pub text: String,
    /// What was put right or will have no effect, for its author.
    pub notices: Vec<String>,
}

/// Why a document is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserDataError {
    /// Nothing in it.
    #[error("the user data is empty; leave it out")]
    Empty,
    /// Too large.
    #[error(
        "the user data is of {0} bytes; at most 65536 are taken. Put large files into an image or fetch them in a script"
    )]
    TooLarge(usize),
    /// Not text.
    #[error("the user data is not a text (it has NUL bytes)")]
    Binary,
    /// A first line that is known and not taken.
    #[error("user data that begins with `{line}` is not taken: {why}")]
    Refused {
        /// The first line's word.
        line: String,
        /// The reason.
        why: &'static str,
    },
    /// A first line that nobody knows.
    #[error(
        "the first line `{0}` says no kind of user data; begin with `#cloud-config` (YAML), `#!/bin/sh` (a script), `#cloud-boothook` or `## template: jinja`"
    )]
    FirstLine(String),
    /// Not YAML.
    #[error("the user data is not sound YAML: line {line}, column {column}: {problem}")]
    Yaml {
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// In one line.
        problem: String,
    },
    /// YAML of a shape that cloud-init drops.
    #[error("the user data would not work: {0}")]
    Shape(String),
}

/// Checks a document.
///
/// # Errors
/// Says what is wrong, where, and what would be taken.
pub fn check(text: &str) -> Result<CheckedUserData, UserDataError> {
    if text.len() > MAX_SIZE {
        return Err(UserDataError::TooLarge(text.len()));
    }
    if text.contains('\0') {
        return Err(UserDataError::Binary);
    }
    if text.trim().is_empty() {
        return Err(UserDataError::Empty);
    }
    let mut notices = Vec::new();
    let text = normalise(text, &mut notices);
    let first = text.lines().next().map(str::trim_end).ok_or(UserDataError::Empty)?;
    let text = match first {
        "#cloud-config" => {
            check_yaml(&text, &mut notices)?;
            text
        }
        _ if first.starts_with("#!") => text,
        _ if first == "#cloud-boothook" => text,
        _ if first.starts_with("## template: jinja") => {
            check_template(&text)?;
            text
        }
        _ => add_header(text, &mut notices)?,
    };
    Ok(CheckedUserData { text, notices })
}

/// Puts right what cannot be meant otherwise: marks and blanks before the first line, line ends of Windows.
fn normalise(text: &str, notices: &mut Vec<String>) -> String {
    let mut rest = text;
    if let Some(next) = rest.strip_prefix('\u{feff}') {
        notices.push("a byte order mark at the beginning was removed".to_owned());
        rest = next;
    }
    let begun = rest.trim_start_matches(['\n', '\r', ' ', '\t']);
    // Blanks before other first lines may be YAML's indentation.
    if begun.len() < rest.len() && begun.starts_with('#') {
        notices
            .push("blanks before the first line were removed; cloud-init would have ignored the document".to_owned());
        rest = begun;
    }
    let mut text = rest.replace("\r\n", "\n");
    if text.len() < rest.len() {
        notices.push("Windows line ends were replaced".to_owned());
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn check_template(text: &str) -> Result<(), UserDataError> {
    let second = text.lines().nth(1).map(str::trim_end).unwrap_or_default();
    if second != "#cloud-config" && !second.starts_with("#!") {
        return Err(UserDataError::FirstLine(shown(second)));
    }
    match ["merge_how", "merge_type"].iter().find(|key| text.contains(**key)) {
        Some(key) => Err(merge_rule(key)),
        None => Ok(()),
    }
}

fn add_header(text: String, notices: &mut Vec<String>) -> Result<String, UserDataError> {
    let first = text.lines().next().map(str::trim).unwrap_or_default();
    if let Some((word, why)) = REFUSED.iter().find(|(word, _)| first.starts_with(word)) {
        return Err(UserDataError::Refused { line: (*word).trim_end().to_owned(), why });
    }
    let unknown = || UserDataError::FirstLine(shown(first));
    let Ok(Value::Object(map)) = parse(&text) else { return Err(unknown()) };
    if !map.keys().any(|key| is_known(key)) {
        return Err(unknown());
    }
    let text = format!("#cloud-config\n{text}");
    notices.push("the first line `#cloud-config` was missing and was added".to_owned());
    check_yaml(&text, notices)?;
    Ok(text)
}

/// A line of a stranger's for a message.
fn shown(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(60).collect()
}

fn is_known(key: &str) -> bool {
    KNOWN.split_whitespace().any(|known| known == key)
}

fn merge_rule(key: &str) -> UserDataError {
    UserDataError::Shape(format!("leave out `{key}`: gvm joins your document with its own, lists are appended"))
}

fn parse(text: &str) -> Result<Value, UserDataError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: MAX_NODES * 2,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_recorded_anchor_events: MAX_NODES * 2,
            // One more than allowed: the parser's own word for that is clearer than the budget's.
            max_documents: 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_NODES,
            max_replay_stack_depth: MAX_DEPTH,
        },
        // PyYAML, which reads the document in the guest, refuses them as well.
        reject_unsupported_tags: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let at = error.location();
        let (line, column) = at.map_or((1, 1), |at| (at.line(), at.column()));
        let index = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
        let source = text.lines().nth(index).unwrap_or_default();
        let indent: String = source.chars().take_while(|c| c.is_whitespace()).collect();
        let problem = match indent.contains('\t') {
            true => "the line is indented with a tab; YAML takes only spaces".to_owned(),
            false => shown_problem(&error.without_snippet().to_string()),
        };
        UserDataError::Yaml { line, column, problem }
    })
}

/// The parser's message in one line, without what we say ourselves (the place) or nobody here can do (its options).
fn shown_problem(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    if line.starts_with("budget") || line.starts_with("alias") {
        return "it is nested too deeply, too long, or has too many aliases".to_owned();
    }
    let end = [" at line ", ", set ", "; use "].iter().filter_map(|mark| line.find(mark)).min();
    let line = end.and_then(|end| line.get(..end)).unwrap_or(line);
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn check_yaml(text: &str, notices: &mut Vec<String>) -> Result<(), UserDataError> {
    let map = match parse(text)? {
        Value::Object(map) => map,
        Value::Null => {
            notices.push("the document says nothing".to_owned());
            return Ok(());
        }
        _ => return Err(UserDataError::Shape("it has to be a mapping of `key: value`".to_owned())),
    };
    for key in ["merge_how", "merge_type"] {
        if map.contains_key(key) {
            return Err(merge_rule(key));
        }
    }
    for (key, value) in &map {
        if FIXED_KEYS.contains(&key.as_str()) {
            notices.push(format!("`{key}` has no effect: gvm sets it"));
        } else if !is_known(key) {
            notices.push(format!("`{}` is no key that cloud-init knows; it has no effect", shown(key)));
        }
        if LISTS.contains(&key.as_str()) && !value.is_array() {
            return Err(UserDataError::Shape(format!("`{key}` has to be a list, each item on a line with `- `")));
        }
    }
    check_commands(&map)?;
    check_files(&map)?;
    check_keys("ssh_authorized_keys", map.get("ssh_authorized_keys"))?;
    check_users(&map)
}

fn items<'a>(map: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    (1..).zip(map.get(key).and_then(Value::as_array).into_iter().flatten())
}

fn check_commands(map: &Map<String, Value>) -> Result<(), UserDataError> {
    for key in ["runcmd", "bootcmd"] {
        for (number, item) in items(map, key) {
            let is_plain = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
            let fits = item.is_string() || item.as_array().is_some_and(|words| words.iter().all(is_plain));
            if !fits {
                let hint = "put a command that has `: ` or `#` in it in quotes";
                return Err(UserDataError::Shape(format!(
                    "item {number} of `{key}` is neither a text nor a list of words; {hint}"
                )));
            }
        }
    }
    Ok(())
}

fn check_files(map: &Map<String, Value>) -> Result<(), UserDataError> {
    for (number, item) in items(map, "write_files") {
        if item.get("path").and_then(Value::as_str).is_none() {
            return Err(UserDataError::Shape(format!("item {number} of `write_files` has no `path`")));
        }
    }
    Ok(())
}

fn check_users(map: &Map<String, Value>) -> Result<(), UserDataError> {
    for (number, item) in items(map, "users") {
        let Value::Object(user) = item else {
            if item.is_string() {
                continue;
            }
            return Err(UserDataError::Shape(format!("item {number} of `users` is neither a name nor a mapping")));
        };
        let name = user.get("name").or_else(|| user.get("snapuser")).and_then(Value::as_str);
        let Some(name) = name else {
            return Err(UserDataError::Shape(format!("item {number} of `users` has no `name`; it would be ignored")));
        };
        for key in ["ssh_authorized_keys", "ssh-authorized-keys"] {
            check_keys(&format!("{key} of the user {}", shown(name)), user.get(key))?;
        }
    }
    Ok(())
}

/// cloud-init drops keys of a wrong shape without a word, and the login then fails.
fn check_keys(what: &str, value: Option<&Value>) -> Result<(), UserDataError> {
    let Some(value) = value else { return Ok(()) };
    let Value::Array(keys) = value else {
        return Err(UserDataError::Shape(format!("`{what}` has to be a list of keys, each on a line with `- `")));
    };
    for (number, key) in (1..).zip(keys) {
        let wrong = |why: String| UserDataError::Shape(format!("item {number} of `{what}`: {why}"));
        let text = key.as_str().ok_or_else(|| wrong("it is not a text".to_owned()))?;
        // One key per item; options before the key are kept as they are.
        text.parse::<PublicKey>().map_err(|e| wrong(e.to_string()))?;
        if text.trim().lines().count() > 1 {
            return Err(wrong("it has several lines; give each key its own item".to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "user_data_tests.rs"]
mod tests;
