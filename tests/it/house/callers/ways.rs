//! What leads into machines beside plain requests: consoles, SSH by keys and certificates, streams that are open.

use std::time::Duration;

use futures_util::StreamExt as _;
use gvm::api::client::Client;
use gvm::api::client::console::{ConsoleEvent, ConsoleMode};
use gvm::auth::policy::{self, Action};
use reqwest::Response;
use serde_json::{Value, json};

use super::cast::{ADMIN, CALLERS, Caller, ELSEWHERE, GATEWAY, MATE, OPERATOR, OWNER, STRANGER, SUSPENDED, TEACHER};
use super::routes::Ask;
use super::walk::status_of;
use super::{CREW, House, key, login, refusal};
use crate::house::none;
use crate::support::world::eventually;

const PATIENCE: Duration = Duration::from_secs(10);

/// What is proven to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Key,
    Certificate,
}

impl House {
    /// Registers the key of that number as the caller's, out of use or not.
    async fn give_key(&self, caller: Caller, number: usize) {
        let path = format!("/v1/users/{}/keys", login(caller));
        self.ok(ADMIN, "POST", &path, &json!({"public_key": key(number)})).await;
    }

    /// What the gateway knows of somebody's key, or of a certificate over a key that is nobody's.
    fn proof(by: By, who: &str, number: usize) -> Value {
        let facts = json!({"principals": ["no-such", who], "key_id": "k", "serial": 7, "ca": "SHA256:ca"});
        match by {
            By::Key => json!({"public_key": key(number)}),
            By::Certificate => json!({"public_key": key(98), "certificate": facts}),
        }
    }

    async fn identify(&self, proof: &Value) -> Response {
        self.ask(GATEWAY, "POST", "/v1/gateway/identify", proof).await
    }

    async fn target(&self, proof: &Value, vm: &str, mode: &str) -> Response {
        let mut question = proof.clone();
        for (name, value) in [("vm", vm), ("mode", mode), ("peer", "192.0.2.1:4000")] {
            question[name] = json!(value);
        }
        self.ask(GATEWAY, "POST", "/v1/gateway/target", &question).await
    }

    /// What who may not is told where the way leads over the policy's table.
    async fn refused_with(&self, caller: Caller, action: Action, vm: &str) -> Option<u16> {
        match self.principal(caller).await {
            Err(status) => Some(status),
            Ok(who) => self.verdict(&who, Ask::Vm(action), vm).await.err().map(|denied| status_of(&denied)),
        }
    }

