//! Who is at the other end of the socket.

use gvm::auth::peercred::{Account, PeerError, Peers};
use gvm::config::Config;
use gvm::manager::Kind;
use gvm::model::principal::{Principal, Role};

use crate::support::world::World;

fn person(uid: u32, name: &str, role: Role) -> Account {
    Account::Person { uid, name: name.parse().unwrap(), role }
}

#[tokio::test]
async fn accounts_come_from_the_hosts_own_list() {
    let peers = Peers::new(&Config::default());
    assert_eq!(peers.account(0).await.unwrap(), person(0, "root", Role::Admin));
    assert!(matches!(peers.account(4_000_000_000).await, Err(PeerError::Nameless(4_000_000_000))));
    // Service accounts with names such as _apt can have no machines.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let odd = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?);
        name.starts_with('_').then_some(uid)
    });
    match odd {
        Some(uid) => assert!(matches!(peers.account(uid).await, Err(PeerError::Name(_)))),
        None => eprintln!("skipped a part: no account of this host begins with an underscore"),
    }
}

#[tokio::test]
async fn a_person_is_registered_once_and_follows_the_configuration() {
    let world = World::new();
    let life = world.live().await;
    let user = async |account| life.manager.recognise(account).await.unwrap().user().unwrap().clone();
    let first = user(person(1000, "alice", Role::Member)).await;
    let again = user(person(1000, "alice", Role::Admin)).await;
    assert_eq!((first.id, first.role, again.role), (again.id, Role::Member, Role::Admin));
    assert_eq!(user(person(1000, "alice", Role::Member)).await.role, Role::Member, "and back");
    assert_eq!(life.manager.recognise(Account::Gateway).await.unwrap(), Principal::gateway());
}

#[tokio::test]
async fn nobody_inherits_machines_with_a_number_or_a_name() {
    let world = World::new();
    let life = world.live().await;
    life.manager.recognise(person(1000, "alice", Role::Member)).await.unwrap();
    for stranger in [person(1000, "bob", Role::Member), person(1001, "alice", Role::Member)] {
        let error = life.manager.recognise(stranger.clone()).await.unwrap_err();
        assert_eq!(error.kind, Kind::Denied, "{stranger:?}");
        assert!(error.hint.unwrap().contains("administrator"));
    }
    assert!(life.manager.recognise(person(1001, "bob", Role::Member)).await.is_ok());
}

#[tokio::test]
async fn many_first_requests_at_once_make_one_person() {
    let world = World::new();
    let life = world.live().await;
    let recognise = |_| life.manager.recognise(person(1000, "alice", Role::Member));
    let all = futures_util::future::join_all((0..20).map(recognise)).await;
    let ids: std::collections::BTreeSet<_> =
        all.into_iter().map(|principal| principal.unwrap().user().unwrap().id).collect();
    assert_eq!(ids.len(), 1);
}
