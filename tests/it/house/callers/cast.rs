//! Who asks.

use gvm::auth::policy::{Relation, actor};
use gvm::model::principal::{Principal, Role, Scope, Scopes};

use super::{CREW, House};

/// Somebody who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::house) enum Caller {
    /// An account of the host, over the socket. Every Linux has those used here, so the real look-up is used.
    Account(u32),
    /// Over HTTPS with a token of the administrator that is good for this alone.
    Token(Scope),
    /// Over HTTPS without a word on who it is.
    Nobody,
}

/// Has the machines that are asked about; they count for the crew.
pub(in crate::house) const OWNER: Caller = Caller::Account(1);
/// A member in the crew.
pub(super) const MATE: Caller = Caller::Account(2);
/// A teacher in the crew.
pub(super) const TEACHER: Caller = Caller::Account(3);
/// A teacher in another team.
pub(super) const ELSEWHERE: Caller = Caller::Account(4);
/// A member in no team.
pub(in crate::house) const STRANGER: Caller = Caller::Account(5);
pub(super) const OPERATOR: Caller = Caller::Account(6);
pub(in crate::house) const GATEWAY: Caller = Caller::Account(7);
/// Has a machine and is out of use.
pub(super) const SUSPENDED: Caller = Caller::Account(8);
pub(super) const ADMIN: Caller = Caller::Account(0);
/// A number that no account has.
const UNKNOWN: Caller = Caller::Account(4_000_000_000);

pub(super) const CALLERS: [Caller; 16] = [
    OWNER,
    MATE,
    TEACHER,
    ELSEWHERE,
    STRANGER,
    OPERATOR,
    ADMIN,
    GATEWAY,
    SUSPENDED,
    UNKNOWN,
    Caller::Nobody,
    Caller::Token(Scope::Read),
    Caller::Token(Scope::Vm),
    Caller::Token(Scope::Console),
    Caller::Token(Scope::Account),
    Caller::Token(Scope::Admin),
];

/// The login of the person behind a caller, whether they may come in or not.
pub(in crate::house) fn login(caller: Caller) -> String {
    let uid = match caller {
        Caller::Account(uid) => uid,
        Caller::Token(_) => 0,
        Caller::Nobody => panic!("nobody has no login"),
    };
    nix::unistd::User::from_uid(uid.into()).unwrap().unwrap_or_else(|| panic!("uid {uid} has no account here")).name
}

/// The account that can make what is to be a caller's own; none where it is nobody's.
pub(super) fn person(caller: Caller) -> Option<Caller> {
    match caller {
        Caller::Token(_) => Some(ADMIN),
        GATEWAY | UNKNOWN | Caller::Nobody => None,
        account @ Caller::Account(_) => Some(account),
    }
}

/// Whom the walks take their word from: without this, "nobody may anything" would pass.
#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_who_they_are_said_to_be() {
    let house = House::new().await;
    let owner = house.principal(OWNER).await.unwrap().user().unwrap().id;
    let crew = house.life.store.team_by_name(&CREW.parse().unwrap()).await.unwrap().unwrap().id;
    let stands = |principal: &Principal| Relation::between(principal, owner, Some(crew));
    for (caller, role, relation) in [
        (OWNER, Role::Member, Relation::Own),
        (MATE, Role::Member, Relation::Team),
        (TEACHER, Role::Teacher, Relation::Team),
        (ELSEWHERE, Role::Teacher, Relation::Other),
        (STRANGER, Role::Member, Relation::Other),
        (OPERATOR, Role::Operator, Relation::Other),
        (ADMIN, Role::Admin, Relation::Other),
        (Caller::Token(Scope::Admin), Role::Admin, Relation::Other),
        (Caller::Token(Scope::Vm), Role::Teacher, Relation::Other),
    ] {
        let principal = house.principal(caller).await.unwrap();
        assert_eq!((principal.role(), stands(&principal)), (Some(role), relation), "{caller:?}");
        assert_eq!(actor(&principal), login(caller));
        let scopes = match caller {
            Caller::Token(scope) => [scope].into_iter().collect(),
            _ => Scopes::all(),
        };
        assert_eq!(principal.scopes, scopes, "{caller:?}");
    }
    assert_eq!(house.principal(GATEWAY).await.unwrap(), Principal::gateway());
    for (caller, status) in [(SUSPENDED, 403), (UNKNOWN, 403), (Caller::Nobody, 401)] {
        assert_eq!(house.principal(caller).await.unwrap_err(), status, "{caller:?}");
    }
}
