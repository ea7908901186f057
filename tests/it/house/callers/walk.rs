//! Every route by every caller, about what is theirs, their team's and another's.

use std::collections::BTreeSet;

use gvm::api::error::ErrorBody;
use gvm::api::server;
use gvm::auth::policy::{self, Action, Denied};
use gvm::model::principal::Principal;
use serde_json::{Value, json};

use super::cast::{ADMIN, CALLERS, Caller, MATE, OWNER, STRANGER, SUSPENDED, TEACHER, login, person};
use super::routes::{Ask, Route, routes};
use super::{CREW, House};
use crate::house::{none, openapi};

/// What a route is about, as seen by a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// A machine of the owner's for the crew, a person in the crew, a team like the crew.
    Crew,
    /// A machine of a stranger's, a person in no team, a team with nobody in it.
    Apart,
    /// Their own machine, themselves.
    Own,
}

impl House {
    /// A new subject of a route that is of the crew, or apart.
    pub(super) async fn subject(&self, ask: Ask, whose: Whose, name: &str) -> String {
        let is_crew = whose == Whose::Crew;
        match ask {
            Ask::Vm(_) if is_crew => return self.machine(OWNER, name, Some(CREW)).await,
            Ask::Vm(_) => return self.machine(STRANGER, name, None).await,
            // Routes about a team may name a person as well, of the same name.
            Ask::Team(_) => self.team(name, if is_crew { &[OWNER, MATE, TEACHER] } else { &[] }).await,
            _ => {}
        }
        let teams = if is_crew { vec![CREW] } else { Vec::new() };
        self.ok(ADMIN, "POST", "/v1/users", &json!({"name": name, "teams": teams})).await;
        name.to_owned()
    }

    /// What is a caller's own, where a route can be about that.
    async fn own(&self, route: &Route, caller: Caller) -> Option<String> {
        let person = person(caller)?;
        match route.ask {
            Ask::Vm(_) if person == SUSPENDED => Some(format!("kept.{}", login(SUSPENDED))),
            Ask::Vm(_) => Some(self.machine(person, &self.name(), None).await),
            Ask::User(_) => Some(login(person)),
            _ => None,
        }
    }

    /// The policy's word on it.
    pub(super) async fn verdict(&self, who: &Principal, ask: Ask, shown: &str) -> Result<(), Denied> {
        let store = &self.life.store;
        let permit = match ask {
            Ask::Anybody | Ask::Known => return Ok(()),
            Ask::Own(action) => policy::allow(who, action),
            Ask::Widest(wide, narrow) => policy::allow(who, wide).or_else(|_| policy::allow(who, narrow)),
            Ask::Vm(action) => {
                let (name, owner) = shown.split_once('.').unwrap();
                let owner = store.user_by_name(&owner.parse().unwrap()).await.unwrap().unwrap();
                let vm = store.vm_by_name(owner.id, &name.parse().unwrap(), true).await.unwrap();
                assert!(vm.is_some(), "{shown} is gone");
                policy::allow_vm(who, action, vm.as_ref(), shown)
            }
            Ask::User(action) => {
                let user = store.user_by_name(&shown.parse().unwrap()).await.unwrap().unwrap();
                let teams = store.teams_of(user.id).await.unwrap();
                policy::allow_user(who, action, Some((user.id, &teams)), shown)
            }
            Ask::Team(action) => {
                let team = store.team_by_name(&shown.parse().unwrap()).await.unwrap().unwrap();
                policy::allow_team(who, action, Some(team.id), shown)
            }
        };
        permit.map(|_| ())
    }

    /// The status that a request is to be answered with, and whether by one who may.
    async fn expected(&self, route: &Route, caller: Caller, shown: &str) -> (u16, bool) {
        if matches!(route.ask, Ask::Anybody) {
            return (route.answer, true);
        }
        let principal = match self.principal(caller).await {
            Ok(principal) => principal,
            Err(status) => return (status, false),
        };
        match self.verdict(&principal, route.ask, shown).await {
            Ok(()) => (route.answer, true),
            Err(denied) => (status_of(&denied), false),
        }
    }

