//! API tokens: made, listed, revoked; and who comes with one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc;

use super::revoked::Revoked;
use super::{Manager, ManagerError, Result, error, lock, people};
use crate::auth::policy::{self, Action, Permit, Relation};
use crate::auth::random;
use crate::model::id::{TokenId, UserId};
use crate::model::principal::{Origin, Principal, Scope, Scopes, User, Via};
use crate::model::token::{NotGood, Token, TokenKind, TokenText, check_name};
use crate::store::tokens::IsSession;
use crate::store::{StoreError, commit, tokens};

/// Tokens of one person; as many logins beside them.
const MAX_TOKENS: u64 = 64;
/// Uses that wait to be noted; what finds no place is noted with the next use.
const USES_QUEUE: usize = 1024;
/// Uses of a token are noted so far apart.
const NOTE_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// Uses are gathered for so long, so that many tokens make one write.
const GATHER: Duration = Duration::from_secs(1);

/// Wish for a token.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// Its owner's word for it.
    pub name: String,
    /// What it is to be good for; absent means all that the caller's own login is good for.
    pub scopes: Option<Scopes>,
    /// How long; absent means the usual time.
    pub ttl: Option<Duration>,
}

/// A token that was just made: the only time that it is shown.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What is kept of it.
    pub token: Token,
    /// The token.
    pub text: TokenText,
}

/// Who came with a token.
#[derive(Clone, Debug)]
pub struct TokenLogin {
    /// Who.
    pub principal: Principal,
    /// They have an account on this host, whose word on membership counts.
    pub has_account: bool,
}

#[derive(Debug)]
struct Use {
    token: TokenId,
    at: Timestamp,
    from: Option<IpAddr>,
}

/// Uses on their way to the store.
#[derive(Debug)]
pub struct Uses {
    sender: mpsc::Sender<Use>,
    receiver: Mutex<Option<mpsc::Receiver<Use>>>,
}

impl Default for Uses {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(USES_QUEUE);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

/// The answer to every token that is not good, so that nobody learns which ones there are.
fn not_good() -> ManagerError {
    ManagerError::unauthenticated("the token is not good: it is unknown, revoked or expired")
        .hint("log in anew with `gvm login`, or make another with `gvm token create`")
}

impl Manager {
    /// Asks whether the one who asks may manage the tokens of `shown`, or their own where nobody is named.
    ///
    /// # Errors
    /// "Not there" and "not yours" are the same.
    pub async fn permit_tokens(&self, principal: &Principal, shown: Option<&str>) -> Result<Permit> {
        match (shown, principal.user()) {
            (Some(shown), _) => self.permit_user(principal, Action::TokenChange, shown).await,
            (None, Some(own)) => {
                // Oneself is there, whatever this login may see.
                policy::allow(principal, Action::TokenChange)?;
                Ok(policy::allow_user(principal, Action::TokenChange, Some((own.id, &principal.teams)), "")?)
            }
            (None, None) => Err(ManagerError::denied("only a person has tokens")),
        }
    }

    /// The same for revoking `token`: a login may always end itself, whatever else it is good for.
    ///
    /// # Errors
    /// As [`Self::permit_tokens`].
    pub async fn permit_revoking(&self, principal: &Principal, shown: Option<&str>, token: &str) -> Result<Permit> {
        let is_itself = matches!(principal.origin.via, Via::Token(id) if id.to_string() == token);
        if is_itself && shown.is_none() {
            let ending = principal.clone().limited_to([Scope::Account].into_iter().collect());
            return self.permit_tokens(&ending, None).await;
        }
        self.permit_tokens(principal, shown).await
    }

    /// The tokens of a permit's person.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn tokens(&self, permit: &Permit) -> Result<Vec<Token>> {
        Ok(self.store.tokens(subject(permit)?).await?)
    }

