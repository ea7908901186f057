//! Cookies of the page. A browser sends them with whatever makes it ask, so a request that changes something is taken only
//! where the browser says that it was our own page.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, header};

use crate::manager::ManagerError;

/// The session. With this prefix a browser takes it only over HTTPS, for this host alone.
pub(super) const SESSION: &str = "__Host-gvm_session";
/// What binds a login under way to its browser.
pub(super) const LOGIN: &str = "__Host-gvm_login";

/// The value of a cookie; none where it is there twice.
pub(super) fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut found = lines
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The token of a session's cookie, where there is one and it may count for this request.
///
/// # Errors
/// Where another page made the browser ask.
pub(super) fn session(parts: &Parts) -> Result<Option<&str>, ManagerError> {
    let Some(token) = value(&parts.headers, SESSION) else { return Ok(None) };
    let is_change = ![Method::GET, Method::HEAD].contains(&parts.method) || parts.headers.contains_key(header::UPGRADE);
    if is_change && !is_our_page(&parts.headers) {
        return Err(ManagerError::denied("another page made your browser ask for this")
            .hint("open gvm's own page, or send a token: authorization: Bearer TOKEN"));
    }
    Ok(Some(token))
}

fn is_our_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match text("sec-fetch-site") {
        Some(site) => ["same-origin", "none"].contains(&site),
        // A browser of before: it tells at least the page that asks.
        None => match (text("origin"), text("host")) {
            (Some(origin), Some(host)) => origin.strip_prefix("https://").is_some_and(|page| page == host),
            _ => false,
        },
    }
}

/// The header that sets a cookie for so many seconds; 0 takes it away.
pub(super) fn set(name: &str, value: &str, seconds: u64) -> Option<HeaderValue> {
    let text = format!("{name}={value}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={seconds}");
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn judged(method: &str, headers: &[(&str, &str)]) -> Result<Option<String>, bool> {
        let mut request = Request::builder().method(method).uri("/").header("cookie", "a=b; __Host-gvm_session=t");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        session(&parts).map(|token| token.map(str::to_owned)).map_err(|_| false)
    }

    #[test]
    fn a_cookie_counts_for_changes_only_of_our_own_page() {
        let good = Ok(Some("t".to_owned()));
        assert_eq!(judged("GET", &[]), good);
        assert_eq!(
            judged("GET", &[("sec-fetch-site", "cross-site")]),
            good,
            "it changes nothing and shows them nothing"
        );
        for (name, headers) in [
            ("same-origin", &[("sec-fetch-site", "same-origin")][..]),
            ("typed", &[("sec-fetch-site", "none")]),
            ("old browser", &[("origin", "https://gvm.example"), ("host", "gvm.example")]),
        ] {
            assert_eq!(judged("POST", headers), good, "{name}");
        }
        for (method, headers) in [
            ("POST", &[][..]),
            ("POST", &[("sec-fetch-site", "same-site")]),
            ("DELETE", &[("sec-fetch-site", "cross-site"), ("origin", "https://gvm.example"), ("host", "gvm.example")]),
            ("POST", &[("origin", "https://evil.example"), ("host", "gvm.example")]),
            ("POST", &[("origin", "http://gvm.example"), ("host", "gvm.example")]),
            ("POST", &[("origin", "null"), ("host", "gvm.example")]),
            // A WebSocket of another page would type on a console.
            ("GET", &[("upgrade", "websocket"), ("origin", "https://evil.example"), ("host", "gvm.example")]),
        ] {
            assert_eq!(judged(method, headers), Err(false), "{method} {headers:?}");
        }
        assert_eq!(judged("GET", &[("cookie", "__Host-gvm_session=u")]), Ok(None), "which of two is not clear");
    }
}
