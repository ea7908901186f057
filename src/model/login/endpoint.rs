//! Where a provider listens: only what every parser of addresses reads alike is taken.

/// An address taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `https`, `ldap` and the like.
    pub scheme: String,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port, where one is named.
    pub port: Option<u16>,
    /// What follows, with its slash; perhaps empty.
    pub path: String,
}

impl Endpoint {
    /// Reads `scheme://host[:port][/path]`. No user, no query, no fragment, nothing that two parsers could read in two
    /// ways.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/:[]%+=,;!$&'()*".contains(&b);
        if !rest.bytes().all(is_plain) || scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_lowercase()) {
            return None;
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, after)
            }
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-.:".contains(&b);
        if host.is_empty() || !host.bytes().all(is_name) {
            return None;
        }
        let port = match port {
            "" => None,
            text => Some(text.strip_prefix(':')?.parse().ok()?),
        };
        Some(Self { scheme: scheme.to_owned(), host: host.to_owned(), port, path: path.to_owned() })
    }

    /// True where nobody can listen in on the way, because there is none.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// True for HTTPS, and for HTTP to this host itself.
    pub fn is_private_http(&self) -> bool {
        self.scheme == "https" || self.scheme == "http" && self.is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_clear_is_read() {
        let read = Endpoint::parse("https://login.uni.example:8443/realms/gvm").unwrap();
        assert_eq!(
            (read.host.as_str(), read.port, read.path.as_str()),
            ("login.uni.example", Some(8443), "/realms/gvm")
        );
        assert!(Endpoint::parse("http://[::1]:80").unwrap().is_private_http());
        assert!(!Endpoint::parse("http://127.0.0.1.evil.example/").unwrap().is_private_http());
        for bad in [
            "",
            "https://",
            "https://a@b/",
            "https://a\\b/",
            "https://a b",
            "https://a/?q",
            "https://a#f",
            "https://[::1",
            "https://a:99999",
            "HTTPS://a",
            "a.example",
        ] {
            assert_eq!(Endpoint::parse(bad), None, "{bad}");
        }
    }
}
