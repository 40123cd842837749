//! Mirrors that announce themselves on the network, by DNS service discovery over multicast: `_puna-mirror._tcp`.
//!
//! The record's properties say what its address does not: `scheme` is `http` or `https`, and `host` the name that a
//! certificate is for. Anybody on a network can announce anything, so that somebody must say yes to what is found.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mdns_sd::{ServiceDaemon, ServiceEvent, ServiceInfo};

use crate::address::plain;
use crate::error::RegistryError;

/// What mirrors announce themselves as.
pub const MIRROR_SERVICE: &str = "_puna-mirror._tcp.local.";

/// Mirrors that are listened to at most.
const MOST: usize = 32;
/// Characters of a name at most.
const NAME: usize = 80;

/// A mirror that has announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// What it calls itself.
    pub name: String,
    /// Its address, as a setting or `--mirror` has it.
    pub address: String,
}

/// The mirrors that answer within a time, by name. Blocks as long.
///
/// # Errors
/// The network cannot be asked.
pub fn announced(wait: Duration) -> Result<Vec<Announced>, RegistryError> {
    look(ServiceDaemon::new(), wait)
}

fn look(
    daemon: mdns_sd::Result<ServiceDaemon>,
    wait: Duration,
) -> Result<Vec<Announced>, RegistryError> {
    let fail =
        |e: mdns_sd::Error| RegistryError::Setup(format!("mirrors cannot be looked for: {e}"));
    let daemon = daemon.map_err(fail)?;
    let answers = daemon.browse(MIRROR_SERVICE).map_err(fail)?;
    let until = Instant::now() + wait;
    let mut found = BTreeMap::new();
    while found.len() < MOST
        && let Ok(event) = answers.recv_deadline(until)
    {
        let ServiceEvent::ServiceResolved(service) = event else { continue };
        let property = |key: &str| service.txt_properties.get_property_val_str(key);
        let addresses = service.addresses.iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
        let name = service.fullname.strip_suffix(MIRROR_SERVICE).unwrap_or(&service.fullname);
        let name = plain(name.trim_end_matches('.'), NAME);
        if let Some(address) =
            address(property("scheme"), property("host"), addresses, service.port)
        {
            found.insert(name.clone(), Announced { name, address });
        }
    }
    // It ends on its own, too; nobody waits for that.
    let _ = daemon.shutdown();
    Ok(found.into_values().collect())
}

/// A mirror that is announced as long as this is held.
pub struct Announcement(ServiceDaemon, String);

impl Drop for Announcement {
    fn drop(&mut self) {
        // Who listens is told that it is gone; nobody waits longer than for that.
        if let Ok(told) = self.0.unregister(&self.1) {
            let _ = told.recv_timeout(Duration::from_millis(500));
        }
        let _ = self.0.shutdown();
    }
}

/// Announces a mirror at a port of this machine: `name` is what people call the machine, `secure` the host that its certificate
/// is for, where it speaks TLS.
///
/// # Errors
/// The network cannot be told.
pub fn announce(
    name: &str,
    port: u16,
    secure: Option<&str>,
) -> Result<Announcement, RegistryError> {
    say(ServiceDaemon::new(), name, port, secure)
}

fn say(
    daemon: mdns_sd::Result<ServiceDaemon>,
    name: &str,
    port: u16,
    secure: Option<&str>,
) -> Result<Announcement, RegistryError> {
    let fail =
        |e: mdns_sd::Error| RegistryError::Setup(format!("the mirror cannot be announced: {e}"));
    let daemon = daemon.map_err(fail)?;
    let label: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    let scheme = if secure.is_some() { "https" } else { "http" };
    let properties: Vec<(&str, &str)> =
        [("scheme", scheme)].into_iter().chain(secure.map(|host| ("host", host))).collect();
    // Two mirrors of one machine are told apart by their ports.
    let instance = format!("{label}-{port}");
    let host = format!("{label}-{port}.local.");
    let service = ServiceInfo::new(MIRROR_SERVICE, &instance, &host, "", port, &properties[..])
        .map_err(fail)?;
    let service = service.enable_addr_auto();
    let full = service.get_fullname().to_owned();
    daemon.register(service).map_err(fail)?;
    Ok(Announcement(daemon, full))
}

