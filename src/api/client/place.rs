//! Where a manager listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of HTTPS.
const HTTPS_PORT: u16 = 443;

/// Where a manager listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this host.
    Socket(PathBuf),
    /// On another.
    Url(ServerUrl),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => f.pad(&path.display().to_string()),
            Self::Url(url) => f.pad(url.as_str()),
        }
    }
}

/// `https://HOST[:PORT]`, always written the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerUrl(String);

/// Why a text is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Without TLS.
    #[error("{0:?} would send your token in clear; write https://")]
    Clear(String),
    /// Anything else.
    #[error("{0:?} is no address of a manager; write https://HOST or https://HOST:PORT")]
    Form(String),
}

impl ServerUrl {
    /// The URL without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host's name or address, without brackets.
    pub fn host(&self) -> &str {
        let place = self.0.strip_prefix("https://").unwrap_or(&self.0);
        match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => place.split(':').next().unwrap_or(place),
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for ServerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        // What is no URL may be anything, even a token.
        let wrong = || UrlError::Form(text.chars().take(40).collect());
        let lower = text.trim().to_lowercase();
        if lower.starts_with("http://") {
            return Err(UrlError::Clear(text.chars().take(40).collect()));
        }
        let place = lower.strip_prefix("https://").ok_or_else(wrong)?;
        let place = place.strip_suffix('/').unwrap_or(place);
        let url = reqwest::Url::parse(&format!("https://{place}")).map_err(|_| wrong())?;
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        if !is_bare || !url.username().is_empty() || url.password().is_some() || place.contains(['?', '#', '@']) {
            return Err(wrong());
        }
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let port = url.port_or_known_default().unwrap_or(HTTPS_PORT);
        Ok(Self(if port == HTTPS_PORT { format!("https://{host}") } else { format!("https://{host}:{port}") }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_a_host_and_a_port_and_written_one_way() {
        for (text, url, host) in [
            ("https://gpu.example", "https://gpu.example", "gpu.example"),
            ("https://GPU.example:443/", "https://gpu.example", "gpu.example"),
            ("https://gpu.example:8443", "https://gpu.example:8443", "gpu.example"),
            ("https://[::1]:8443", "https://[::1]:8443", "::1"),
            ("https://192.0.2.1", "https://192.0.2.1", "192.0.2.1"),
        ] {
            let parsed = text.parse::<ServerUrl>().unwrap();
            assert_eq!((parsed.as_str(), parsed.host()), (url, host));
        }
        assert!(matches!("http://gpu.example".parse::<ServerUrl>(), Err(UrlError::Clear(_))));
        for bad in ["", "gpu.example", "https://", "https://a/b", "https://a?x", "https://u:p@a", "https://a:99999"] {
            assert!(matches!(bad.parse::<ServerUrl>(), Err(UrlError::Form(_))), "{bad}");
        }
    }
}
