//! Keys of people, how a machine is reached, and what the SSH gateway asks.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;

use super::revoked::Revoked;
use super::{Manager, ManagerError, Result, people};
use crate::auth::peercred::Account;
use crate::auth::policy::{Action, Permit};
use crate::auth::sshkey;
use crate::model::access::PublicKey;
use crate::model::event::Outcome;
use crate::model::id::{KeyId, UserId};
use crate::model::name::GuestUser;
use crate::model::principal::{Origin, Principal, Role, User, Via};
use crate::model::state::VmState;
use crate::model::vm::Vm;
pub use crate::store::users::KeyRow;
use crate::store::{StoreError, commit, users};

/// Keys of one person.
const MAX_KEYS: usize = 64;
/// Characters of a certificate's name in the record.
const KEY_ID_SHOWN: usize = 200;
/// A certificate that names it is good for other hosts' administration; here it leads to nobody, or whoever signs for
/// those would make administrators of gvm.
const NOBODYS_PRINCIPAL: &str = "root";
/// Where the gateway's announcement is kept.
const GATEWAY_META: &str = "gateway";

/// How the gateway is reached, as it said itself.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct GatewayFacts {
    /// Public host keys.
    pub host_keys: Vec<String>,
    /// Port.
    pub port: u16,
}

/// Where a key may go.
#[derive(Clone, Debug)]
pub struct GatewayTarget {
    /// The machine.
    pub vm: Vm,
    /// `name.owner`.
    pub label: String,
    /// Login inside.
    pub guest_user: GuestUser,
    /// The machine's public host key.
    pub host_key: String,
    /// The key to log in with, only for terminate mode.
    pub login_key: Option<crate::model::secret::Secret<String>>,
}

/// A key that was shown or proven to the gateway, perhaps by a certificate over it.
#[derive(Clone, Debug)]
pub struct Proof {
    /// The key.
    pub key: PublicKey,
    /// The certificate. Where there is one it alone decides, whoever has registered the key.
    pub certificate: Option<Certificate>,
}

impl From<PublicKey> for Proof {
    fn from(key: PublicKey) -> Self {
        Self { key, certificate: None }
    }
}

/// What the gateway found good about a certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Whom it names, in its order.
    pub principals: Vec<String>,
    /// Its name, in its authority's words.
    pub key_id: String,
    /// Its number.
    pub serial: u64,
    /// Fingerprint of its authority's key.
    pub ca: String,
}

impl Certificate {
    /// For the record: what leads to the certificate in its authority's books.
    fn recorded(&self) -> String {
        let key_id: String = self.key_id.chars().take(KEY_ID_SHOWN).collect();
        let ca: String = self.ca.chars().take(KEY_ID_SHOWN).collect();
        format!("certificate \"{}\" serial {} of CA {}", key_id.escape_debug(), self.serial, ca.escape_debug())
    }
}

/// A question of the gateway.
#[derive(Clone, Debug)]
pub struct TargetQuestion {
    /// Who proved it; see [`Manager::identify`].
    pub user: User,
    /// What was proven.
    pub proof: Proof,
    /// `VM` or `VM.OWNER`.
    pub vm: String,
    /// Login inside, where one was named.
    pub guest_user: Option<GuestUser>,
    /// Terminate mode: the login key is needed.
    pub needs_login_key: bool,
    /// Client's address.
    pub peer: String,
}

impl Manager {
    /// The principal of an account; a person is registered at the first sight.
    ///
    /// # Errors
    /// `Denied` where the account's number or name belongs to somebody else here: an account that was deleted and
    /// made anew, or a number that was given to another person. Nobody inherits machines that way.
    pub async fn recognise(&self, account: Account) -> Result<Principal> {
        let Account::Person { uid, name, role } = account else { return Ok(Principal::gateway()) };
        let failed = |e: StoreError| ManagerError::unavailable("cannot look up who you are").because(e);
        let stranger = |whose: String| {
            ManagerError::denied(format!("gvm knows {whose}, so it cannot tell who you are"))
                .hint("ask your administrator; the runbook's section on accounts says what to do")
        };
        let is_open = self.config.people.add_from_socket || uid == 0;
        if !is_open && !self.store.is_expected(uid, &name).await.map_err(failed)? {
            return Err(ManagerError::denied(format!("{name} is not a member of gvm"))
                .hint(format!("an administrator adds members with: gvm user add {name}")));
        }
        match self.store.ensure_user(uid, &name, role, Timestamp::now()).await {
            Ok(user) if user.name == name => self.principal_as(user, Some(role)).await,
            Ok(user) => Err(stranger(format!("uid {uid} as {}", user.name))),
            Err(StoreError::Taken(_)) => Err(stranger(format!("{name} under another uid"))),
            Err(e) => Err(failed(e)),
        }
    }

    /// A person who is known by something else than the host's socket, as they stand now.
    ///
    /// # Errors
    /// `Denied` where they are suspended, or not registered any more.
    pub async fn principal(&self, user: User) -> Result<Principal> {
        self.principal_as(user, None).await
    }

