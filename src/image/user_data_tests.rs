use std::time::{Duration, Instant};

use super::*;

fn taken(text: &str) -> CheckedUserData {
    check(text).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

fn refused(text: &str) -> String {
    check(text).unwrap_err().to_string()
}

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdZ0vJtYXQ0ZXJvZnRlc3RzYW5kbm90aGluZ2Vsc2Uh eve@laptop";

#[test]
fn the_first_line_decides() {
    let good = "#cloud-config\nusers:\n  - name: eve\n";
    for (text, notices) in [
        (good.to_owned(), 0),
        ("users:\n  - name: eve".to_owned(), 1),
        (format!("\u{feff}{good}"), 1),
        (format!("\n\n{good}"), 1),
        (format!(" {good}"), 1),
        (good.replace('\n', "\r\n"), 1),
    ] {
        let checked = taken(&text);
        assert_eq!((checked.text.as_str(), checked.notices.len()), (good, notices), "{text:?} {checked:?}");
    }
    assert_eq!(taken("#!/bin/sh\r\necho x").text, "#!/bin/sh\necho x\n");
    assert!(taken("#cloud-boothook\n#!/bin/sh\n").notices.is_empty());
    assert!(taken("## template: jinja\n#cloud-config\nfinal_message: '{{ v1.x }}'\n").notices.is_empty());
    insta::assert_snapshot!(
        [
            refused(""),
            refused("  \n"),
            refused("hello"),
            refused("# a comment\n"),
            refused("#include\nhttp://x/\n"),
            refused("#cloud-config-archive\n- x\n"),
            refused("Content-Type: multipart/mixed\n"),
            refused("foo: 1\nbar: 2\n"),
            refused("## template: jinja\nfoo\n"),
            refused("## template: jinja\n#cloud-config\nmerge_how: x\n"),
            refused("#!/bin/sh\n\0"),
            refused(&format!("#!/bin/sh\n{}", "x".repeat(MAX_SIZE))),
        ]
        .join("\n")
    );
}

#[test]
fn yaml_faults_have_a_line_and_a_column() {
    insta::assert_snapshot!(
        [
            refused("#cloud-config\nusers:\n\t- name: eve\n"),
            refused("#cloud-config\npackages: [a, b\nruncmd: []\n"),
            refused("#cloud-config\nruncmd:\n  - \"a\n"),
            refused("#cloud-config\nruncmd: [a]\nruncmd: [b]\n"),
            refused("#cloud-config\nruncmd: !!python/object/apply:os.system [id]\n"),
            refused("#cloud-config\na: 1\n---\nb: 2\n"),
            refused("#cloud-config\n- a\n- b\n"),
        ]
        .join("\n")
    );
}

#[test]
fn shapes_that_cloud_init_drops_are_named() {
    insta::assert_snapshot!(
        [
            refused("#cloud-config\nusers: eve\n"),
            refused("#cloud-config\nusers:\n- gecos: Eve\n"),
            refused("#cloud-config\nusers:\n- [a]\n"),
            refused("#cloud-config\nusers:\n- name: eve\n  ssh_authorized_keys: |\n    ssh-ed25519 AAAA\n"),
            refused("#cloud-config\nssh_authorized_keys:\n- -----BEGIN OPENSSH PRIVATE KEY-----\n"),
            refused(&format!("#cloud-config\nssh_authorized_keys:\n- |\n  {KEY}\n  {KEY}\n")),
            refused("#cloud-config\nruncmd:\n- echo a: b\n"),
            refused("#cloud-config\nwrite_files:\n- content: x\n"),
            refused("#cloud-config\nmerge_how: 'dict(replace)'\n"),
        ]
        .join("\n")
    );
    let keys = format!("#cloud-config\nssh_authorized_keys:\n- from=\"10.0.0.0/8\" {KEY}\n- {KEY}\n");
    assert!(taken(&keys).notices.is_empty());
    assert!(taken("#cloud-config\nusers: [default, {name: eve}]\nruncmd: [ls, [echo, 1]]\n").notices.is_empty());
}

#[test]
fn what_has_no_effect_is_said() {
    let checked = taken("#cloud-config\nhostname: x\npackage: [git]\ntimezone: UTC\n");
    insta::assert_snapshot!(checked.notices.join("\n"));
}

#[test]
fn bombs_are_stopped_early() {
    let begun = Instant::now();
    let mut laughs = String::from("#cloud-config\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let refs = vec![format!("*a{}", n - 1); 10].join(", ");
        laughs.push_str(&format!("a{n}: &a{n} [{refs}]\n"));
    }
    assert!(matches!(check(&laughs), Err(UserDataError::Yaml { .. })));
    for deep in ["[".repeat(30_000), "- ".repeat(30_000), "{a: ".repeat(10_000)] {
        assert!(check(&format!("#cloud-config\na:\n  {deep}\n")).is_err());
    }
    assert!(check(&format!("#cloud-config\na: {}x\n", "&a ".repeat(20_000))).is_err());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[ -~\t\n#:&*\\[\\]{}|>'\"-]{0,300}") {
        let _ = check(&text);
        let _ = check(&format!("#cloud-config\n{text}"));
    }
}