/// The address of a record; `None` where it makes none.
fn address(
    scheme: Option<&str>,
    host: Option<&str>,
    addresses: Vec<IpAddr>,
    port: u16,
) -> Option<String> {
    let scheme = match scheme {
        None | Some("http") => "http",
        Some("https") => "https",
        Some(_) => return None,
    };
    let is_name = |host: &&str| {
        !host.is_empty()
            && host.len() <= 253
            && host.bytes().all(|c| c.is_ascii_alphanumeric() || b"-.".contains(&c))
    };
    // Addresses of the older kind need no zone.
    let number = addresses.iter().find(|ip| ip.is_ipv4()).or(addresses.first());
    let host = match (host.filter(is_name), number?) {
        (Some(name), _) => name.to_owned(),
        (None, IpAddr::V4(ip)) => ip.to_string(),
        (None, IpAddr::V6(ip)) => format!("[{ip}]"),
    };
    (port > 0).then(|| format!("{scheme}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use mdns_sd::IfKind;

    use super::*;

    #[test]
    fn what_is_announced_is_found_until_it_is_withdrawn() {
        // Within this machine, at a port of its own: what else is on the network, or that there is none, does not matter.
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let daemon = || -> mdns_sd::Result<ServiceDaemon> {
            let daemon = ServiceDaemon::new_with_port(port)?;
            daemon.disable_interface(IfKind::All)?;
            daemon.enable_interface(IfKind::LoopbackV4)?;
            Ok(daemon)
        };
        // One who listens all the time: whoever comes later hears of nobody who is gone, told or not.
        let listener = daemon().unwrap();
        let events = listener.browse(MIRROR_SERVICE).unwrap();
        let hears = |wanted: &dyn Fn(&ServiceEvent) -> bool| {
            let until = Instant::now() + Duration::from_secs(20);
            std::iter::from_fn(|| events.recv_deadline(until).ok()).any(|event| wanted(&event))
        };
        let announcement = say(daemon(), "puna test machine", 4711, Some("models.intra")).unwrap();
        let mirror = Announced {
            name: "puna-test-machine-4711".into(),
            address: "https://models.intra:4711".into(),
        };
        let until = Instant::now() + Duration::from_secs(20);
        while look(daemon(), Duration::from_millis(500)).unwrap() != [mirror.clone()] {
            assert!(Instant::now() < until, "nobody hears of it");
        }
        let full = format!("{}.{MIRROR_SERVICE}", mirror.name);
        let is_there = |event: &ServiceEvent| matches!(event, ServiceEvent::ServiceResolved(it) if it.fullname == full);
        assert!(hears(&is_there), "the listener does not hear of it");
        drop(announcement);
        let is_gone = |event: &ServiceEvent| matches!(event, ServiceEvent::ServiceRemoved(_, it) if *it == full);
        assert!(hears(&is_gone), "nobody is told that it is gone");
        let _ = listener.shutdown();
    }

    #[test]
    fn records_make_addresses_or_none() {
        let four: IpAddr = "192.168.1.5".parse().unwrap();
        let six: IpAddr = "fe80::1".parse().unwrap();
        let of = |scheme, host, addresses: &[IpAddr], port| {
            address(scheme, host, addresses.to_vec(), port)
        };
        assert_eq!(of(None, None, &[six, four], 5000).unwrap(), "http://192.168.1.5:5000");
        assert_eq!(of(Some("http"), None, &[six], 5000).unwrap(), "http://[fe80::1]:5000");
        assert_eq!(
            of(Some("https"), Some("m.intra"), &[four], 443).unwrap(),
            "https://m.intra:443"
        );
        assert_eq!(of(None, Some("a/b@evil"), &[four], 1).unwrap(), "http://192.168.1.5:1");
        assert_eq!(of(Some("file"), None, &[four], 1), None);
        assert_eq!(of(None, None, &[], 1), None);
        assert_eq!(of(None, None, &[four], 0), None);
    }
}
