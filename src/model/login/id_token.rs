//! What an ID token must say to be believed (OpenID Connect Core 3.1.3.7), after its signature was proven.
//!
//! The clock is an argument, so that a host whose clock steps is a value in a test.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{MAX_GROUPS, MAX_WORD};

/// Seconds by which two clocks may differ.
pub const LEEWAY: i64 = 60;
/// Longest subject, bytes: what the standard allows.
const MAX_SUBJECT: usize = 255;

/// The claims of a token whose signature is good.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Claims(Map<String, Value>);

/// What they must fit.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// The provider.
    pub issuer: &'a str,
    /// Us.
    pub client_id: &'a str,
    /// What we sent along, where the flow has one.
    pub nonce: Option<&'a str>,
}

/// Why a token is not believed. For the log: who tries it learns nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbelieved {
    /// A claim is missing or of another type.
    #[error("its claim {0} is missing or malformed")]
    Claim(&'static str),
    /// It is of another provider.
    #[error("it is of another issuer")]
    Issuer,
    /// It is for somebody else.
    #[error("it is for another audience")]
    Audience,
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// Its time has not come: one of the clocks is wrong.
    #[error("it is from the future; compare this host's clock with the provider's")]
    Early,
    /// It answers another question.
    #[error("its nonce is not the one that was sent")]
    Nonce,
}

impl Claims {
    /// A claim that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str().filter(|text| text.len() <= MAX_WORD)
    }

    /// A claim that is a list of texts, or one.
    pub fn list(&self, name: &str) -> Vec<String> {
        match self.0.get(name) {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(all)) => {
                all.iter().filter_map(Value::as_str).map(str::to_owned).take(MAX_GROUPS).collect()
            }
            _ => Vec::new(),
        }
    }

    /// True where a claim says yes.
    pub fn is_true(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// Seconds since 1970; fractions are cut.
    fn time(&self, name: &'static str) -> Result<Option<i64>, Unbelieved> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        #[expect(clippy::cast_possible_truncation, reason = "a time far out of range stays far out of range")]
        let seconds = value.as_i64().or_else(|| value.as_f64().map(|fraction| fraction as i64));
        seconds.map(Some).ok_or(Unbelieved::Claim(name))
    }

    /// The subject of a token that is to be believed now.
    ///
    /// # Errors
    /// See [`Unbelieved`].
    pub fn believe(&self, expected: Expected<'_>, now: Timestamp) -> Result<&str, Unbelieved> {
        if self.text("iss") != Some(expected.issuer) {
            return Err(Unbelieved::Issuer);
        }
        self.check_audience(expected.client_id)?;
        let now = now.as_second();
        let expires = self.time("exp")?.ok_or(Unbelieved::Claim("exp"))?;
        if expires.saturating_add(LEEWAY) <= now {
            return Err(Unbelieved::Expired);
        }
        let issued = self.time("iat")?.ok_or(Unbelieved::Claim("iat"))?;
        let begins = self.time("nbf")?.unwrap_or(issued).max(issued);
        if begins > now.saturating_add(LEEWAY) {
            return Err(Unbelieved::Early);
        }
        if expected.nonce.is_some_and(|nonce| self.text("nonce") != Some(nonce)) {
            return Err(Unbelieved::Nonce);
        }
        let subject = self.text("sub").filter(|subject| !subject.is_empty() && subject.len() <= MAX_SUBJECT);
        subject.filter(|subject| !subject.chars().any(char::is_control)).ok_or(Unbelieved::Claim("sub"))
    }

    /// The audience is us. One of several is us only where the token says that it was made for us.
    fn check_audience(&self, client_id: &str) -> Result<(), Unbelieved> {
        let audience = match self.0.get("aud") {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(all)) => {
                all.iter().map(|one| one.as_str().ok_or(Unbelieved::Claim("aud"))).collect::<Result<_, _>>()?
            }
            _ => return Err(Unbelieved::Claim("aud")),
        };
        let party = self.0.get("azp").map(|party| party.as_str().ok_or(Unbelieved::Claim("azp"))).transpose()?;
        let is_ours = audience.contains(&client_id);
        let is_for_us = party.map_or(audience.len() == 1, |party| party == client_id);
        if is_ours && is_for_us { Ok(()) } else { Err(Unbelieved::Audience) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EXPECTED: Expected<'_> = Expected { issuer: "https://op", client_id: "gvm", nonce: Some("n") };
    const NOW: i64 = 1_800_000_000;

    fn judged(change: Value) -> Result<String, Unbelieved> {
        let mut claims = json!({
            "iss": "https://op", "aud": "gvm", "sub": "s", "nonce": "n", "iat": NOW, "exp": NOW + 300,
        });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        let claims: Claims = serde_json::from_value(claims).unwrap();
        claims.believe(EXPECTED, Timestamp::from_second(NOW).unwrap()).map(str::to_owned)
    }

    #[test]
    fn a_token_for_us_now_is_believed() {
        assert_eq!(judged(json!({})), Ok("s".to_owned()));
        assert_eq!(judged(json!({"aud": ["gvm"]})), Ok("s".to_owned()));
        assert_eq!(judged(json!({"aud": ["gvm", "x"], "azp": "gvm"})), Ok("s".to_owned()));
        assert_eq!(judged(json!({"exp": NOW - LEEWAY + 1, "iat": NOW + LEEWAY})), Ok("s".to_owned()));
        assert_eq!(judged(json!({"exp": 1.9e9})), Ok("s".to_owned()));
    }

    #[test]
    fn any_other_is_not() {
        use Unbelieved as U;
        for (change, why) in [
            (json!({"iss": "https://op/"}), U::Issuer),
            (json!({"iss": ["https://op"]}), U::Issuer),
            (json!({"aud": "GVM"}), U::Audience),
            (json!({"aud": ["gvm", "x"]}), U::Audience),
            (json!({"aud": ["gvm", "x"], "azp": "x"}), U::Audience),
            (json!({"aud": "gvm", "azp": "x"}), U::Audience),
            (json!({"aud": ["gvm", 1]}), U::Claim("aud")),
            (json!({"aud": null}), U::Claim("aud")),
            (json!({"exp": NOW - LEEWAY}), U::Expired),
            (json!({"exp": null}), U::Claim("exp")),
            (json!({"exp": "never"}), U::Claim("exp")),
            (json!({"iat": NOW + LEEWAY + 1}), U::Early),
            (json!({"nbf": NOW + LEEWAY + 1}), U::Early),
            (json!({"nbf": 1e300}), U::Early),
            (json!({"nonce": "m"}), U::Nonce),
            (json!({"nonce": null}), U::Nonce),
            (json!({"sub": ""}), U::Claim("sub")),
            (json!({"sub": 7}), U::Claim("sub")),
            (json!({"sub": "a\u{0}"}), U::Claim("sub")),
            (json!({"sub": "x".repeat(256)}), U::Claim("sub")),
        ] {
            assert_eq!(judged(change.clone()), Err(why), "{change}");
        }
    }
}
