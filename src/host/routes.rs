//! The networks that a host knows, from `ip -j`. Pure parsing; [`super::facts`] runs the program.

use std::net::Ipv4Addr;

use serde::Deserialize;

use crate::model::host::Route;

/// One route as `ip -j -4 route show table all` says it.
#[derive(Debug, Deserialize)]
struct RouteLine {
    #[serde(default)]
    dst: String,
    #[serde(default)]
    dev: String,
    #[serde(default, rename = "type")]
    kind: String,
}

/// Reads all networks that are reached or stand for an address of this host: of every table, because VPNs use
/// tables of their own. Left out are the default route, the loopback device and what is no unicast.
///
/// # Errors
/// Where the text is not what `ip` writes.
pub fn parse(json: &str) -> Result<Vec<Route>, serde_json::Error> {
    // An empty table is written as nothing at all.
    let lines: Vec<RouteLine> = if json.trim().is_empty() { Vec::new() } else { serde_json::from_str(json)? };
    let mut routes: Vec<Route> = Vec::new();
    for line in lines {
        let is_noise = line.dev == "lo" || ["broadcast", "multicast", "anycast", "nat"].contains(&line.kind.as_str());
        if is_noise {
            continue;
        }
        let (base, prefix) = line.dst.split_once('/').unwrap_or((&line.dst, "32"));
        let (Ok(base), Ok(prefix)) = (base.parse::<Ipv4Addr>(), prefix.parse::<u8>()) else { continue };
        // The default route and halves of it that VPNs use overlap with everything and hinder nothing.
        if prefix <= 1 || prefix > 32 {
            continue;
        }
        let route = Route { base, prefix, device: line.dev };
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_collide_is_kept() {
        let json = r#"[
            {"dst":"default","gateway":"192.0.2.1","dev":"eth0","flags":[]},
            {"dst":"0.0.0.0/1","dev":"tun0"},
            {"dst":"192.168.122.0/24","dev":"br0","protocol":"kernel"},
            {"dst":"10.8.0.0/16","dev":"wg0","table":"51820"},
            {"type":"blackhole","dst":"10.99.0.0/16"},
            {"type":"local","dst":"192.168.122.1","dev":"br0","table":"local"},
            {"type":"local","dst":"127.0.0.0/8","dev":"lo","table":"local"},
            {"type":"broadcast","dst":"192.168.122.255","dev":"br0","table":"local"},
            {"dst":"192.168.122.0/24","dev":"br0"}
        ]"#;
        let shown: Vec<String> =
            parse(json).unwrap().iter().map(|r| format!("{}/{} {}", r.base, r.prefix, r.device)).collect();
        assert_eq!(shown, ["192.168.122.0/24 br0", "10.8.0.0/16 wg0", "10.99.0.0/16 ", "192.168.122.1/32 br0"]);
        assert_eq!(parse("").unwrap(), []);
        assert!(parse("Error").is_err());
    }
}
