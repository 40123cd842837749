//! Proxies whose account of the client's address the server believes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::reader::SettingsReader;

/// Addresses and networks of trusted proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Reads the setting `trusted_proxies`.
    pub(super) fn read(read: &mut SettingsReader<'_>) -> Self {
        let says = "use IP addresses or networks, such as 10.0.0.5 or 10.0.0.0/24";
        let texts = read.list("trusted_proxies", |text| parse(text).is_some(), says);
        Self(texts.iter().filter_map(|text| parse(text)).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an address belongs to a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

fn parse(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(|address| address.to_canonical().into());
    text.parse().ok().or_else(address)
}

#[cfg(test)]
impl TrustedProxies {
    pub(crate) fn of(texts: &[&str]) -> Self {
        Self(texts.iter().map(|text| parse(text).unwrap()).collect())
    }
}
