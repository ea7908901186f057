//! Who is at the door: keys and certificates, offered and proven.
//!
//! A client with a full agent offers many keys before the right one, so an unsigned offer is not a failure
//! (field case E-many-agent-keys); only their number is bounded. Nothing about machines is asked or said here:
//! the login name is looked at after the key is proven, so that one which changes in the middle changes nothing.
//!
//! The library shows an offered certificate as the bare key in it. So where certificates are taken, any key may be
//! one's, and each is let on to its proof; only there it turns out what it is.

use std::sync::Arc;

use jiff::Timestamp;
use russh::Disconnect;
use russh::keys::{Algorithm, Certificate, PublicKey};
use russh::server::Auth;

use super::cert::{Certified, WhyNot, print};
use super::conn::{Conn, Member};
use super::ssh;
use crate::api::types::{Identified, Identify};

/// Keys that a client may offer.
const OFFERS_MAX: usize = 30;
/// Attempts with something else than a good key: passwords, keys that are somebody's no more.
const FAILURES_MAX: usize = 4;
/// Times that the manager is asked again because some access ended while it answered.
const ANSWERS_MAX: usize = 8;

/// The state of one client's authentication. Of keys it remembers nothing: what was good when it was offered may not
/// be when it is proven.
pub(super) struct KeyCheck {
    conn: Arc<Conn>,
    offers: usize,
    failures: usize,
    is_over: bool,
}

impl KeyCheck {
    pub fn new(conn: Arc<Conn>) -> Self {
        Self { conn, offers: 0, failures: 0, is_over: false }
    }

    /// A key without a proof, perhaps that of a certificate: would it do?
    pub async fn offered(&mut self, key: &PublicKey, algorithm: &Algorithm) -> Auth {
        self.offers += 1;
        if self.offers > OFFERS_MAX {
            let text = format!(
                "gvm: {OFFERS_MAX} keys were offered and none is registered here; name the right one: \
                 ssh -o IdentitiesOnly=yes -i KEYFILE ... (register it first with: gvm key add)"
            );
            return self.end(Disconnect::NoMoreAuthMethodsAvailable, text).await;
        }
        if let Err(reason) = ssh::check_user_key(key, algorithm) {
            tracing::debug!(print = print(key), %algorithm, %reason, "key refused");
            return self.refuse();
        }
        let is_known = self.whose(&identify(key, None)).await.is_some();
        let may_be_certified = !self.is_over && self.conn.shared.truster.current().await.has_authorities();
        if is_known || may_be_certified { Auth::Accept } else { self.refuse() }
    }

    /// A key with a proof.
    pub async fn proven(&mut self, login: &str, key: &PublicKey, algorithm: &Algorithm) -> Auth {
        let trust = self.conn.shared.truster.current().await;
        let print = print(key);
        let is_good = match ssh::check_user_key(key, algorithm) {
            Ok(()) if trust.has_revoked_key(&print) => {
                tracing::info!(print, "{}", WhyNot::Revoked("this key"));
                false
            }
            done => done.is_ok(),
        };
        if is_good && self.let_in(login, key, None).await {
            return Auth::Accept;
        }
        // Where each offer is let on to its proof, the offers are what is counted.
        if trust.has_authorities() { self.refuse() } else { self.failed().await }
    }

    /// A certificate with a proof. Whoever has registered the key that it is over, its principals decide.
    pub async fn certified(&mut self, login: &str, certificate: &Certificate) -> Auth {
        let trust = self.conn.shared.truster.current().await;
        match Certified::at_login(certificate, &trust, self.conn.peer.ip(), Timestamp::now()) {
            Ok(certified) => {
                let key = PublicKey::from(certificate.public_key().clone());
                if self.let_in(login, &key, Some(certified)).await {
                    return Auth::Accept;
                }
            }
            // Anybody can sign certificates of their own; they are not to fill the log.
            Err(why @ WhyNot::Authority(_)) => tracing::debug!(%why, "certificate refused"),
            Err(why) => tracing::info!(
                key_id = certificate.key_id().escape_debug().to_string(), serial = certificate.serial(), %why, "certificate refused"
            ),
        }
        self.refuse()
    }

    /// Anything that is not a key.
    pub async fn failed(&mut self) -> Auth {
        self.failures += 1;
        if self.failures < FAILURES_MAX {
            return self.refuse();
        }
        let text = "gvm: only registered keys are accepted here; register yours with: gvm key add";
        self.end(Disconnect::NoMoreAuthMethodsAvailable, text.to_owned()).await
    }

    /// Logs the member in whose key or certificate it is. What ends meanwhile is not missed; see [`super::revoke::Roll`].
    async fn let_in(&mut self, login: &str, key: &PublicKey, certified: Option<Certified>) -> bool {
        let shared = Arc::clone(&self.conn.shared);
        let ask = identify(key, certified.as_ref());
        let print = print(key);
        for _ in 0..ANSWERS_MAX {
            let heard = shared.roll.heard();
            let Some(found) = self.whose(&ask).await else { return false };
            let member = Member {
                user: found.user,
                user_id: found.user_id,
                key: ask.public_key.clone(),
                print: print.clone(),
                certified: certified.clone(),
                login: login.to_owned(),
            };
            if shared.roll.enter(heard, &self.conn, member) {
                return true;
            }
        }
        false
    }

    async fn whose(&mut self, ask: &Identify) -> Option<Identified> {
        if self.is_over {
            return None;
        }
        match self.conn.shared.directory.identify(ask).await {
            Ok(found) => {
                tracing::debug!(key = ask.public_key, user = found.as_ref().map(|found| &found.user), "key looked up");
                found
            }
            Err(refusal) => {
                self.end(Disconnect::ServiceNotAvailable, refusal.line()).await;
                None
            }
        }
    }

    fn refuse(&self) -> Auth {
        self.conn.note_refusal();
        Auth::reject()
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

fn identify(key: &PublicKey, certified: Option<&Certified>) -> Identify {
    Identify { public_key: identity(key), certificate: certified.map(|certified| certified.facts.clone()) }
}

/// Kind and body, without comment. What cannot be written is nobody's.
fn identity(key: &PublicKey) -> String {
    PublicKey::new(key.key_data().clone(), "").to_openssh().unwrap_or_default()
}
