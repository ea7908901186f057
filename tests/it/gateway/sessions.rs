//! Shells, commands, terminals.

use std::time::Duration;

use tokio::process::Command;

use crate::support::ssh::{Wanted, World, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_its_streams_and_its_exit_code() {
    let world = World::new().await;
    for way in [&["dev@gw"][..], &["-J", "gw", "-p", "22", "dev"]] {
        let jumps = way.len() > 1;
        let command = "cat; echo out; echo err >&2; exit 7";
        let arguments = [way, &[command]].concat();
        let done = run(world.client("ssh", &arguments), b"in\n").await;
        // The jump leads to port 22 by name; the directory leads to our sshd.
        assert_eq!((done.code, done.out().as_str()), (Some(7), "in\nout\n"), "jump: {jumps}, {done:?}");
        assert_eq!(done.stderr, "err\n");
    }
    let asked = world.book.asked.lock().unwrap();
    let modes: Vec<String> =
        asked.iter().map(|ask| format!("{:?} {} {:?}", ask.mode, ask.vm, ask.guest_user)).collect();
    assert_eq!(modes, ["Terminate dev None", "Jump dev None"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_names_choose_machine_owner_and_user() {
    let world = World::new().await;
    world.ssh(&["dev.alice+root@gw", "true"]).await.ok();
    let asked = world.book.asked.lock().unwrap().last().unwrap().clone();
    assert_eq!((asked.vm.as_str(), asked.guest_user.as_deref()), ("dev.alice", Some("root")));
    assert_eq!(asked.peer, "127.0.0.1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_odd_ends_are_relayed() {
    let world = World::new().await;
    let done = world.ssh(&["dev@gw", "exec 1>&-; sleep 1; exit 3"]).await;
    assert_eq!(done.code, Some(3), "{done:?}");
    // OpenSSH's client shows a signal as 255; that it was told of one is in its debug output.
    let done = world.ssh(&["-vvv", "dev@gw", "kill -TERM $$"]).await;
    assert_eq!(done.code, Some(255));
    assert!(done.stderr.contains("rtype exit-signal"), "{}", done.stderr);
    // A background process keeps the output open after the shell has ended.
    let done = world.ssh(&["dev@gw", "(sleep 1; echo late) & exit 5"]).await;
    assert_eq!((done.code, done.out().as_str()), (Some(5), "late\n"), "{done:?}");
    // The client's end of input reaches the program.
    let done = run(world.client("ssh", &["dev@gw", "wc -c; sleep 1; echo after"]), b"12345").await.ok();
    assert_eq!(done.out(), "5\nafter\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_goes_along() {
    let world = World::new().await;
    let options = ["-o", "SetEnv=GVM_ONE=1 LC_TWO=zwei", "dev@gw", "echo $GVM_ONE $LC_TWO $REFUSED"];
    assert_eq!(world.ssh(&options).await.ok().out(), "1 zwei\n");
}

/// Runs ssh on a terminal of 100x30, makes it 132x43, sends an interrupt and a signal.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, struct, sys, termios, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("ssh", ["ssh"] + sys.argv[1:])
def size(rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
seen = b""
def until(text):
    global seen
    end = time.time() + 20
    while text not in seen:
        if time.time() > end:
            sys.exit("no %r in %r" % (text, seen))
        if select.select([fd], [], [], 0.2)[0]:
            seen += os.read(fd, 65536)
size(30, 100)
os.write(fd, b"PS1=; stty size; echo re''ady\n")
until(b"ready")
size(43, 132)
for _ in range(50):
    os.write(fd, b"stty size; echo lo''oked\n")
    until(b"looked")
    if b"43 132" in seen:
        break
    seen = seen.replace(b"looked", b"")
    time.sleep(0.1)
os.write(fd, b"tty; echo $TERM; echo sec''ond\n")
until(b"second")
os.write(fd, b"sleep 100\n"); time.sleep(0.5); os.write(fd, b"\x03")
os.write(fd, b"echo inter''rupted\n")
until(b"interrupted")
os.write(fd, b"exit 9\n")
until(b"closed")
print(seen.decode(errors="replace"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_has_its_size_and_learns_of_changes() {
    let world = World::new().await;
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL, "-F"]).arg(world.path("config")).args(["-tt", "dev@gw", "bash --norc -i"]);
    python.env("TERM", "vt220");
    let done = run(python, b"").await;
    assert_eq!(done.code, Some(9), "{done:?}");
    let out = done.out();
    for wanted in ["30 100", "43 132", "/dev/pts/", "vt220"] {
        assert!(out.contains(wanted), "no {wanted} in {out}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keepalives_are_answered() {
    // Both ways: the client asks us, and the guest asks us on connection and channels.
    let sshd = "ClientAliveInterval 1\nClientAliveCountMax 2".to_owned();
    let world = World::with(Wanted { sshd, ..Wanted::default() }).await;
    let alive = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"];
    let idle = [&alive[..], &["dev@gw", "sleep 6; echo still here"]].concat();
    let jump = [&alive[..], &["-J", "gw", "dev", "sleep 6; echo still here"]].concat();
    let (first, second, third) = tokio::join!(
        world.ssh(&idle),
        world.ssh(&jump),
        world.ssh(&[
            "-N",
            "-o",
            "ServerAliveInterval=1",
            "-o",
            "ServerAliveCountMax=2",
            "-o",
            "ExitOnForwardFailure=yes",
            "-L",
            "0:localhost:1",
            "nobody.here@gw"
        ])
    );
    assert_eq!(first.ok().out(), "still here\n");
    assert_eq!(second.ok().out(), "still here\n");
    assert_ne!(third.code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_each_have_all_of_their_output() {
    let world = World::new().await;
    let (rounds, bytes) = if std::env::var_os("GVM_LONG").is_some() { (200, 10 << 20) } else { (10, 1 << 20) };
    for round in 0..rounds {
        let one = async || {
            let command = format!("head -c {bytes} /dev/zero; exit 7");
            let done = world.ssh(&["dev@gw", &command]).await;
            assert_eq!((done.code, done.stdout.len()), (Some(7), bytes), "round {round}: {}", done.stderr);
        };
        tokio::join!(one(), one(), one(), one(), one());
    }
}

/// One connection with many sessions, by OpenSSH's multiplexing.
pub async fn master(world: &World) -> String {
    let control = world.path("control").display().to_string();
    let done = world.ssh(&["-f", "-N", "-M", "-S", &control, "-o", "ControlPersist=yes", "dev@gw"]).await;
    done.ok();
    control
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_the_guest_refuses_are_refused_at_once() {
    let world = World::with(Wanted { sshd: "MaxSessions 2".to_owned(), ..Wanted::default() }).await;
    let control = master(&world).await;
    let one = async || {
        let begun = std::time::Instant::now();
        let done = world.ssh(&["-S", &control, "-o", "ProxyCommand=false", "dev@gw", "sleep 3; echo done"]).await;
        (done.out(), begun.elapsed())
    };
    let all = tokio::join!(one(), one(), one(), one(), one());
    let all = [all.0, all.1, all.2, all.3, all.4];
    let good = all.iter().filter(|(out, _)| out == "done\n").count();
    assert_eq!(good, 2, "{all:?}");
    let slow = all.iter().filter(|(out, took)| out != "done\n" && *took > Duration::from_millis(2500)).count();
    assert_eq!(slow, 0, "{all:?}");
    world.ssh(&["-S", &control, "-O", "exit", "dev@gw"]).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_channels_on_one_connection_are_served_and_limited() {
    let world = World::new().await;
    let control = master(&world).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..40 {
        let command = format!("head -c 70000 /dev/zero; exit {number}");
        let client = world.client("ssh", &["-S", &control, "-o", "ProxyCommand=false", "dev@gw", &command]);
        tasks.spawn(async move { (number, run(client, b"").await) });
    }
    while let Some(done) = tasks.join_next().await {
        let (number, done) = done.unwrap();
        assert_eq!((done.code, done.stdout.len()), (Some(number), 70000), "{}", done.stderr);
    }
    world.ssh(&["-S", &control, "-O", "exit", "dev@gw"]).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_guest_is_said_and_found_again() {
    let world = World::new().await;
    let control = master(&world).await;
    let mux = ["-S", &control, "-o", "ProxyCommand=false", "dev@gw"];
    // The shell's parent is the guest's sshd of our connection.
    let done = world.ssh(&[&mux[..], &["kill -9 $PPID; sleep 5"]].concat()).await;
    assert_eq!(done.code, Some(255), "{done:?}");
    assert!(done.stderr.contains("gvm: the connection to dev.alice broke off"), "{done:?}");
    let done = world.ssh(&[&mux[..], &["echo back"]].concat()).await.ok();
    assert_eq!(done.out(), "back\n");
    world.ssh(&["-S", &control, "-O", "exit", "dev@gw"]).await.ok();
}
