//! Every built-in profile on its whole way: planner, leases, template. A snapshot each, so that a change of what
//! members' machines are made of is seen.

use gvm::auth::policy::{self, Action};
use gvm::manager::profiles::Profiles;
use gvm::model::principal::{Principal, Role};
use jiff::Timestamp;

use crate::support::world::World;

/// Ids, digests and folders of this run, in words.
fn normalised(xml: &str, world: &World) -> String {
    let mut settings = xml.replace(&world.state_dir().display().to_string(), "/var/lib/gvm");
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let mut ids: Vec<String> = Vec::new();
    for at in 0..settings.len().saturating_sub(36) {
        if let Some(word) = settings.get(at..at + 36)
            && hex(word)
            && word.bytes().filter(|b| *b == b'-').count() == 4
            && !ids.contains(&word.to_owned())
        {
            ids.push(word.to_owned());
        }
    }
    for (number, id) in ids.iter().enumerate() {
        settings = settings.replace(id, &format!("id-{number}"));
    }
    let shape =
        settings.split("shape='").nth(1).and_then(|rest| rest.split('\'').next()).unwrap_or_default().to_owned();
    settings.replace(&shape, "shape")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_profile_has_its_description() {
    let world = World::new();
    let life = world.live().await;
    let root = life.store.ensure_user(0, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    let permit = policy::allow(&Principal::of(root), Action::ProfileCheck).unwrap();
    let fixture = std::fs::read_to_string("tests/fixtures/gpu/one-a100.json").unwrap();
    for name in Profiles::built_in().files.keys() {
        let fixture = serde_json::from_str(&fixture).unwrap();
        let verdict = life.manager.check_profile(&permit, name.clone(), Some(fixture)).await.unwrap();
        assert!(verdict.is_ok(), "{name}: {:?}", verdict.findings);
        insta::assert_snapshot!(format!("{name}-findings"), verdict.findings.join("\n"));
        insta::assert_snapshot!(format!("{name}-xml"), normalised(&verdict.xml, &world));
    }
    assert!(life.store.leases().await.unwrap().is_empty(), "a check claims nothing for good");
    assert!(life.store.vm_ids().await.unwrap().is_empty(), "a check makes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_card_the_cuda_profile_says_what_is_missing() {
    let world = World::new();
    let life = world.live().await;
    let root = life.store.ensure_user(0, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    let permit = policy::allow(&Principal::of(root), Action::ProfileCheck).unwrap();
    let verdict = life.manager.check_profile(&permit, "ubuntu-cuda".parse().unwrap(), None).await.unwrap();
    assert_eq!(verdict.findings.last().unwrap(), "fault: no GPU here fits 1: this host has no GPU that gvm manages");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_used_is_told_by_its_check() {
    let world = World::new();
    let life = world.live().await;
    let root = life.store.ensure_user(0, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    let permit = policy::allow(&Principal::of(root), Action::ProfileCheck).unwrap();
    let folder = world.config.manager.config_dir.join("profiles");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("course.toml"), "inherits = 'tiny'\nmemroy = '1G'\n").unwrap();
    std::fs::write(folder.join("debian.toml"), "cpus = 'two'\n").unwrap();
    for (name, words) in [("course", "memroy"), ("debian", "cpus = 'two'")] {
        let verdict = life.manager.check_profile(&permit, name.parse().unwrap(), None).await.unwrap();
        assert!(!verdict.is_ok(), "{name}");
        assert!(verdict.findings[0].starts_with("fault: ") && verdict.findings[0].contains(words), "{verdict:?}");
    }
    std::fs::write(folder.join("huge.toml"), "inherits = 'tiny'\ncpus = 500\n").unwrap();
    let verdict = life.manager.check_profile(&permit, "huge".parse().unwrap(), None).await.unwrap();
    assert!(verdict.is_ok(), "it may be meant for another host: {verdict:?}");
    let told = "note: `gvm create` would refuse it: 500 CPUs are more than this host has";
    assert!(verdict.findings.iter().any(|line| line.starts_with(told)), "{:?}", verdict.findings);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_judges_a_host_for_one_profile() {
    let world = World::new();
    let life = world.live().await;
    let root = life.store.ensure_user(0, &"root".parse().unwrap(), Role::Admin, Timestamp::now()).await.unwrap();
    let permit = policy::allow(&Principal::of(root), Action::Doctor).unwrap();
    let words = async |profile: &str| {
        let findings = life.manager.doctor(&permit, Some(&profile.parse().unwrap())).await.unwrap();
        findings.into_iter().map(|finding| (finding.check, finding)).collect::<std::collections::BTreeMap<_, _>>()
    };
    let firmware = words("firmware").await;
    assert_eq!(firmware["images"].message, "no image is needed");
    assert!(
        firmware.contains_key("capacity") && !firmware.contains_key("gpu-request") && !firmware.contains_key("tpm")
    );
    let cuda = words("ubuntu-cuda").await;
    assert_eq!(cuda["images"].level, gvm::plan::doctor::Level::Fail);
    assert!(cuda.contains_key("iommu") && cuda.contains_key("gpu-request"), "{cuda:?}");
    let unknown = life.manager.doctor(&permit, Some(&"nope".parse().unwrap())).await.unwrap_err();
    assert_eq!(
        (unknown.to_string().as_str(), unknown.hint.as_deref()),
        ("there is no profile nope", Some("see `gvm profile list`"))
    );
}