    /// Asks all that a route can be asked by anybody; gives what was wrong, and how many questions it were.
    async fn walk(&self, route: &Route, whose: Whose, wrong: &mut Vec<String>) -> usize {
        let mut kept: Option<String> = None;
        let mut count = 0;
        for caller in CALLERS {
            let shown = match kept.take() {
                _ if !route.is_about_one() => String::new(),
                _ if whose == Whose::Own => match self.own(route, caller).await {
                    Some(own) => own,
                    None => continue,
                },
                Some(kept) => kept,
                None => self.subject(route.ask, whose, &self.name()).await,
            };
            let (expected, may) = self.expected(route, caller, &shown).await;
            let is_change = may && route.method != "GET";
            if is_change && matches!((route.ask, whose), (Ask::User(_), Whose::Own)) {
                // What administrators may do to themselves has rules of its own: people::suspended.
                continue;
            }
            count += 1;
            let asked = format!("{} {} of {whose:?} by {caller:?}", route.method, route.path);
            let answer = self.ask(caller, route.method, &route.path_for(&shown), &route.body).await;
            let got = answer.status().as_u16();
            if got != expected {
                wrong.push(format!("{asked}: {got}, expected {expected}"));
            }
            if got >= 400 {
                let body: ErrorBody = answer.json().await.unwrap();
                if body.code.status() != got {
                    wrong.push(format!("{asked}: code {:?} with status {got}", body.code));
                }
            }
            // What was changed is what the next one would ask about no more.
            if is_change || whose == Whose::Own {
                self.out_of_the_way(route, &shown).await;
            } else {
                kept = Some(shown);
            }
        }
        if let Some(shown) = kept {
            self.out_of_the_way(route, &shown).await;
        }
        count
    }

    /// So that lists and checks stay short.
    async fn out_of_the_way(&self, route: &Route, shown: &str) {
        if matches!(route.ask, Ask::Vm(_)) && !shown.starts_with("kept.") {
            self.ask(ADMIN, "DELETE", &format!("/v1/vms/{shown}?now=true"), &Value::Null).await;
        }
    }
}

pub(super) const fn status_of(denied: &Denied) -> u16 {
    match denied {
        Denied::NotAllowed { .. } | Denied::OutOfScope { .. } => 403,
        Denied::NotFound { .. } => 404,
    }
}

#[test]
fn every_operation_of_the_api_is_in_the_table() {
    let document: Value = serde_json::from_str(&server::openapi()).unwrap();
    let there: BTreeSet<String> =
        openapi::operations(&document).into_iter().map(|(path, method, _)| format!("{method} {path}")).collect();
    let listed: BTreeSet<String> =
        routes().iter().map(|r| format!("{} {}", r.method, r.path.split('?').next().unwrap())).collect();
    assert_eq!(there, listed, "operations of the API and lines of this test's table");
}

#[test]
fn every_action_of_the_policy_is_asked_for_by_a_route() {
    let mut asked = BTreeSet::new();
    for route in routes() {
        match route.ask {
            Ask::Anybody | Ask::Known => {}
            Ask::Widest(wide, narrow) => asked.extend([format!("{wide:?}"), format!("{narrow:?}")]),
            Ask::Own(action) | Ask::Vm(action) | Ask::User(action) | Ask::Team(action) => {
                asked.insert(format!("{action:?}"));
            }
        }
    }
    let all: BTreeSet<String> = Action::ALL.iter().map(|action| format!("{action:?}")).collect();
    assert_eq!(asked, all);
}

/// The walks are apart so that they go side by side.
async fn walk(whose: &[Whose], are_meant: impl Fn(&Route) -> bool, at_least: usize) {
    let house = House::new().await;
    let (mut wrong, mut count) = (Vec::new(), 0);
    for route in routes().iter().filter(|route| are_meant(route)) {
        for whose in whose {
            count += house.walk(route, *whose, &mut wrong).await;
        }
    }
    none("callers", &wrong);
    eprintln!("{count} questions");
    assert!(count >= at_least, "{count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_nobodys_or_ones_own_is_as_the_policy_says() {
    walk(&[Whose::Apart], |route| !route.is_about_one(), 50 * CALLERS.len()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_as_the_policy_says() {
    walk(&[Whose::Crew, Whose::Apart, Whose::Own], |route| matches!(route.ask, Ask::Vm(_)), 15 * 45).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_as_the_policy_says() {
    walk(&[Whose::Crew, Whose::Apart, Whose::Own], |route| matches!(route.ask, Ask::User(_)), 11 * 42).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn teams_are_as_the_policy_says() {
    walk(&[Whose::Crew, Whose::Apart], |route| matches!(route.ask, Ask::Team(_)), 8 * 32).await;
}