    /// The status of a console; another's that is just being closed is waited for.
    async fn console(&self, caller: Caller, vm: &str, mode: &str) -> u16 {
        for _ in 0..100 {
            let path = format!("/v1/vms/{vm}/console?mode={mode}");
            let status = self.ask(caller, "GET", &path, &Value::Null).await.status().as_u16();
            if status != 409 {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        409
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consoles_open_to_whom_the_policy_says() {
    let house = House::with(|_| {}, true).await;
    let machines = [
        house.running(OWNER, "dev", Some(CREW)).await,
        house.running(STRANGER, "apart", None).await,
        house.running(ADMIN, "own", None).await,
    ];
    let (mut wrong, mut opened) = (Vec::new(), 0);
    for vm in &machines {
        for caller in CALLERS {
            for (mode, action) in [("read", Action::VmSee), ("write", Action::VmConsole)] {
                let expected = house.refused_with(caller, action, vm).await.unwrap_or(101);
                let got = house.console(caller, vm, mode).await;
                opened += usize::from(got == 101);
                if got != expected {
                    wrong.push(format!("{mode} {vm} by {caller:?}: {got}, expected {expected}"));
                }
            }
        }
    }
    none("consoles", &wrong);
    assert!(opened >= 15, "{opened}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ssh_leads_where_the_policy_says() {
    let house = House::with(|_| {}, true).await;
    let people = [OWNER, MATE, TEACHER, ELSEWHERE, STRANGER, OPERATOR, ADMIN, SUSPENDED];
    let mut machines = vec![house.running(OWNER, "dev", Some(CREW)).await];
    for person in [STRANGER, ADMIN] {
        machines.push(house.running(person, "own", None).await);
    }
    machines.push(format!("kept.{}", login(SUSPENDED)));
    let (mut wrong, mut let_in) = (Vec::new(), 0);
    let nobody = refusal(house.identify(&json!({"public_key": key(97)})).await).await;
    assert_eq!(nobody.0, 404);
    for (number, person) in people.into_iter().enumerate() {
        house.give_key(person, number).await;
        for by in [By::Key, By::Certificate] {
            let proof = House::proof(by, &login(person), number);
            // The administrator is root here, whom no certificate can name.
            let leads_nowhere = (person, by) == (ADMIN, By::Certificate);
            let principal = house.principal(person).await.ok().filter(|_| !leads_nowhere);
            let identified = house.identify(&proof).await;
            match &principal {
                Some(_) => assert_eq!(identified.json::<Value>().await.unwrap()["user"], login(person)),
                None => assert_eq!(refusal(identified).await, nobody, "{person:?}"),
            }
            for (vm, mode) in machines.iter().flat_map(|vm| [(vm, "jump"), (vm, "terminate")]) {
                // Nothing in this world answers on a guest's SSH port, which only who may come in is told.
                let expected = match &principal {
                    None => 404,
                    Some(_) => house.refused_with(person, Action::VmSsh, vm).await.unwrap_or(409),
                };
                let (got, _, told) = refusal(house.target(&proof, vm, mode).await).await;
                let_in += usize::from(got == 409);
                if got != expected || (got == 409) != told.contains("still booting") {
                    wrong.push(format!("{vm} by {by:?} of {person:?}, {mode}: {got} {told}, expected {expected}"));
                }
            }
        }
    }
    none("ssh", &wrong);
    assert_eq!(let_in, 3 * 2 * 2 - 2, "three have a machine that runs, and two of them come by both");
    // Nobody but the gateway, and whoever may run one, asks where keys lead: the walk shows it. Without an authority
    // that is trusted no certificate leads anywhere.
    let house = House::with(|config| config.gateway.user_ca.clear(), false).await;
    let proof = House::proof(By::Certificate, &login(OWNER), 0);
    assert_eq!(refusal(house.identify(&proof).await).await, nobody);
}

/// Reads a console until the manager closes it; gives why.
async fn close_of(mut console: gvm::api::client::console::Console) -> u16 {
    loop {
        match console.next().await {
            ConsoleEvent::Bytes(_) => {}
            ConsoleEvent::Closed { code, .. } => return code,
            ConsoleEvent::Lost => panic!("it was cut without a word"),
        }
    }
}

/// The ways of one person to their machine `dev`, and what they are answered.
async fn ways(house: &House, who: Caller, token: &str, number: usize) -> Vec<(&'static str, u16)> {
    let name = login(who);
    let vm = format!("dev.{name}");
    let mut found = Vec::new();
    for (way, path) in [
        ("token", "/v1/me".to_owned()),
        ("token: events", "/v1/events".to_owned()),
        ("token: events of one", format!("/v1/vms/{vm}/events")),
        ("token: console", format!("/v1/vms/{vm}/console?mode=read")),
    ] {
        let request = house.request(Caller::Nobody, "GET", &path, &Value::Null).bearer_auth(token);
        found.push((way, request.send().await.unwrap().status().as_u16()));
    }
    for (by, identify, jump, terminate) in [
        (By::Key, "key", "key: jump", "key: terminate"),
        (By::Certificate, "certificate", "certificate: jump", "certificate: terminate"),
    ] {
        let proof = House::proof(by, &name, number);
        found.push((identify, house.identify(&proof).await.status().as_u16()));
        for (way, mode) in [(jump, "jump"), (terminate, "terminate")] {
            found.push((way, house.target(&proof, &vm, mode).await.status().as_u16()));
        }
    }
    found
}

const OPEN: [u16; 10] = [200, 200, 200, 101, 200, 409, 409, 200, 409, 409];

fn statuses(ways: &[(&'static str, u16)]) -> Vec<u16> {
    ways.iter().map(|(_, status)| *status).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_is_suspended_gets_in_nowhere_and_what_is_open_ends() {
    let house = House::with(|_| {}, true).await;
    house.running(OWNER, "dev", Some(CREW)).await;
    house.give_key(OWNER, 1).await;
    let made = house.ok(OWNER, "POST", "/v1/tokens", &json!({"name": "laptop"})).await;
    let token = made["token"].as_str().unwrap();
    assert_eq!(statuses(&ways(&house, OWNER, token, 1).await), OPEN);

    let request = house.request(Caller::Nobody, "GET", "/v1/events", &Value::Null).bearer_auth(token);
    let mut by_token = request.send().await.unwrap().bytes_stream();
    let Caller::Account(uid) = OWNER else { unreachable!() };
    let client = Client::new(&house.dir.path().join(uid.to_string())).unwrap();
    let console = client.console("dev", ConsoleMode::Write).await.unwrap();
    let mut by_socket = client.events("/v1/events").await.unwrap();

    let path = format!("/v1/users/{}", login(OWNER));
    house.ok(ADMIN, "POST", &format!("{path}/suspend"), &json!({"why": "unpaid"})).await;
    let rest = async {
        while let Some(Ok(_)) = by_token.next().await {}
        while by_socket.next().await.is_some() {}
        close_of(console).await
    };
    assert_eq!(tokio::time::timeout(PATIENCE, rest).await.expect("what is open ends"), 4403);
    let shut = ways(&house, OWNER, token, 1).await;
    assert_eq!(statuses(&shut), [403, 403, 403, 403, 404, 404, 404, 404, 404, 404], "{shut:?}");
    for path in ["/v1/me", "/v1/events", "/v1/vms/dev/console?mode=write"] {
        assert_eq!(house.ask(OWNER, "GET", path, &Value::Null).await.status(), 403, "{path}");
    }
    house.ok(ADMIN, "POST", &format!("{path}/resume"), &Value::Null).await;
    eventually("the way is free again", || async { statuses(&ways(&house, OWNER, token, 1).await) == OPEN }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_has_left_the_hosts_group_gets_in_nowhere() {
    let Caller::Account(uid) = OWNER else { unreachable!() };
    let account = nix::unistd::User::from_uid(uid.into()).unwrap().unwrap();
    let group = nix::unistd::Group::from_gid(account.gid).unwrap().unwrap().name;
    let house = House::with(|config| config.manager.socket_group = Some(group), true).await;
    let nobody = refusal(house.identify(&json!({"public_key": key(97)})).await).await;
    for (person, number, is_in) in [(OWNER, 1, true), (STRANGER, 2, false)] {
        house.running(person, "dev", None).await;
        house.give_key(person, number).await;
        let made = house.ok(person, "POST", "/v1/tokens", &json!({"name": "laptop"})).await;
        let found = ways(&house, person, made["token"].as_str().unwrap(), number).await;
        // The key was proven by then, so that they are told why.
        let expected = if is_in { OPEN } else { [403, 403, 403, 403, 404, 403, 403, 404, 403, 403] };
        assert_eq!(statuses(&found), expected, "{person:?}: {found:?}");
        if !is_in {
            let proof = House::proof(By::Key, &login(person), number);
            assert_eq!(refusal(house.identify(&proof).await).await, nobody, "who proved nothing is told nothing");
            let (_, _, told) = refusal(house.target(&proof, "dev", "jump").await).await;
            assert!(told.contains("is not in the group of gvm's members any more"), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_team_has_open_of_a_machine_ends_when_it_counts_for_another() {
    let house = House::with(|_| {}, true).await;
    let vm = house.running(OWNER, "dev", Some(CREW)).await;
    house.team("next", &[OWNER]).await;
    let client = |caller: Caller| {
        let Caller::Account(uid) = caller else { unreachable!() };
        Client::new(&house.dir.path().join(uid.to_string())).unwrap()
    };
    let (teacher, owner) = (client(TEACHER), client(OWNER));
    let mut events = teacher.events(&format!("/v1/vms/{vm}/events")).await.unwrap();
    let console = teacher.console(&vm, ConsoleMode::Read).await.unwrap();
    let own = owner.console(&vm, ConsoleMode::Read).await.unwrap();
    house.ok(OWNER, "PATCH", &format!("/v1/vms/{vm}"), &json!({"team": "next"})).await;
    let rest = async {
        while events.next().await.is_some() {}
        close_of(console).await
    };
    assert_eq!(tokio::time::timeout(PATIENCE, rest).await.expect("what is open ends"), 4403);
    assert_eq!(house.console(TEACHER, &vm, "read").await, 404);
    assert!(tokio::time::timeout(Duration::from_millis(300), close_of(own)).await.is_err(), "its owner's stays");
}

/// The table itself: no role is let into what is another's.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_at_all_logs_in_to_anothers_machine() {
    let house = House::new().await;
    for caller in CALLERS {
        let Ok(who) = house.principal(caller).await else { continue };
        for relation in [policy::Relation::Team, policy::Relation::Other] {
            assert!(!policy::may(&who, Action::VmSsh, relation), "{caller:?}");
        }
    }
}
