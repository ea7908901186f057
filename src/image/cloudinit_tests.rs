use super::*;

/// A seed with every part filled, and fixed keys so that the bytes are known.
pub(in crate::image) fn spec() -> SeedSpec {
    let key = |text: &str| text.parse::<PublicKey>().unwrap();
    let ed = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh";
    SeedSpec {
        vm: "01980000-0000-7000-8000-000000000001".parse().unwrap(),
        hostname: "dev".parse().unwrap(),
        mac: MacAddress::qemu([1, 2, 3]),
        user: "eve".parse().unwrap(),
        authorized_keys: vec![key(&format!("{ed} eve@laptop")), key(&format!("{ed} gvm gateway \u{1f511}"))],
        host_key: SshKey { private: "-----BEGIN SECRET-----\n".to_owned().into(), public: key(&format!("{ed} host")) },
        profile_user_data: Some("#cloud-config\npackages: [git]\n".to_owned()),
        user_data: Some("#!/bin/sh\necho hello\n".to_owned()),
    }
}

fn text(name: &str) -> String {
    let found = render(&spec()).into_iter().find(|file| file.name == name).unwrap();
    String::from_utf8(found.content).unwrap()
}

/// The decoded bodies of the parts of user-data, with their type.
fn parts(user_data: &str) -> Vec<(String, String)> {
    let boundary = user_data.split('"').nth(1).unwrap();
    let mark = format!("--{boundary}");
    let parts = user_data.split(&mark).skip(1).filter(|part| !part.starts_with("--"));
    parts
        .map(|part| {
            let (head, body) = part.split_once("\n\n").unwrap();
            let kind = head.split_once("Content-Type: ").unwrap().1.split(';').next().unwrap();
            let body = STANDARD.decode(body.replace('\n', "")).unwrap();
            (kind.to_owned(), String::from_utf8(body).unwrap())
        })
        .collect()
}

#[test]
fn small_files_are_as_cloud_init_and_the_tiny_guest_want_them() {
    insta::assert_snapshot!(
        [text("meta-data"), text("network-config"), text("gvm-authorized-keys"), text("gvm-user")].join("--\n")
    );
}

#[test]
fn the_parts_stand_in_order_and_carry_the_merge_rule() {
    let all = text("user-data");
    let parts = parts(&all);
    let kinds: Vec<_> = parts.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["text/cloud-config", "text/cloud-config", "text/x-shellscript"]);
    assert_eq!(all.matches(MERGE).count(), 3);
    assert_eq!(parts[1].1, spec().profile_user_data.unwrap());
    assert_eq!(parts[2].1, spec().user_data.unwrap());
}

#[test]
fn gvms_part_is_data() {
    let own = parts(&text("user-data")).remove(0).1;
    let value: Value = serde_json::from_str(own.strip_prefix("#cloud-config\n").unwrap()).unwrap();
    for key in FIXED_KEYS {
        assert!(value.get(key).is_some(), "{key}");
    }
    let keys = &value["users"][0]["ssh_authorized_keys"];
    assert_eq!(keys.as_array().unwrap().len(), 2);
    assert!(own.is_ascii());
    let yaml: Value = serde_saphyr::from_str(&own).unwrap();
    assert_eq!(yaml, value);
}

#[test]
fn the_scripts_are_sound_shell() {
    for script in [BOOT, REPORT] {
        let out = std::process::Command::new("sh").args(["-n", "-c", script]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn nothing_secret_is_printed() {
    let shown = format!("{:?} {:?}", spec(), render(&spec()));
    assert!(!shown.contains("BEGIN SECRET"), "{shown}");
}

/// Runs the report with cloud-init's folder and the serial line replaced.
fn reported(result: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let line = dir.path().join("line");
    let script = REPORT
        .replace("/dev/ttyS0", &line.display().to_string())
        .replace("/run/cloud-init", &dir.path().display().to_string())
        .replace("> \"$line\"", ">> \"$line\"");
    std::fs::write(dir.path().join("status.json"), "{\n \"v1\": {\n  \"stage\": \"modules-config\"\n }\n}").unwrap();
    let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let begun = std::time::Instant::now();
    while !line.exists() && begun.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::fs::write(dir.path().join("result.json"), result).unwrap();
    child.wait().unwrap();
    std::fs::read_to_string(line).unwrap()
}

#[test]
fn the_report_tells_stages_and_the_end() {
    use crate::image::firstboot;
    use crate::model::state::FirstBoot;
    let sound = "{\n \"v1\": {\n  \"datasource\": \"DataSourceNoCloud [seed=/dev/vdb]\",\n  \"errors\": []\n }\n}\n";
    let said = reported(sound);
    assert!(said.contains("gvm: stage modules-config\r\n"), "{said}");
    assert_eq!(firstboot::parse(&said), FirstBoot::Done);
    let errors = "\"errors\": [\n   \"('scripts_user', RuntimeError('Runparts: 1 failures in 1 [x]'))\"\n  ]";
    let said = reported(&sound.replace("\"errors\": []", errors));
    let why = "\"('scripts_user', RuntimeError('Runparts: 1 failures in 1 [x]'))\"";
    assert_eq!(firstboot::parse(&said), FirstBoot::Failed(why.to_owned()));
}