    /// Makes a token.
    ///
    /// # Errors
    /// Says which of name, scopes, time or number cannot be had.
    pub async fn create_token(&self, permit: &Permit, request: TokenRequest) -> Result<NewToken> {
        let owner = subject(permit)?;
        let is_own = permit.user().is_some_and(|user| user.id == owner);
        let is_service = self.person(permit).await?.row.is_service;
        if !is_own && !is_service {
            return Err(ManagerError::denied("a token for another person would let its holder be that person")
                .hint("let them make it themselves, or make a service account"));
        }
        check_name(&request.name).map_err(ManagerError::invalid)?;
        let callers = &permit.principal().scopes;
        let scopes = request.scopes.unwrap_or_else(|| callers.clone());
        if scopes.is_empty() {
            return Err(ManagerError::invalid("a token without a scope is good for nothing"));
        }
        if !scopes.is_within(callers) {
            return Err(ManagerError::denied(format!("your own login is good for {callers} only, not for {scopes}"))
                .hint("ask for less, or log in with more"));
        }
        let limits = &self.config.tokens;
        let usual = limits.default_days.min(limits.max_days);
        let ttl = request.ttl.unwrap_or_else(|| days(usual));
        if ttl.is_zero() || ttl > days(limits.max_days) {
            return Err(ManagerError::invalid(format!("a token lives between 1 s and {} days here", limits.max_days))
                .hint("an administrator sets tokens.max_days"));
        }
        let kind = if is_service { TokenKind::Service } else { TokenKind::Personal };
        let made = mint(kind, request.name, scopes, ttl, Timestamp::now())?;
        let mut tx = self.store.write().await?;
        if tokens::count_of(&mut tx, owner, IsSession::No, made.token.created_at).await? >= MAX_TOKENS {
            return Err(ManagerError::conflict(format!("there are {MAX_TOKENS} tokens already"))
                .hint("revoke one: gvm token list, gvm token revoke"));
        }
        tokens::add(&mut tx, owner, &made.token, &made.text.digest()).await.map_err(|e| match e {
            StoreError::Taken(_) => ManagerError::conflict(format!("there is a token {} already", made.token.name))
                .hint("choose another name, or revoke that one: gvm token revoke"),
            other => other.into(),
        })?;
        self.put_on_record(&mut tx, permit, "token.create", &target(&made.token)).await?;
        commit(tx).await?;
        Ok(made)
    }

    /// A token for somebody who just proved who they are; their oldest login goes where they have too many.
    /// `ttl` none means the configuration's.
    ///
    /// # Errors
    /// Where the store fails.
    pub async fn issue_session(&self, user: &User, origin: Origin, ttl: Option<Duration>) -> Result<NewToken> {
        let ttl = ttl.unwrap_or_else(|| Duration::from_secs(self.config.tokens.session_hours * 3600));
        let principal = Principal::of(user.clone()).from(origin);
        let permit = policy::allow(&principal, Action::TokenChange)?;
        let mut made = mint(TokenKind::Session, String::new(), Scopes::all(), ttl, Timestamp::now())?;
        made.token.name = format!("login-{}", made.token.id);
        let mut tx = self.store.write().await?;
        let mut gone = None;
        if tokens::count_of(&mut tx, user.id, IsSession::Yes, made.token.created_at).await? >= MAX_TOKENS {
            gone = tokens::remove_oldest_session(&mut tx, user.id).await?;
        }
        tokens::add(&mut tx, user.id, &made.token, &made.text.digest()).await?;
        self.put_on_record(&mut tx, &permit, "login", &target(&made.token)).await?;
        commit(tx).await?;
        if let Some(gone) = gone {
            self.revocations.tell(Revoked::Token(gone));
        }
        Ok(made)
    }

