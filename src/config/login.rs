//! `[login]`: services that vouch for who somebody is. Each part that is absent is off.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::login::GroupMap;
use crate::model::login::endpoint::Endpoint;

/// Logins beside the socket, tokens and SSH keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoginConfig {
    /// Who logs in for the first time becomes a member; otherwise only whom an administrator has linked may.
    pub add_members: bool,
    /// What groups of the provider mean here.
    pub groups: GroupMap,
    /// The institution's OpenID Connect provider.
    pub oidc: Option<OidcConfig>,
    /// A directory.
    pub ldap: Option<LdapConfig>,
    /// The host's own logins.
    pub pam: Option<PamConfig>,
}

impl Default for LoginConfig {
    fn default() -> Self {
        Self { add_members: true, groups: GroupMap::default(), oidc: None, ldap: None, pam: None }
    }
}

/// An OpenID Connect provider, and gvm as its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OidcConfig {
    /// The provider's issuer, exactly as it says it itself.
    pub issuer: String,
    /// gvm's name there.
    pub client_id: String,
    /// A file with the client's secret, for its owner's eyes only; absent for a public client.
    pub client_secret_file: Option<PathBuf>,
    /// How browsers reach the manager, such as `https://gvm.uni.example`; absent means no login with a browser alone.
    pub public_url: Option<String>,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// The claim that the name is derived from.
    pub name_claim: String,
    /// The claim with the name for people.
    pub full_name_claim: String,
    /// The claim with the groups.
    pub group_claim: String,
    /// Only who has a verified mail address there; empty means everybody.
    pub allowed_domains: Vec<String>,
}

impl Default for OidcConfig {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            client_id: String::new(),
            client_secret_file: None,
            public_url: None,
            scopes: ["openid", "profile", "email"].map(str::to_owned).into(),
            name_claim: "preferred_username".to_owned(),
            full_name_claim: "name".to_owned(),
            group_claim: "groups".to_owned(),
            allowed_domains: Vec::new(),
        }
    }
}

/// A directory, and how people are found in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LdapConfig {
    /// `ldaps://host`, or `ldap://host` with StartTLS.
    pub url: String,
    /// Begin TLS on a plain connection.
    pub starttls: bool,
    /// The authorities that may have signed its certificate.
    pub ca_file: PathBuf,
    /// Who searches; absent means nobody in particular.
    pub bind_dn: Option<String>,
    /// A file with the searcher's password, for its owner's eyes only.
    pub bind_password_file: Option<PathBuf>,
    /// Where people are.
    pub base: String,
    /// Finds the one whose login is `{user}`.
    pub user_filter: String,
    /// The attribute that the name is derived from.
    pub name_attribute: String,
    /// The attribute with the name for people.
    pub full_name_attribute: String,
    /// The attribute with the groups.
    pub group_attribute: String,
    /// The attribute that never changes and is never given again; absent means the entry's name.
    pub subject_attribute: Option<String>,
}

impl Default for LdapConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            starttls: false,
            ca_file: "/etc/ssl/certs/ca-certificates.crt".into(),
            bind_dn: None,
            bind_password_file: None,
            base: String::new(),
            user_filter: "(uid={user})".to_owned(),
            name_attribute: "uid".to_owned(),
            full_name_attribute: "cn".to_owned(),
            group_attribute: "memberOf".to_owned(),
            subject_attribute: None,
        }
    }
}

/// The host's own logins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PamConfig {
    /// The service: a file in `/etc/pam.d`.
    pub service: String,
    /// Another folder than `/etc/pam.d`, for trying a stack out.
    pub confdir: Option<PathBuf>,
    /// The program with the helper mode, where it is not this one. No key of the file.
    #[serde(skip)]
    pub helper: Option<PathBuf>,
}

impl Default for PamConfig {
    fn default() -> Self {
        Self { service: "gvm".to_owned(), confdir: None, helper: None }
    }
}

type Fault = (&'static str, String);

fn absolute(key: &'static str, path: Option<&PathBuf>) -> Result<(), Fault> {
    match path.filter(|path| !path.is_absolute()) {
        Some(path) => Err((key, format!("{} is not an absolute path", path.display()))),
        None => Ok(()),
    }
}

fn filled(key: &'static str, text: &str) -> Result<(), Fault> {
    if text.trim().is_empty() { Err((key, "it is missing".to_owned())) } else { Ok(()) }
}

impl LoginConfig {
    /// What cannot be used, by its key.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.oidc.as_ref().map_or(Ok(()), OidcConfig::check)?;
        self.ldap.as_ref().map_or(Ok(()), LdapConfig::check)?;
        self.pam.as_ref().map_or(Ok(()), PamConfig::check)
    }
}

