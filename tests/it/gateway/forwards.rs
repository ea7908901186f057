//! Local, remote and dynamic forwards, unix sockets, the agent.

use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::process::Child;

use crate::support::ssh::{Agent, World, free_port, keygen, run};

/// A service that says hello first, then gives back what it got, to the end.
async fn serve(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    stream.write_all(b"hello ").await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    stream.write_all(&all).await.unwrap();
    stream.shutdown().await.unwrap();
}

/// A port "inside": the guest of the tests is this host.
async fn service() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    port
}

/// Sends `len` bytes and wants them back behind the greeting: both half-closes must work.
async fn talk(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, len: usize) {
    let sent: Vec<u8> = (0..len).map(|i| u8::try_from(i % 253).unwrap()).collect();
    let mut greeting = [0; 6];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut greeting)).await;
    read.expect("no greeting").unwrap();
    assert_eq!(&greeting, b"hello ");
    stream.write_all(&sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut back)).await.expect("no end").unwrap();
    assert!(back == sent, "{} of {len} bytes came back", back.len());
}

/// A client that only forwards, ready when its command has been run.
async fn forwarder(world: &World, options: &[&str]) -> Child {
    let arguments = [&["-o", "ExitOnForwardFailure=yes"], options, &["dev@gw", "echo ready; sleep 100"]].concat();
    let mut child = world.client("ssh", &arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    let stdout = child.stdout.as_mut().unwrap();
    tokio::time::timeout(Duration::from_secs(20), stdout.read_exact(&mut ready)).await.unwrap().unwrap();
    child
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_forwards_lead_inside() {
    let world = World::new().await;
    let (service, local, named) = (service().await, free_port(), free_port());
    let one = format!("{local}:localhost:{service}");
    let two = format!("{named}:dev.alice:{service}");
    let _client = forwarder(&world, &["-L", &one, "-L", &two]).await;
    talk(connect(local).await, 0).await;
    talk(connect(named).await, 3_000_000).await;
    // Several at once on one connection.
    let all = (0..8).map(async |_| talk(connect(local).await, 300_000).await);
    futures_util::future::join_all(all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_speaks_first_is_heard() {
    let world = World::new().await;
    let (inside, local) = (format!("localhost:{}", world.guest.port), free_port());
    let forward = format!("{local}:{inside}");
    let _client = forwarder(&world, &["-L", &forward]).await;
    for _ in 0..20 {
        let mut greeting = [0; 8];
        let mut stream = connect(local).await;
        tokio::time::timeout(Duration::from_secs(10), stream.read_exact(&mut greeting)).await.unwrap().unwrap();
        assert_eq!(&greeting, b"SSH-2.0-");
    }
    // The same by -W, where the client's input ends at once.
    let done = run(world.client("ssh", &["-W", &inside, "dev@gw"]), b"SSH-2.0-x\r\n").await;
    assert!(done.out().starts_with("SSH-2.0-OpenSSH"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_never_answers_holds_nothing_else_up() {
    let world = World::new().await;
    // Connections that nobody accepts fill the queue; the next ones hang.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let dead = listener.local_addr().unwrap();
    let mut fill = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(dead)).await {
        fill.push(stream);
    }
    let local = free_port();
    let forward = format!("{local}:localhost:{}", dead.port());
    let (asked, done) = (world.path("asked"), world.path("done"));
    let command = format!(
        "touch {0}; until [ -e {1} ]; do sleep 0.1; done; for i in $(seq 20); do echo $i; done",
        asked.display(),
        done.display()
    );
    let command = ["-L", &forward, "dev@gw", &command];
    let (shell, _hanging) = tokio::join!(world.ssh(&command), async {
        while !asked.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let hanging = connect(local).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::fs::write(&done, b"").unwrap();
        hanging
    });
    assert_eq!(shell.ok().out().lines().count(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_forwards_lead_back() {
    let world = World::new().await;
    let (service, inside) = (service().await, free_port());
    let forward = format!("{inside}:localhost:{service}");
    let mut client = forwarder(&world, &["-R", &forward]).await;
    talk(connect(inside).await, 2_000_000).await;
    let all = (0..4).map(async |_| talk(connect(inside).await, 100_000).await);
    futures_util::future::join_all(all).await;
    // A taken port is refused to the client.
    let done = world.ssh(&["-o", "ExitOnForwardFailure=yes", "-R", &forward, "dev@gw", "true"]).await;
    assert!(done.stderr.contains("remote port forwarding failed"), "{done:?}");
    client.kill().await.unwrap();

    // The guest chooses the port.
    let free = format!("0:localhost:{service}");
    let mut command = world.client("ssh", &["-R", &free, "-N", "dev@gw"]);
    let mut client = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let port = loop {
        let byte = tokio::time::timeout(Duration::from_secs(20), client.stderr.as_mut().unwrap().read_u8()).await;
        text.push(char::from(byte.unwrap().unwrap()));
        if let Some(port) = text.strip_prefix("Allocated port ").and_then(|rest| rest.split_once(' ')) {
            break port.0.parse().unwrap();
        }
    };
    talk(connect(port).await, 1000).await;
    client.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_are_forwarded_both_ways() {
    let world = World::new().await;
    let name = |name: &str| world.path(name).display().to_string();
    let listener = UnixListener::bind(world.path("service.sock")).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let local = format!("{}:{}", name("local.sock"), name("service.sock"));
    let remote = format!("{}:{}", name("remote.sock"), name("service.sock"));
    let _client = forwarder(&world, &["-L", &local, "-R", &remote]).await;
    talk(UnixStream::connect(world.path("local.sock")).await.unwrap(), 500_000).await;
    talk(UnixStream::connect(world.path("remote.sock")).await.unwrap(), 500_000).await;
}

/// The greeting of SOCKS 5 and a request for `host`.
async fn socks(proxy: u16, host: &str, port: u16) -> (u8, TcpStream) {
    let mut stream = connect(proxy).await;
    stream.write_all(&[5, 1, 0]).await.unwrap();
    stream.read_exact(&mut [0; 2]).await.unwrap();
    let mut ask = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    ask.extend_from_slice(host.as_bytes());
    ask.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&ask).await.unwrap();
    let mut answer = [0; 10];
    let got = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut answer)).await.unwrap();
    // OpenSSH answers with success before it knows; a refusal shows as an end.
    (if got.is_ok() { answer[1] } else { 255 }, stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamic_forwards_stay_inside() {
    let world = World::new().await;
    let (service, proxy) = (service().await, free_port());
    let _client = forwarder(&world, &["-D", &proxy.to_string()]).await;
    let (answer, stream) = socks(proxy, "localhost", service).await;
    assert_eq!(answer, 0);
    talk(stream, 100_000).await;
    for elsewhere in ["169.254.169.254", "example.org", "10.0.0.1"] {
        let (_, mut stream) = socks(proxy, elsewhere, 80).await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok() && rest.is_empty(), "{elsewhere}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_destinations_are_refused_with_the_reason() {
    let world = World::new().await;
    let refused = async |target: &str, login: &str| {
        let done = world.ssh(&["-W", target, login]).await;
        assert_ne!(done.code, Some(0));
        assert_eq!(done.out(), "");
        done.stderr
    };
    for target in ["169.254.169.254:80", "10.77.0.9:22", "example.com.:443", "[fe80::1]:22"] {
        let text = refused(target, "dev@gw").await;
        assert!(text.contains("administratively prohibited: gvm: only machines of gvm"), "{target}: {text}");
    }
    assert!(refused("other:8080", "dev@gw").await.contains("gvm: a jump leads to port 22"));
    assert!(refused("localhost:80", "Nobody@gw").await.contains("gvm: the login name is no machine"));
    // What the guest refuses is refused as such.
    assert!(refused(&format!("localhost:{}", free_port()), "dev@gw").await.contains("connect failed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_is_lent_to_several_at_once() {
    let world = World::new().await;
    keygen(&world.path("extra"), &["-t", "ed25519", "-C", "extra"]);
    let agent = Agent::start(world.path("agent.sock"), &[world.path("extra")]).await;
    let command = "for i in 1 2 3 4 5; do ssh-add -L & done; wait; ssh-add -L";
    let mut client = world.client("ssh", &["-o", "IdentityAgent=SSH_AUTH_SOCK", "-A", "dev@gw", command]);
    client.env("SSH_AUTH_SOCK", &agent.socket);
    let done = run(client, b"").await.ok();
    assert_eq!(done.out().lines().filter(|line| line.starts_with("ssh-ed25519 ")).count(), 6, "{done:?}");
    // Without -A there is none.
    let mut client = world.client("ssh", &["-o", "IdentityAgent=SSH_AUTH_SOCK", "dev@gw", "ssh-add -L"]);
    client.env("SSH_AUTH_SOCK", &agent.socket);
    assert_ne!(run(client, b"").await.code, Some(0));
}
