//! Addresses of machines and the network they live on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address, as `52:54:00:xx:xx:xx`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress(pub [u8; 6]);

/// Why a text is not an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an Ethernet address; write six pairs of hex digits such as 52:54:00:12:34:56")]
pub struct MacError(String);

impl MacAddress {
    /// An address under QEMU's prefix with the given lower 24 bits.
    pub const fn qemu(lower: [u8; 3]) -> Self {
        let [a, b, c] = lower;
        Self([0x52, 0x54, 0x00, a, b, c])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddress({self})")
    }
}

impl FromStr for MacAddress {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let wrong = || MacError(text.to_owned());
        let mut bytes = [0u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        parts.next().is_none().then_some(Self(bytes)).ok_or_else(wrong)
    }
}

impl TryFrom<String> for MacAddress {
    type Error = MacError;

    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(mac: MacAddress) -> Self {
        mac.to_string()
    }
}

/// A machine's address on the members' network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuestAddress(pub Ipv4Addr);

impl fmt::Display for GuestAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An IPv4 network: address of the gateway in it and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    base: Ipv4Addr,
    prefix: u8,
}

/// Why a text is not a usable network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a usable network; write for example 10.77.0.0/22, with a prefix of 16 to 29 and no host bits")]
pub struct SubnetError(String);

impl Subnet {
    /// The first address, given to the host.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) | 1)
    }

    /// Prefix length in bits.
    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    /// The netmask as an address.
    pub fn netmask(self) -> Ipv4Addr {
        Ipv4Addr::from(self.mask())
    }

    fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.prefix))
    }

    /// The addresses for machines, lowest first: all but network, gateway and broadcast.
    pub fn guests(self) -> impl Iterator<Item = GuestAddress> {
        let first = u32::from(self.base);
        let last = first | !self.mask();
        (first + 2..last).map(|bits| GuestAddress(Ipv4Addr::from(bits)))
    }

    /// True where the two share any address.
    pub fn overlaps(self, other_base: Ipv4Addr, other_prefix: u8) -> bool {
        let shorter = u32::from(self.prefix.min(other_prefix));
        let mask = if shorter == 0 { 0 } else { u32::MAX << (32 - shorter) };
        u32::from(self.base) & mask == u32::from(other_base) & mask
    }
}

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let wrong = || SubnetError(text.to_owned());
        let (base, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let base: Ipv4Addr = base.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let subnet = Self { base, prefix };
        let fits = (16..=29).contains(&prefix) && u32::from(base) & !subnet.mask() == 0;
        fits.then_some(subnet).ok_or_else(wrong)
    }
}

impl TryFrom<String> for Subnet {
    type Error = SubnetError;

    fn try_from(text: String) -> Result<Self, SubnetError> {
        text.parse()
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl From<Subnet> for String {
    fn from(subnet: Subnet) -> Self {
        subnet.to_string()
    }
}

/// The members' network as it should exist on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// libvirt's name of it.
    pub name: String,
    /// The bridge device, at most 15 bytes.
    pub bridge: String,
    /// Its addresses.
    pub subnet: Subnet,
}

/// One household is one IPv4 address or one IPv6 /64: within that network a stranger may have any address.
pub fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_gives_the_host_its_first_address_and_machines_the_rest() {
        let subnet: Subnet = "10.77.0.0/29".parse().unwrap();
        assert_eq!(subnet.gateway().to_string(), "10.77.0.1");
        let guests: Vec<String> = subnet.guests().map(|a| a.to_string()).collect();
        assert_eq!(guests, ["10.77.0.2", "10.77.0.3", "10.77.0.4", "10.77.0.5", "10.77.0.6"]);
        for bad in ["10.77.0.1/24", "10.0.0.0/8", "10.77.0.0/30", "x/24", "10.77.0.0"] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn overlap_is_found_whichever_is_larger() {
        let subnet: Subnet = "192.168.122.0/23".parse().unwrap();
        assert!(subnet.overlaps(Ipv4Addr::new(192, 168, 123, 0), 24));
        assert!(subnet.overlaps(Ipv4Addr::new(192, 168, 0, 0), 16));
        assert!(!subnet.overlaps(Ipv4Addr::new(10, 200, 0, 0), 24));
    }

    #[test]
    fn mac_addresses_round_trip() {
        let mac: MacAddress = "52:54:00:0A:0b:0c".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:0a:0b:0c");
        assert!("52:54:00:0a:0b".parse::<MacAddress>().is_err());
        assert!("52:54:00:0a:0b:0c:0d".parse::<MacAddress>().is_err());
    }
}