    /// Revokes a token of the permit's person, by name or id. Who may do so for anybody names one of another by its id.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn revoke_token(&self, permit: &Permit, shown: &str) -> Result<Token> {
        let owner = subject(permit)?;
        let found = self.store.tokens(owner).await?.into_iter().find(|token| is_named(token, shown));
        let (owner, token) = match found {
            Some(token) => (owner, token),
            None => self.token_of_anybody(permit, shown).await?.ok_or_else(|| {
                let shown: String = shown.chars().take(80).collect();
                ManagerError::not_found(format!("there is no token {shown:?}")).hint("see `gvm token list`")
            })?,
        };
        let mut tx = self.store.write().await?;
        tokens::remove(&mut tx, owner, token.id).await?;
        self.put_on_record(&mut tx, permit, "token.revoke", &target(&token)).await?;
        commit(tx).await?;
        self.revocations.tell(Revoked::Token(token.id));
        Ok(token)
    }

    async fn token_of_anybody(&self, permit: &Permit, shown: &str) -> Result<Option<(UserId, Token)>> {
        if !policy::may(permit.principal(), Action::TokenChange, Relation::Other) {
            return Ok(None);
        }
        let Ok(id) = shown.parse::<TokenId>() else { return Ok(None) };
        let Some(owner) = self.store.token_owner(id).await? else { return Ok(None) };
        let found = self.store.tokens(owner).await?.into_iter().find(|token| token.id == id);
        Ok(found.map(|token| (owner, token)))
    }

    /// Who comes with this token. `origin.via` is set here.
    ///
    /// # Errors
    /// `Unauthenticated`, and `TooMuch` where bad ones came from this address too often. A good token is never held
    /// back for what its neighbours do: it cannot be guessed.
    pub async fn principal_of_token(&self, text: &str, now: Timestamp, origin: Origin) -> Result<TokenLogin> {
        match self.look_up_token(text, now, &origin).await {
            Err(error) if error.kind == super::Kind::Unauthenticated => {
                self.may_try(origin.address, None, now)?;
                self.login_failed(origin.address, None, now);
                Err(error)
            }
            other => other,
        }
    }

    async fn look_up_token(&self, text: &str, now: Timestamp, origin: &Origin) -> Result<TokenLogin> {
        let text: TokenText = text.parse().map_err(|e: crate::model::token::TokenError| {
            ManagerError::unauthenticated(e.to_string()).hint("see `gvm token create`")
        })?;
        let found = self.store.token_by_digest(&text.digest()).await?.ok_or_else(not_good)?;
        match found.token.check(now) {
            Ok(()) => {}
            Err(NotGood::Expired) => return Err(not_good()),
            // Only its holder comes here, so nothing is given away.
            Err(NotGood::NotYet) => {
                return Err(ManagerError::unauthenticated(format!(
                    "the token is not valid yet: it was made at {}, and by this host's clock it is {now}",
                    found.token.created_at
                ))
                .hint("an administrator sets the host's clock right"));
            }
        }
        // Who shows a good token is told why it is of no use.
        if let Some(why) = &found.suspended_why {
            return Err(people::suspended(why));
        }
        self.note_use(&found.token, now, origin.address);
        let origin = Origin { via: Via::Token(found.token.id), ..origin.clone() };
        let listed = found.uid.map(|uid| self.config.people.role_of(uid, found.user.name.as_str()));
        let user = User { role: people::role(found.role_source, found.user.role, listed), ..found.user };
        let principal = Principal::of(user).in_teams(found.teams).limited_to(found.token.scopes).from(origin);
        Ok(TokenLogin { principal, has_account: found.uid.is_some() })
    }

    fn note_use(&self, token: &Token, now: Timestamp, from: Option<IpAddr>) {
        let is_due = token.last_used_at.is_none_or(|last| last.duration_until(now).abs() >= NOTE_EVERY);
        if is_due {
            // A full queue loses nothing that the next use does not bring.
            let _ = self.uses.sender.try_send(Use { token: token.id, at: now, from });
        }
    }

    /// Notes uses of tokens until the manager ends, apart from the requests.
    pub fn spawn_token_notes(self: &Arc<Self>) {
        let Some(mut uses) = lock(&self.uses.receiver).take() else { return };
        let manager = Arc::clone(self);
        self.tasks.spawn(async move {
            let mut batch = Vec::new();
            loop {
                let is_stopping = tokio::select! {
                    count = uses.recv_many(&mut batch, USES_QUEUE) => count == 0,
                    () = manager.stop.cancelled() => true,
                };
                if !is_stopping {
                    tokio::select! {
                        () = tokio::time::sleep(GATHER) => {}
                        () = manager.stop.cancelled() => {}
                    }
                }
                while let Ok(more) = uses.try_recv() {
                    batch.push(more);
                }
                manager.write_uses(std::mem::take(&mut batch)).await;
                if is_stopping {
                    return;
                }
            }
        });
    }

    async fn write_uses(&self, uses: Vec<Use>) {
        let newest: HashMap<TokenId, Use> = uses.into_iter().map(|used| (used.token, used)).collect();
        if newest.is_empty() {
            return;
        }
        let written = async {
            let mut tx = self.store.write().await?;
            for used in newest.values() {
                let from = used.from.map(|address| address.to_string());
                tokens::note_use(&mut tx, used.token, used.at, from.as_deref()).await?;
            }
            commit(tx).await
        };
        if let Err(fault) = written.await {
            tracing::warn!(error = %error::chain(&fault), "cannot note when tokens were used");
        }
    }
}

fn mint(kind: TokenKind, name: String, scopes: Scopes, ttl: Duration, now: Timestamp) -> Result<NewToken> {
    let random =
        random::bytes().map_err(|e| ManagerError::unavailable("this host gives no random numbers").because(e))?;
    let text = TokenText::new(kind, TokenId::generate(), &random);
    let token = Token {
        id: text.id(),
        kind,
        name,
        scopes,
        created_at: now,
        expires_at: now.saturating_add(ttl).map_err(|e| ManagerError::invalid("it would live too long").because(e))?,
        last_used_at: None,
        last_used_from: None,
    };
    Ok(NewToken { token, text })
}

/// A token's words on the record: never the token.
fn target(token: &Token) -> String {
    format!("{} {}", token.id, token.name)
}

fn is_named(token: &Token, shown: &str) -> bool {
    token.name == shown || token.id.to_string() == shown
}

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 86_400)
}

fn subject(permit: &Permit) -> Result<UserId> {
    permit.subject().ok_or_else(|| ManagerError::denied("only a person has tokens"))
}