impl OidcConfig {
    fn check(&self) -> Result<(), Fault> {
        let private = |key, text: &str| match Endpoint::parse(text).filter(Endpoint::is_private_http) {
            Some(endpoint) => Ok(endpoint),
            None => Err((key, format!("{text:?} is no https:// address (http:// only to this host itself)"))),
        };
        private("login.oidc.issuer", &self.issuer)?;
        if let Some(url) = &self.public_url
            && !private("login.oidc.public_url", url)?.path.trim_end_matches('/').is_empty()
        {
            return Err(("login.oidc.public_url", format!("{url:?} has a path; gvm answers at the top of a host")));
        }
        filled("login.oidc.client_id", &self.client_id)?;
        if !self.scopes.iter().any(|scope| scope == "openid") {
            return Err(("login.oidc.scopes", "\"openid\" is missing, without which nobody says who it is".to_owned()));
        }
        absolute("login.oidc.client_secret_file", self.client_secret_file.as_ref())
    }
}

impl LdapConfig {
    fn check(&self) -> Result<(), Fault> {
        let endpoint = Endpoint::parse(&self.url).filter(|endpoint| ["", "/"].contains(&endpoint.path.as_str()));
        match endpoint.as_ref().map(|endpoint| (endpoint.scheme.as_str(), endpoint.is_loopback())) {
            Some(("ldaps", _)) if !self.starttls => {}
            Some(("ldap", is_loopback)) if self.starttls || is_loopback => {}
            Some(("ldap", _)) => {
                let text = "passwords would go over the network in the clear; use ldaps://, or starttls = true";
                return Err(("login.ldap.url", text.to_owned()));
            }
            Some(("ldaps", _)) => {
                return Err(("login.ldap.starttls", "ldaps:// is TLS from its first byte; leave it out".to_owned()));
            }
            _ => return Err(("login.ldap.url", format!("{:?} is neither ldaps://HOST nor ldap://HOST", self.url))),
        }
        filled("login.ldap.base", &self.base)?;
        if !self.user_filter.contains("{user}") || !self.user_filter.starts_with('(') {
            return Err(("login.ldap.user_filter", "it finds nobody; write it such as \"(uid={user})\"".to_owned()));
        }
        if self.bind_dn.is_some() != self.bind_password_file.is_some() {
            return Err(("login.ldap.bind_password_file", "bind_dn and bind_password_file belong together".to_owned()));
        }
        absolute("login.ldap.bind_password_file", self.bind_password_file.as_ref())?;
        absolute("login.ldap.ca_file", Some(&self.ca_file))
    }
}

impl PamConfig {
    fn check(&self) -> Result<(), Fault> {
        let is_word = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if self.service.is_empty() || self.service.len() > 64 || !self.service.bytes().all(is_word) {
            return Err(("login.pam.service", format!("{:?} is no name of a file in /etc/pam.d", self.service)));
        }
        absolute("login.pam.confdir", self.confdir.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn fault(text: &str) -> String {
        Config::parse(text, Path::new("gvm.toml")).unwrap_err().to_string()
    }

    const OIDC: &str = "[login.oidc]\nclient_id = 'gvm'\nissuer = ";
    const LDAP: &str = "[login.ldap]\nbase = 'dc=x'\nurl = ";

    #[test]
    fn what_would_not_be_safe_is_refused_by_its_key() {
        for text in ["'http://op.example'", "'https://a@op.example'", "'ftp://127.0.0.1'", "''"] {
            assert!(fault(&format!("{OIDC}{text}")).contains("login.oidc.issuer"), "{text}");
        }
        assert!(fault(&format!("{OIDC}'https://op'\nscopes = ['email']")).contains("login.oidc.scopes"));
        assert!(fault(&format!("{OIDC}'https://op'\nclient_secret = 'x'")).contains("unknown field"));
        assert!(fault(&format!("{OIDC}'https://op'\npublic_url = 'https://x/gvm'")).contains("login.oidc.public_url"));
        assert!(fault(&format!("{LDAP}'ldap://ds.example'")).contains("in the clear"));
        assert!(fault(&format!("{LDAP}'ldaps://ds.example'\nstarttls = true")).contains("login.ldap.starttls"));
        assert!(fault(&format!("{LDAP}'ldaps://h'\nuser_filter = '(uid=eve)'")).contains("login.ldap.user_filter"));
        assert!(fault(&format!("{LDAP}'ldaps://h'\nbind_dn = 'cn=x'")).contains("login.ldap.bind_password_file"));
        assert!(fault("[login.pam]\nservice = '../x'").contains("login.pam.service"));
        for good in [
            format!("{OIDC}'https://op.example/realms/x'\npublic_url = 'https://gvm.example/'"),
            format!("{OIDC}'http://127.0.0.1:7000'"),
            format!("{LDAP}'ldap://127.0.0.1:389'"),
            format!("{LDAP}'ldap://ds.example'\nstarttls = true"),
            "[login.pam]".to_owned(),
        ] {
            Config::parse(&good, Path::new("x")).unwrap();
        }
    }
}
