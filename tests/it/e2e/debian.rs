//! A member in a whole Debian: first boot with cloud-init, the real clients with real amounts, the power button.

use std::time::Duration;

use super::member::{ALICE, Member};
use crate::support::run::{run, until};
use crate::support::skip::{is_long, need_libvirt};
use crate::support::traces::{assert_bare, assert_no_trace};

/// For Debian to boot, or for hundreds of MiB to pass, under emulation on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// What each client moves each way, bytes; and the sessions of one mode. Less where it is one test of many: the guest's
/// ciphers run under emulation.
fn amounts() -> (usize, usize) {
    if is_long() { (32 << 20, 50) } else { (4 << 20, 20) }
}

/// Both modes of the gateway: how OpenSSH names the machine.
const MODES: [(&str, &str); 2] = [("dev.gvm", ""), ("dev@localhost", "-o Port=2222")];

const USER_DATA: &str = "#cloud-config
write_files:
  - path: /etc/course
    content: |
      made by the member
runcmd:
  - [sh, -c, 'hostname > /run/ran']
";

#[test]
fn a_member_works_in_a_debian() {
    need_libvirt!();
    let alice = Member::with_image("debian");
    let site = &alice.site;
    std::fs::write(site.home(ALICE).join("setup.yaml"), USER_DATA).unwrap();
    let create = ["gvm", "create", "dev", "--profile", "debian", "--disk", "5G", "--user-data", "setup.yaml"];
    let made = run(site.as_user(ALICE, &create), LONG).ok();
    for stage in ["disk", "seed", "start", "first boot", "its SSH server answers"] {
        assert!(made.stderr.contains(stage), "stage {stage}: {}", made.stderr);
    }
    until("its first boot is over", LONG, || site.show("dev.alice").first_boot == "done");
    is_as_asked(&alice);
    console(&alice);
    alice.gvm(&["ssh-config", "--write"]).ok();
    for (host, options) in MODES {
        transfers(&alice, host, options);
        sessions(&alice, host, options);
        forward(&alice, host, options);
    }
    // The power button: the guest ends its services by itself.
    let off = run(site.as_user(ALICE, &["gvm", "stop", "dev"]), LONG).ok();
    assert!(!off.stderr.contains("forcing"), "the guest listens: {}", off.stderr);
    assert!(alice.gvm(&["logs", "dev", "-n", "1000"]).text().contains("Power down"));
    let vm = site.show("dev.alice");
    alice.gvm(&["delete", "--now", "--yes", "dev"]).ok();
    assert_no_trace(site, &vm);
    assert_bare(site);
    alice.stop();
}

fn is_as_asked(alice: &Member) {
    let told = alice.inside(
        "dev",
        "hostname; cat /etc/course /run/ran; sudo -n id -un; . /etc/os-release; echo $ID
         systemctl is-active qemu-guest-agent; nproc
         test $(df --output=size -m / | tail -n 1) -gt 4000 && echo grown",
    );
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        ["dev", "made by the member", "dev", "root", "debian", "active", "2", "grown"]
    );
}

fn console(alice: &Member) {
    let typed = alice.site.feed_as(ALICE, &["gvm", "console", "dev", "--linger", "5s"], b"\n");
    assert!(typed.stdout.contains("dev login:"), "{typed:?}");
}

/// Every client, there and back, without a question.
fn transfers(alice: &Member, host: &str, options: &str) {
    let (amount, _) = amounts();
    let script = format!(
        "options='-o BatchMode=yes {options}'
         head -c {amount} /dev/urandom > data
         ssh $options {host} 'cat > by-ssh' < data
         scp -q $options data {host}:by-scp
         echo 'put data by-sftp' | sftp -q -b - $options {host} > /dev/null
         rsync -e \"ssh $options\" data {host}:by-rsync
         sum=$(sha256sum < data)
         for way in ssh scp sftp rsync; do
           test \"$(ssh -n $options {host} \"sha256sum < by-$way\")\" = \"$sum\"
         done
         ssh -n $options {host} 'cat by-ssh' > back-ssh
         scp -q $options {host}:by-scp back-scp
         echo 'get by-sftp back-sftp' | sftp -q -b - $options {host} > /dev/null
         rsync -e \"ssh $options\" {host}:by-rsync back-rsync
         for way in ssh scp sftp rsync; do cmp data back-$way; done
         ssh -n $options {host} 'rm by-*'; rm back-*"
    );
    let ended = run(alice.command(&script), LONG).ok();
    assert_eq!(ended.stderr, "", "{host}: nobody is asked or warned");
}

/// Many logins, five at a time: an editor, a build tool, a fleet of scripts.
fn sessions(alice: &Member, host: &str, options: &str) {
    let (_, count) = amounts();
    let script = format!(
        "seq {count} | xargs -P 5 -I % ssh -n -o BatchMode=yes {options} {host} 'echo session-%' |
         sort -V | cmp - <(seq -f session-%g {count})"
    );
    let ended = run(alice.command(&script), LONG).ok();
    assert_eq!(ended.stderr, "", "{host}: nobody is asked or warned");
}

/// A forwarded port behind which the server speaks first, as those of SSH, SMTP and MySQL do.
fn forward(alice: &Member, host: &str, options: &str) {
    let script = format!(
        "ssh -n -N -o BatchMode=yes -o ExitOnForwardFailure=yes {options} -L ./banner:localhost:22 {host} & job=$!
         until test -S banner; do sleep 0.1; done
         read -r -t 60 line < <(socat -u UNIX-CONNECT:banner -); echo $line
         kill $job; wait $job || true; rm -f banner"
    );
    let told = run(alice.command(&script), LONG).text();
    assert!(told.starts_with("SSH-2.0-OpenSSH"), "{host}: {told}");
}
