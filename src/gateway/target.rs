//! What people type: the login name, the host of a jump, the destination of a forward. Parsed once, strictly.
//!
//! Nothing here asks anybody whether a name exists; a name that does not parse cannot be a machine of gvm.

use std::fmt;
use std::str::FromStr;

use crate::model::name::{GuestUser, NameError, UserName, VmName};

/// The port that a jump leads to: the guest's SSH server, and nothing else.
const SSH_PORT: u32 = 22;
/// The ways to say "the machine itself", as its own SSH server understands them.
const ITSELF: [&str; 4] = ["localhost", "127.0.0.1", "::1", "[::1]"];

/// `VM` or `VM.OWNER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineName {
    /// Its name.
    pub vm: VmName,
    /// Whose, where it is not the caller's own.
    pub owner: Option<UserName>,
}

impl FromStr for MachineName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (vm, owner) = match text.split_once('.') {
            Some((vm, owner)) => (vm, Some(owner.parse()?)),
            None => (text, None),
        };
        Ok(Self { vm: vm.parse()?, owner })
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{}.{owner}", self.vm),
            None => write!(f, "{}", self.vm),
        }
    }
}

/// A login name: `VM[.OWNER][+GUESTUSER]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The machine.
    pub machine: MachineName,
    /// The login inside, where one was named.
    pub guest_user: Option<GuestUser>,
}

impl FromStr for Login {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (machine, guest_user) = match text.split_once('+') {
            Some((machine, user)) => (machine, Some(user.parse()?)),
            None => (text, None),
        };
        Ok(Self { machine: machine.parse()?, guest_user })
    }
}

/// Where a `direct-tcpip` channel goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the SSH server of a machine: `ssh -J`.
    Jump(MachineName),
    /// To a port inside of the machine that the login names: `ssh -L`, `ssh -D`.
    Inside {
        /// As the guest's SSH server shall read it.
        host: &'static str,
        /// Port inside.
        port: u32,
    },
}

/// Why a destination is not served; the text is for the person who asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// No port.
    #[error("port {0} does not exist")]
    Port(u32),
    /// A machine, but not its SSH server.
    #[error("a jump leads to port 22 of a machine only; for port {0} use: ssh -L {0}:localhost:{0} {1}@GATEWAY")]
    JumpPort(u32, MachineName),
    /// The machine itself was meant, but the login names none.
    #[error("the login name is no machine, so localhost means nothing here; use: ssh -L ... VM@GATEWAY")]
    NoMachine,
    /// Neither a machine nor the machine itself.
    #[error(
        "only machines of gvm can be reached through this gateway: jump to a machine by its name, or forward to \
         localhost inside of it"
    )]
    Elsewhere,
}

impl Route {
    /// Decides where `host:port` leads for a client that logged in as `login`.
    ///
    /// # Errors
    /// Says what would be served instead.
    pub fn decide(host: &str, port: u32, login: Option<&Login>) -> Result<Self, RouteError> {
        if port == 0 || port > u32::from(u16::MAX) {
            return Err(RouteError::Port(port));
        }
        if let Some(host) = ITSELF.into_iter().find(|name| name.eq_ignore_ascii_case(host)) {
            let host = if host == "[::1]" { "::1" } else { host };
            return login.map(|_| Self::Inside { host, port }).ok_or(RouteError::NoMachine);
        }
        let machine: MachineName = host.parse().map_err(|_| RouteError::Elsewhere)?;
        if port == SSH_PORT {
            return Ok(Self::Jump(machine));
        }
        match login {
            Some(login) if is_same(&login.machine, &machine) => Ok(Self::Inside { host: "localhost", port }),
            _ => Err(RouteError::JumpPort(port, machine)),
        }
    }
}

/// Whether `named` can only mean the machine of the login: without an owner it may be either form.
fn is_same(login: &MachineName, named: &MachineName) -> bool {
    login.vm == named.vm && (named.owner.is_none() || login.owner == named.owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(text: &str) -> Login {
        text.parse().unwrap()
    }

    #[test]
    fn a_login_has_three_parts() {
        let all = login("dev.alice+root");
        assert_eq!(all.machine.to_string(), "dev.alice");
        assert_eq!(all.guest_user.unwrap().as_str(), "root");
        let two = login("dev+svc-user_1");
        assert_eq!((two.machine.owner, two.guest_user.unwrap().as_str().to_owned()), (None, "svc-user_1".to_owned()));
        assert_eq!(login("dev.alice").machine.owner.unwrap().as_str(), "alice");
        assert_eq!(login("dev").machine.to_string(), "dev");
    }

    #[test]
    fn what_is_not_a_login_is_refused() {
        for bad in [
            "",
            "+",
            ".",
            "dev.",
            "dev+",
            "+root",
            ".alice",
            "Dev",
            "dev alice",
            "dev.al.ice",
            "dev+root+x",
            "dev+a.b",
            "dev:root",
            "dev%root",
            "dev@host",
            "../dev",
            "dev\n",
            "dev\0",
            "10.0.0.1",
            "d\u{e9}v",
            "dev.alice.example.org",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<Login>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn routes_lead_to_machines_and_nowhere_else() {
        let dev = login("dev.alice");
        let mine = login("dev");
        let inside = |host, port| Ok(Route::Inside { host, port });
        assert_eq!(Route::decide("dev", 22, None), Ok(Route::Jump("dev".parse().unwrap())));
        assert_eq!(Route::decide("other.bob", 22, Some(&dev)), Ok(Route::Jump("other.bob".parse().unwrap())));
        assert_eq!(Route::decide("localhost", 80, Some(&dev)), inside("localhost", 80));
        assert_eq!(Route::decide("127.0.0.1", 22, Some(&dev)), inside("127.0.0.1", 22));
        assert_eq!(Route::decide("[::1]", 8080, Some(&dev)), inside("::1", 8080));
        assert_eq!(Route::decide("dev", 8080, Some(&dev)), inside("localhost", 8080));
        assert_eq!(Route::decide("dev.alice", 8080, Some(&dev)), inside("localhost", 8080));
        assert_eq!(Route::decide("LOCALHOST", 80, Some(&mine)), inside("localhost", 80));

        assert_eq!(Route::decide("localhost", 80, None), Err(RouteError::NoMachine));
        assert!(matches!(Route::decide("dev", 80, None), Err(RouteError::JumpPort(80, _))));
        assert!(matches!(Route::decide("dev.bob", 80, Some(&mine)), Err(RouteError::JumpPort(80, _))));
        for elsewhere in [
            "169.254.169.254",
            "10.77.0.5",
            "0.0.0.0",
            "127.0.0.2",
            "::",
            "fe80::1",
            "example.org",
            "host.example.org",
            "",
        ] {
            for port in [22, 80] {
                let got = Route::decide(elsewhere, port, Some(&dev));
                assert!(
                    matches!(got, Err(RouteError::Elsewhere | RouteError::JumpPort(..)))
                        || elsewhere == "example.org" && port == 22,
                    "{elsewhere}:{port} {got:?}"
                );
            }
        }
        for port in [0, 65536, u32::MAX] {
            assert_eq!(Route::decide("dev", port, None), Err(RouteError::Port(port)));
        }
    }
}