    async fn principal_as(&self, user: User, listed: Option<Role>) -> Result<Principal> {
        let row = self.store.user_row(user.id).await?.ok_or_else(|| {
            ManagerError::denied(format!("{} is not a member of gvm any more", user.name))
                .hint("ask your administrator")
        })?;
        if let Some(suspended) = &row.suspended {
            return Err(people::suspended(&suspended.why));
        }
        let role = match listed {
            Some(listed) => people::role(row.role_source, row.user.role, Some(listed)),
            None => self.role_of(&row),
        };
        let teams = self.store.teams_of(user.id).await?;
        Ok(Principal::of(User { role, ..row.user }).in_teams(teams))
    }

    /// The keys of the person of the permit: another, or the one who asks.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn keys(&self, permit: &Permit) -> Result<Vec<KeyRow>> {
        Ok(self.store.keys(holder(permit)?).await?)
    }

    /// Registers a key.
    ///
    /// # Errors
    /// Where it is registered already, by whomever.
    pub async fn add_key(&self, permit: &Permit, key: PublicKey) -> Result<KeyRow> {
        let holder = holder(permit)?;
        if self.store.keys(holder).await?.len() >= MAX_KEYS {
            return Err(ManagerError::conflict(format!("there are {MAX_KEYS} keys already, which is the most"))
                .hint("remove one: gvm key rm"));
        }
        let row =
            KeyRow { id: KeyId::generate(), fingerprint: sshkey::fingerprint(&key), key, added_at: Timestamp::now() };
        let mut tx = self.store.write().await?;
        users::add_key(&mut tx, holder, &row).await.map_err(|e| match e {
            StoreError::Taken(_) => {
                ManagerError::conflict(format!("the key {} is registered already", row.fingerprint))
                    .hint("a key leads to one person; see `gvm key list`, or make another with ssh-keygen")
            }
            other => other.into(),
        })?;
        self.put_key_on_record(&mut tx, permit, "key.add", &row.fingerprint).await?;
        commit(tx).await?;
        Ok(row)
    }

    /// Forgets a key, by id or fingerprint.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn remove_key(&self, permit: &Permit, shown: &str) -> Result<()> {
        let holder = holder(permit)?;
        let keys = self.store.keys(holder).await?;
        let found = keys.iter().find(|row| row.id.to_string() == shown || row.fingerprint == shown);
        let row = found
            .ok_or_else(|| ManagerError::not_found(format!("there is no key {shown}")).hint("see `gvm key list`"))?;
        let mut tx = self.store.write().await?;
        users::remove_key(&mut tx, holder, row.id).await?;
        self.put_key_on_record(&mut tx, permit, "key.remove", &row.fingerprint).await?;
        commit(tx).await?;
        self.revocations.tell(Revoked::Key(holder, row.fingerprint.clone()));
        Ok(())
    }

    /// A key's change, with whose it is where it is not the one's who asks.
    async fn put_key_on_record(
        &self,
        tx: &mut crate::store::Write,
        permit: &Permit,
        action: &str,
        fingerprint: &str,
    ) -> Result<()> {
        let detail = match permit.subject() {
            Some(id) => users::read(tx, id).await?.map(|row| format!("of {}", row.user.name)).unwrap_or_default(),
            None => String::new(),
        };
        self.put_on_record_with(tx, permit, action, fingerprint, detail).await
    }

    /// The machine's host key and login, for its owner's SSH client.
    ///
    /// # Errors
    /// Where it is gone.
    pub async fn ssh_info(&self, permit: &Permit) -> Result<(Vm, String, String)> {
        let vm = self.permitted(permit).await?;
        let owner = self.store.user(vm.owner).await?.map(|user| user.name.to_string()).unwrap_or_default();
        let secrets = self.store.secrets(vm.id).await?;
        let host_key = secrets.map(|s| s.host_key_public).ok_or_else(|| ManagerError::not_found("the VM is gone"))?;
        Ok((vm, owner, host_key))
    }

    /// How the gateway is reached.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn gateway(&self) -> Result<GatewayFacts> {
        let known: Option<GatewayFacts> = self.store.meta(GATEWAY_META).await?;
        Ok(known.unwrap_or_else(|| GatewayFacts { host_keys: Vec::new(), port: self.config.gateway.listen.port() }))
    }

    /// The gateway says how it is reached.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn announce_gateway(&self, _permit: &Permit, facts: &GatewayFacts) -> Result<()> {
        Ok(self.store.set_meta(GATEWAY_META, facts).await?)
    }

    /// Who has proven this?
    ///
    /// # Errors
    /// "Not there" where it is nobody, or somebody who is suspended.
    pub async fn identify(&self, _permit: &Permit, proof: &Proof) -> Result<User> {
        let found = match &proof.certificate {
            // The gateway's word is all there is on a certificate, so it counts only where there is an authority.
            Some(_) if self.config.gateway.user_ca.is_empty() => None,
            Some(certificate) => self.first_named(&certificate.principals).await?,
            None => self.store.user_by_key(&proof.key.identity()).await?,
        };
        let row = match found {
            Some(user) => self.store.user_row(user.id).await?,
            None => None,
        };
        let user = row.filter(|row| row.suspended.is_none()).map(|row| row.user);
        user.ok_or_else(unknown_key)
    }

    /// The first of these principals who is a user.
    async fn first_named(&self, principals: &[String]) -> Result<Option<User>> {
        for name in principals.iter().filter(|name| *name != NOBODYS_PRINCIPAL) {
            if let Ok(name) = name.parse()
                && let Some(user) = self.store.user_by_name(&name).await?
            {
                return Ok(Some(user));
            }
        }
        Ok(None)
    }

    /// May this person reach that machine, and where is it?
    ///
    /// # Errors
    /// "Not there" where they may not; a machine that is not up is explained.
    pub async fn target(&self, permit: &Permit, question: &TargetQuestion) -> Result<GatewayTarget> {
        let origin = Origin {
            via: Via::SshKey(sshkey::fingerprint(&question.proof.key)),
            address: address_of(&question.peer),
            request: permit.principal().origin.request,
        };
        let principal = self.principal(question.user.clone()).await?.from(origin);
        let asked = self.permit_vm(&principal, Action::VmSsh, &question.vm, false).await;
        let asked = match asked {
            Ok(asked) => asked,
            Err(e) => {
                self.record_refusal(&principal, "vm.ssh", &question.vm, &e).await;
                return Err(e);
            }
        };
        let details = self.details(&asked).await?;
        let vm = details.vm;
        // As who asks has to write it.
        let is_own = principal.user().is_some_and(|user| user.id == vm.owner);
        let label = format!("{}.{}", vm.name, details.owner);
        self.explain_unless_up(&vm, if is_own { vm.name.as_str() } else { &label }, &details.state)?;
        let secrets = self.store.secrets(vm.id).await?.ok_or_else(|| ManagerError::not_found("the VM is gone"))?;
        let row = Self::pending(&asked, "vm.ssh", label.clone(), Some(vm.id));
        let by = question.proof.certificate.as_ref().map(|by| format!(", {}", by.recorded())).unwrap_or_default();
        self.store.record(&row.ended(Outcome::Success, format!("from {}{by}", question.peer))).await?;
        Ok(GatewayTarget {
            guest_user: question.guest_user.clone().unwrap_or_else(|| vm.spec.guest_user.clone()),
            label,
            host_key: secrets.host_key_public,
            login_key: question.needs_login_key.then(|| secrets.login_key_private.into()),
            vm,
        })
    }

    /// A machine that is not up is explained, with what to do.
    fn explain_unless_up(&self, vm: &Vm, name: &str, state: &VmState) -> Result<()> {
        let say = |text: String| ManagerError::conflict(text);
        match state {
            VmState::Running | VmState::Degraded { .. } if self.is_reachable(vm) => Ok(()),
            VmState::Running | VmState::Degraded { .. } => {
                Err(say(format!("VM {name} is still booting; its SSH server does not answer yet"))
                    .hint(format!("try again in a moment, or follow it with: gvm events {name}")))
            }
            VmState::Pending | VmState::Creating => {
                Err(say(format!("VM {name} is being started")).hint(format!("follow it with: gvm events {name}")))
            }
            VmState::Paused => Err(say(format!("VM {name} is paused")).hint(format!("gvm resume {name}"))),
            VmState::Stopping => Err(say(format!("VM {name} is shutting down"))),
            VmState::Stopped => {
                Err(say(format!("VM {name} is stopped")).hint(format!("start it with: gvm start {name}")))
            }
            VmState::Deleted { .. } | VmState::Deleting => Err(say(format!("VM {name} is deleted"))),
            VmState::Failed { .. } => {
                let why = vm.trouble.as_ref().map(|t| t.message.clone()).unwrap_or_default();
                Err(say(format!("VM {name} could not be started: {why}")).hint(format!("gvm show {name}")))
            }
            VmState::Unknown { why } => {
                Err(ManagerError::unavailable(format!("the state of VM {name} is not known: {why}")))
            }
        }
    }
}

/// Whose keys are meant.
fn holder(permit: &Permit) -> Result<UserId> {
    let holder = permit.subject().or_else(|| permit.user().map(|user| user.id));
    holder.ok_or_else(|| ManagerError::denied("only a person has keys"))
}

/// The one answer to a key that leads to nobody, for whatever reason: nothing is proven when it is asked for.
pub fn unknown_key() -> ManagerError {
    ManagerError::not_found("this key is not registered").hint("gvm key add")
}

/// The address of a client, which comes with its port or without.
pub fn address_of(peer: &str) -> Option<IpAddr> {
    peer.parse().ok().or_else(|| peer.parse().ok().map(|socket: SocketAddr| socket.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_recorded_on_one_line() {
        let key_id = format!("laptop\n\"of\" eve{}", "x".repeat(500));
        let by = Certificate { principals: Vec::new(), key_id, serial: 7, ca: "SHA256:abc".to_owned() };
        let text = by.recorded();
        assert!(text.starts_with("certificate \"laptop\\n\\\"of\\\" evexx"), "{text}");
        assert!(text.ends_with("x\" serial 7 of CA SHA256:abc"), "{text}");
        assert!(text.chars().count() < KEY_ID_SHOWN + 60);
    }
}
