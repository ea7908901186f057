//! How much, how long, and the end.

use std::time::{Duration, Instant};

use gvm::gate::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::ssh::{Wanted, World};

/// Reads to the end; gives what came and how long it took.
async fn until_closed(stream: &mut TcpStream) -> (Vec<u8>, Duration) {
    let begun = Instant::now();
    let mut all = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut all)).await.expect("still open");
    (all, begun.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_log_in_is_sent_away() {
    let world = World::with(Wanted { login_grace: Duration::from_secs(1), ..Wanted::default() }).await;
    let mut silent = TcpStream::connect(world.address).await.unwrap();
    let mut half = TcpStream::connect(world.address).await.unwrap();
    half.write_all(b"SSH-2.0-half\r\n").await.unwrap();
    let (first, second) = tokio::join!(until_closed(&mut silent), until_closed(&mut half));
    for (_, took) in [first, second] {
        assert!(took > Duration::from_millis(900) && took < Duration::from_secs(6), "{took:?}");
    }
    // Who is logged in stays.
    assert_eq!(world.ssh(&["dev@gw", "sleep 3; echo stayed"]).await.ok().out(), "stayed\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_connections_are_sent_away_and_places_come_back() {
    let limits = Limits { connections: 3, unauthenticated: 2, per_address: 3, channels: 2 };
    let world = World::with(Wanted { limits, ..Wanted::default() }).await;
    let greeted = async || {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        let mut greeting = [0; 8];
        stream.read_exact(&mut greeting).await.unwrap();
        (greeting, stream)
    };
    let (one, two) = (greeted().await, greeted().await);
    assert_eq!(&one.0, b"SSH-2.0-");
    let mut third = TcpStream::connect(world.address).await.unwrap();
    let (text, _) = until_closed(&mut third).await;
    assert!(String::from_utf8_lossy(&text).starts_with("gvm: too many logins"), "{text:?}");
    drop((one, two));
    // Those who are logged in do not count as logging in.
    let session = async || world.ssh(&["dev@gw", "sleep 2; echo in"]).await;
    let all = tokio::join!(
        session(),
        session(),
        async {
            tokio::time::sleep(Duration::from_millis(1200)).await;
            session().await
        },
        async {
            tokio::time::sleep(Duration::from_millis(1700)).await;
            let mut last = TcpStream::connect(world.address).await.unwrap();
            String::from_utf8_lossy(&until_closed(&mut last).await.0).into_owned()
        }
    );
    assert_eq!([all.0.out(), all.1.out(), all.2.out()], ["in\n", "in\n", "in\n"]);
    assert!(all.3.starts_with("gvm: this gateway has as many connections"), "{}", all.3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channels_are_limited_with_a_reason() {
    let limits = Limits { connections: 9, unauthenticated: 9, per_address: 9, channels: 1 };
    let world = World::with(Wanted { limits, ..Wanted::default() }).await;
    let port = crate::support::ssh::free_port();
    let forward = format!("{port}:localhost:{}", world.guest.port);
    let command =
        format!("python3 -c 'import socket; print(socket.create_connection((\"127.0.0.1\",{port})).recv(9))'");
    let done = world.ssh(&["-L", &forward, "dev@gw", &command]).await;
    assert!(done.stderr.contains("gvm: this connection has 1 channels already"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_end_and_keepalives_do_not_count() {
    let world = World::with(Wanted { idle: Some(Duration::from_secs(4)), ..Wanted::default() }).await;
    let busy = ["dev@gw", "for i in 1 2 3 4 5 6 7 8; do sleep 1; echo $i; done"];
    let (idle, busy) =
        tokio::join!(world.ssh(&["-o", "ServerAliveInterval=1", "dev@gw", "sleep 60"]), world.ssh(&busy));
    assert!(idle.stderr.contains("gvm: nothing was sent or received for 4 s"), "{idle:?}");
    assert_eq!(busy.ok().out(), "1\n2\n3\n4\n5\n6\n7\n8\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_lets_sessions_finish_and_tells_the_others() {
    let mut world = World::with(Wanted { drain: Duration::from_secs(5), ..Wanted::default() }).await;
    let stop = world.stop.clone();
    let started = |name: &str| world.path(name);
    let command = |name: &str, work: &str| format!("touch {}; {work}", started(name).display());
    let (quick, slow) = (command("quick", "sleep 1; echo finished"), command("slow", "sleep 60"));
    let (quick, slow) = (["dev@gw", &quick], ["dev@gw", &slow]);
    let (short, long, ()) = tokio::join!(world.ssh(&quick), world.ssh(&slow), async {
        while !started("quick").exists() || !started("slow").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(TcpStream::connect(world.address).await.is_err(), "it still listens");
    });
    assert_eq!(short.ok().out(), "finished\n");
    assert!(long.stderr.contains("gvm: the gateway is being stopped"), "{long:?}");
    tokio::time::timeout(Duration::from_secs(8), &mut world.serving).await.expect("it goes on").unwrap();
}
