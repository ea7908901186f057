//! Files and streams: sftp, scp, rsync, bulk with new keys in the middle, slow readers.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::sessions::master;
use crate::support::skip::is_long;
use crate::support::ssh::{Wanted, World, run};

/// Bytes that do not repeat in any short way.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sftp_moves_files_of_all_shapes() {
    let world = World::new().await;
    let (near, far) = (world.path("near"), world.path("far"));
    fs::create_dir_all(&near).unwrap();
    fs::create_dir_all(&far).unwrap();
    let files = [("empty", 0), ("one", 1), ("with spaces and \u{fc}\u{4f60}", 70_001), ("big", 33 << 20)];
    let mut batch = String::new();
    for (name, len) in files {
        fs::write(near.join(name), noise(len)).unwrap();
        let (near, far) = (near.display(), far.display());
        batch += &format!(
            "put \"{near}/{name}\" \"{far}/{name}.new\"\nrename \"{far}/{name}.new\" \"{far}/{name}\"\n\
             get \"{far}/{name}\" \"{near}/{name}.back\"\n"
        );
    }
    for way in [&["dev@gw"][..], &["-J", "gw", "dev"]] {
        let done = run(world.client("sftp", &[&["-b", "-"], way].concat()), batch.as_bytes()).await.ok();
        assert!(!done.stderr.contains("gvm"), "{done:?}");
        for (name, len) in files {
            let expected = noise(len);
            assert!(fs::read(far.join(name)).unwrap() == expected, "{name} there");
            assert!(fs::read(near.join(format!("{name}.back"))).unwrap() == expected, "{name} back");
            fs::remove_file(far.join(name)).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scp_works_in_both_of_its_protocols() {
    let world = World::new().await;
    world.book.set("two", Ok(world.target()));
    let tree = world.path("tree");
    fs::create_dir_all(tree.join("sub dir")).unwrap();
    fs::write(tree.join("sub dir/file"), noise(3 << 20)).unwrap();
    fs::write(tree.join("empty"), b"").unwrap();
    let there = world.path("there").display().to_string();
    for (number, protocol) in [&["-r"][..], &["-r", "-O"], &["-r", "-s"]].into_iter().enumerate() {
        let up = format!("dev@gw:{there}{number}");
        let source = tree.display().to_string();
        run(world.client("scp", &[protocol, &["-q", &source, &up]].concat()), b"").await.ok();
        let back = world.path(&format!("back{number}"));
        run(world.client("scp", &[protocol, &["-q", &up, &back.display().to_string()]].concat()), b"").await.ok();
        assert!(fs::read(back.join("sub dir/file")).unwrap() == noise(3 << 20), "{protocol:?}");
        assert_eq!(fs::read(back.join("empty")).unwrap(), b"");
    }
    // Between two machines, through this host.
    let (from, to) = (format!("dev@gw:{}/sub dir/file", tree.display()), format!("two@gw:{there}-3"));
    run(world.client("scp", &["-q", "-3", &from, &to]), b"").await.ok();
    assert!(fs::read(format!("{there}-3")).unwrap() == noise(3 << 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rsync_mirrors_a_tree() {
    let world = World::new().await;
    let tree = world.path("tree");
    for number in 0..200 {
        let folder = tree.join(format!("d{}", number % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("f{number}")), noise(number * 997)).unwrap();
    }
    let shell = format!("ssh -F {}", world.path("config").display());
    let source = format!("{}/", tree.display());
    for way in ["dev@gw", "jump"] {
        let shell = if way == "jump" { format!("{shell} -J gw") } else { shell.clone() };
        let host = if way == "jump" { "dev" } else { way };
        let (there, back) = (world.path(&format!("there-{way}")), world.path(&format!("back-{way}")));
        for (from, to) in [
            (source.clone(), format!("{host}:{}/", there.display())),
            (format!("{host}:{}/", there.display()), format!("{}/", back.display())),
            // Nothing left to do.
            (format!("{host}:{}/", there.display()), format!("{}/", back.display())),
        ] {
            let mut rsync = Command::new("rsync");
            rsync.args(["-az", "--partial", "-e", &shell, &from, &to]);
            run(rsync, b"").await.ok();
        }
        let mut diff = Command::new("diff");
        diff.arg("-r").arg(&tree).arg(&back);
        run(diff, b"").await.ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_survives_new_keys_in_the_middle() {
    let world = World::new().await;
    let mib = if is_long() { 512 } else { 64 };
    let bytes = noise(mib << 20);
    let sum = hex::encode(Sha256::digest(&bytes));
    fs::write(world.path("bulk"), &bytes).unwrap();
    let give = format!("cat {}", world.path("bulk").display());
    for way in [&["dev@gw"][..], &["-J", "gw", "dev"]] {
        // The limit counts for both connections of a jump, as the configuration is the same.
        let limit = ["-o", "RekeyLimit=1M"];
        let down = world.ssh(&[&limit[..], way, &[&give]].concat()).await;
        assert!(down.stdout == bytes, "{way:?}: {} bytes, {:?}, {}", down.stdout.len(), down.code, down.stderr);
        let up = run(world.client("ssh", &[&limit[..], way, &["sha256sum"]].concat()), &bytes).await.ok();
        assert_eq!(up.out().split_whitespace().next(), Some(sum.as_str()), "{way:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_changes_keys_by_the_clock_on_both_hops() {
    let world = World::with(Wanted { rekey: Duration::from_secs(1), ..Wanted::default() }).await;
    let bytes = noise(8 << 20);
    // Slow on purpose, so that several changes fall into it, in both directions at once.
    let command = "for i in 1 2 3 4 5 6 7 8; do head -c 1048576; sleep 0.5; done";
    let done = run(world.client("ssh", &["-vv", "dev@gw", command]), &bytes).await;
    assert!(done.stdout == bytes, "{} bytes, {:?}, {}", done.stdout.len(), done.code, done.stderr);
    let changes =
        done.stderr.matches("rekeying in progress").count() + done.stderr.matches("SSH2_MSG_NEWKEYS received").count();
    assert!(changes >= 3, "{changes} changes: {}", done.stderr);
    // An idle session survives it as well.
    assert_eq!(world.ssh(&["dev@gw", "sleep 4; echo there"]).await.ok().out(), "there\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_the_writer_back() {
    let world = World::new().await;
    let count = world.path("count");
    // The program says how much it could get rid of.
    let program = format!(
        "import os,sys\nn=0\nf=open({:?},'w')\nwhile n < 160<<20:\n n+=os.write(1,bytes(65536)); f.seek(0); f.write(str(n)); f.flush()",
        count.display().to_string()
    );
    let written = || fs::read_to_string(&count).ok().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    for way in [&["dev@gw"][..], &["-J", "gw", "dev"]] {
        let command = format!("python3 -c '{}'", program.replace('\'', "\""));
        let mut client = world.client("ssh", &[way, &[&command]].concat());
        let mut child = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (early, limit) = (written(), 48 << 20);
        assert!(early > 0 && early < limit, "{way:?}: {early} bytes are under way");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(written(), early, "{way:?}: it goes on without a reader");
        // And once somebody reads, it all comes.
        let mut sink = tokio::io::sink();
        let mut stdout = child.stdout.take().unwrap();
        let read = tokio::time::timeout(Duration::from_secs(60), tokio::io::copy(&mut stdout, &mut sink)).await;
        assert_eq!(read.unwrap().unwrap(), 160 << 20);
        assert!(child.wait().await.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_nobody_reads_is_closed_when_it_holds_others_up() {
    let world = World::with(Wanted { stall: Duration::from_secs(2), ..Wanted::default() }).await;
    let control = master(&world).await;
    let mux = ["-S", &control, "-o", "ProxyCommand=false", "dev@gw"];
    let mut client = world.client("ssh", &[&mux[..], &["cat /dev/zero"]].concat());
    let mut unread = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    // Alone it may stay stuck for as long as it likes.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(unread.try_wait().unwrap().is_none());
    let done = world.ssh(&[&mux[..], &["sleep 1; echo through"]].concat()).await.ok();
    assert_eq!(done.out(), "through\n");
    let mut sink = tokio::io::sink();
    let mut stdout = unread.stdout.take().unwrap();
    let read = tokio::time::timeout(Duration::from_secs(20), tokio::io::copy(&mut stdout, &mut sink)).await;
    assert!(read.expect("it goes on").unwrap() < 64 << 20);
    world.ssh(&["-S", &control, "-O", "exit", "dev@gw"]).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_writer_inside_holds_the_client_back_and_not_its_keepalives() {
    let world = World::new().await;
    let alive = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3"];
    let bytes = noise(24 << 20);
    for way in [&["dev@gw"][..], &["-J", "gw", "dev"]] {
        let client = world.client("ssh", &[&alive[..], way, &["sleep 8; sha256sum"]].concat());
        let done = run(client, &bytes).await.ok();
        assert_eq!(done.out().split_whitespace().next(), Some(hex::encode(Sha256::digest(&bytes)).as_str()));
    }
}
