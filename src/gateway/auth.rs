//! Who is at the door: keys, offered and proven.
//!
//! A client with a full agent offers many keys before the right one, so an unsigned offer is not a failure
//! (field case E-many-agent-keys); only their number is bounded. Nothing about machines is asked or said here:
//! the login name is looked at after the key is proven.

use std::sync::Arc;

use russh::Disconnect;
use russh::keys::{Algorithm, PublicKey};
use russh::server::Auth;

use super::conn::{Conn, Member};
use super::ssh;

/// Keys that a client may offer.
const OFFERS_MAX: usize = 30;
/// Attempts with something else than a good key: passwords, keys that are somebody's no more.
const FAILURES_MAX: usize = 4;

/// The state of one client's authentication.
pub(super) struct KeyCheck {
    conn: Arc<Conn>,
    login: String,
    /// The key that was offered last and is a member's, with that member.
    known: Option<(String, String)>,
    offers: usize,
    failures: usize,
    is_over: bool,
}

impl KeyCheck {
    pub fn new(conn: Arc<Conn>) -> Self {
        Self { conn, login: String::new(), known: None, offers: 0, failures: 0, is_over: false }
    }

    /// A key without a proof: would it do?
    pub async fn offered(&mut self, login: &str, key: &PublicKey, algorithm: &Algorithm) -> Auth {
        self.for_login(login);
        self.offers += 1;
        if self.offers > OFFERS_MAX {
            let text = format!(
                "gvm: {OFFERS_MAX} keys were offered and none is registered here; name the right one: \
                 ssh -o IdentitiesOnly=yes -i KEYFILE ... (register it first with: gvm key add)"
            );
            return self.end(Disconnect::NoMoreAuthMethodsAvailable, text).await;
        }
        match self.whose(key, algorithm).await {
            Some(_) => Auth::Accept,
            None => Auth::reject(),
        }
    }

    /// A key with a proof.
    pub async fn proven(&mut self, login: &str, key: &PublicKey, algorithm: &Algorithm) -> Auth {
        self.for_login(login);
        let Some((key, user)) = self.whose(key, algorithm).await else {
            return self.failed().await;
        };
        self.conn.log_in(Member { user, key, login: login.to_owned() });
        Auth::Accept
    }

    /// Anything that is not a key.
    pub async fn failed(&mut self) -> Auth {
        self.failures += 1;
        if self.failures < FAILURES_MAX {
            return Auth::reject();
        }
        let text = "gvm: only registered keys are accepted here; register yours with: gvm key add";
        self.end(Disconnect::NoMoreAuthMethodsAvailable, text.to_owned()).await
    }

    /// Another login name is another person: what was known of the last one is forgotten. The counters stay,
    /// or changing the name would be a way around them.
    fn for_login(&mut self, login: &str) {
        if self.login != login {
            login.clone_into(&mut self.login);
            self.known = None;
        }
    }

    async fn whose(&mut self, key: &PublicKey, algorithm: &Algorithm) -> Option<(String, String)> {
        if self.is_over {
            return None;
        }
        let print = key.fingerprint(russh::keys::HashAlg::Sha256);
        if let Err(reason) = ssh::check_user_key(key, algorithm) {
            tracing::debug!(%print, %algorithm, %reason, "key refused");
            return None;
        }
        let identity = PublicKey::new(key.key_data().clone(), "").to_openssh().ok()?;
        if let Some(known) = self.known.take_if(|(known, _)| *known == identity) {
            self.known = Some(known.clone());
            return Some(known);
        }
        match self.conn.shared.directory.identify(&identity).await {
            Ok(Some(found)) => {
                tracing::debug!(%print, %algorithm, user = %found.user, "key known");
                self.known = Some((identity, found.user));
                self.known.clone()
            }
            Ok(None) => {
                tracing::debug!(%print, %algorithm, "key not registered");
                None
            }
            Err(refusal) => {
                self.end(Disconnect::ServiceNotAvailable, refusal.line()).await;
                None
            }
        }
    }

    async fn end(&mut self, reason: Disconnect, text: String) -> Auth {
        if !self.is_over {
            self.is_over = true;
            tracing::info!(text, "login refused");
            self.conn.say_goodbye(reason, text).await;
        }
        Auth::reject()
    }
}
