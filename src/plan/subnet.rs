//! Whether the members' network collides with one that the host knows already.
//!
//! libvirt finds some of the collisions when it starts a network; a partial overlap is not found, and then some
//! hosts cannot be reached any more from this one.

use crate::model::host::Route;
use crate::model::network::{NetworkSpec, Subnet};

/// The first route that shares addresses with the network; those of its own bridge do not count.
pub fn conflict<'a>(network: &NetworkSpec, routes: &'a [Route]) -> Option<&'a Route> {
    let foreign = routes.iter().filter(|route| route.device != network.bridge);
    foreign.into_iter().find(|route| network.subnet.overlaps(route.base, route.prefix))
}

/// A network of the same size that shares no address with any route, out of the private ranges.
pub fn free(network: &NetworkSpec, routes: &[Route]) -> Option<Subnet> {
    let prefix = network.subnet.prefix();
    let tens = (77..=250).map(|n| format!("10.{n}.0.0/{prefix}"));
    let others = (16..=31).map(|n| format!("172.{n}.0.0/{prefix}"));
    let candidates = tens.chain(others).chain([format!("192.168.0.0/{prefix}")]);
    candidates
        .filter_map(|text| text.parse::<Subnet>().ok())
        .find(|subnet| conflict(&NetworkSpec { subnet: *subnet, ..network.clone() }, routes).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Route {
        let (network, device) = text.split_once(' ').unwrap();
        let (base, prefix) = network.split_once('/').unwrap();
        Route { base: base.parse().unwrap(), prefix: prefix.parse().unwrap(), device: device.to_owned() }
    }

    fn network(subnet: &str) -> NetworkSpec {
        NetworkSpec { name: "gvm".to_owned(), bridge: "gvmbr0".to_owned(), subnet: subnet.parse().unwrap() }
    }

    #[test]
    fn whole_and_partial_overlaps_are_found() {
        let routes = ["192.168.122.0/24 br0", "10.8.0.0/16 wg0", "172.17.0.0/16 docker0"].map(route);
        for (subnet, device) in [
            ("192.168.122.128/25", Some("br0")),
            ("10.8.4.0/24", Some("wg0")),
            ("192.168.122.0/23", Some("br0")),
            ("10.200.0.0/24", None),
        ] {
            assert_eq!(conflict(&network(subnet), &routes).map(|r| r.device.as_str()), device, "{subnet}");
        }
        // Our own bridge, and a single address of a foreign one.
        assert_eq!(conflict(&network("10.77.0.0/20"), &[route("10.77.0.0/20 gvmbr0")]), None);
        assert!(conflict(&network("10.77.0.0/20"), &[route("10.77.3.9/32 tun0")]).is_some());
    }

    #[test]
    fn a_free_network_is_proposed() {
        let proposed = |routes: &[Route]| free(&network("10.77.0.0/20"), routes).map(|s| s.to_string());
        assert_eq!(proposed(&[route("10.77.0.0/16 x")]).as_deref(), Some("10.78.0.0/20"));
        assert_eq!(proposed(&[route("10.0.0.0/8 x")]).as_deref(), Some("172.16.0.0/20"));
        assert_eq!(proposed(&["0.0.0.0/2 x", "128.0.0.0/1 x"].map(route)), None);
    }
}
