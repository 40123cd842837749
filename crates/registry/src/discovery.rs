//! Discovery of mirrors on the local network by DNS-SD over multicast DNS: `_puna-mirror._tcp`.
//!
//! The TXT properties complete the address: `scheme` is `http` or `https`, and `host` is the name
//! in the certificate. Any machine can announce a mirror, so the user must confirm a discovered
//! one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use mdns_sd::{ServiceDaemon, ServiceEvent, ServiceInfo};

use crate::display::single_line;
use crate::error::{RegistryError, SetupProblem};

/// DNS-SD service type of mirrors.
pub const MIRROR_SERVICE: &str = "_puna-mirror._tcp.local.";

/// Largest number of discovered mirrors.
const MAX_MIRRORS: usize = 32;
/// Largest length of a mirror's name, in characters.
const MAX_NAME_CHARS: usize = 80;

/// Mirror found on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredMirror {
    /// Name that the mirror announces.
    pub name: String,
    /// Address in the form that settings and `--mirror` take.
    pub address: String,
}

/// Listens for `wait` and returns the mirrors that answer, sorted by name. Blocks for that time.
///
/// # Errors
/// The network cannot be used.
pub fn discover_mirrors(wait: Duration) -> Result<Vec<DiscoveredMirror>, RegistryError> {
    browse(ServiceDaemon::new(), wait)
}

fn browse(
    daemon: mdns_sd::Result<ServiceDaemon>,
    wait: Duration,
) -> Result<Vec<DiscoveredMirror>, RegistryError> {
    let error = |e: mdns_sd::Error| SetupProblem::Discovery { reason: e.to_string() };
    let daemon = daemon.map_err(error)?;
    let events = daemon.browse(MIRROR_SERVICE).map_err(error)?;
    let deadline = Instant::now() + wait;
    let mut mirrors = BTreeMap::new();
    while mirrors.len() < MAX_MIRRORS
        && let Ok(event) = events.recv_deadline(deadline)
    {
        let ServiceEvent::ServiceResolved(service) = event else { continue };
        let property = |key: &str| service.txt_properties.get_property_val_str(key);
        let addresses = service.addresses.iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
        let name = service.fullname.strip_suffix(MIRROR_SERVICE).unwrap_or(&service.fullname);
        let name = single_line(name.trim_end_matches('.'), MAX_NAME_CHARS);
        if let Some(address) =
            record_address(property("scheme"), property("host"), addresses, service.port)
        {
            mirrors.insert(name.clone(), DiscoveredMirror { name, address });
        }
    }
    // The daemon stops in the background.
    let _ = daemon.shutdown();
    Ok(mirrors.into_values().collect())
}

/// Announcement of a mirror, withdrawn on drop.
pub struct Announcement(ServiceDaemon, String);

impl Drop for Announcement {
    fn drop(&mut self) {
        // Sends the withdrawal to listeners, waiting at most this long.
        if let Ok(unregistered) = self.0.unregister(&self.1) {
            let _ = unregistered.recv_timeout(Duration::from_millis(500));
        }
        let _ = self.0.shutdown();
    }
}

/// Announces a mirror at a port of this machine. `name` is the machine's name. `tls_host` is the
/// host name of its certificate if it uses TLS.
///
/// # Errors
/// The network cannot be used.
pub fn announce(
    name: &str,
    port: u16,
    tls_host: Option<&str>,
) -> Result<Announcement, RegistryError> {
    register(ServiceDaemon::new(), name, port, tls_host)
}

fn register(
    daemon: mdns_sd::Result<ServiceDaemon>,
    name: &str,
    port: u16,
    tls_host: Option<&str>,
) -> Result<Announcement, RegistryError> {
    let error = |e: mdns_sd::Error| SetupProblem::Announcement { reason: e.to_string() };
    let daemon = daemon.map_err(error)?;
    let label: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect();
    let scheme = if tls_host.is_some() { "https" } else { "http" };
    let properties: Vec<(&str, &str)> =
        [("scheme", scheme)].into_iter().chain(tls_host.map(|host| ("host", host))).collect();
    // The port distinguishes two mirrors of one machine.
    let instance = format!("{label}-{port}");
    let host = format!("{label}-{port}.local.");
    let service = ServiceInfo::new(MIRROR_SERVICE, &instance, &host, "", port, &properties[..])
        .map_err(error)?;
    let service = service.enable_addr_auto();
    let full_name = service.get_fullname().to_owned();
    daemon.register(service).map_err(error)?;
    Ok(Announcement(daemon, full_name))
}

/// The address of a record. `None`: the record is invalid.
fn record_address(
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
    // IPv4 addresses need no zone, so they come first.
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
    fn an_announced_mirror_is_discovered_until_it_is_withdrawn() {
        // The test uses loopback and a private port, so that it does not depend on the network.
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let daemon = || -> mdns_sd::Result<ServiceDaemon> {
            let daemon = ServiceDaemon::new_with_port(port)?;
            daemon.disable_interface(IfKind::All)?;
            daemon.enable_interface(IfKind::LoopbackV4)?;
            Ok(daemon)
        };
        // A permanent listener, since a new one does not hear about earlier withdrawals.
        let listener = daemon().unwrap();
        let events = listener.browse(MIRROR_SERVICE).unwrap();
        let hears = |wanted: &dyn Fn(&ServiceEvent) -> bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            std::iter::from_fn(|| events.recv_deadline(deadline).ok()).any(|event| wanted(&event))
        };
        let announcement =
            register(daemon(), "puna test machine", 4711, Some("models.intra")).unwrap();
        let mirror = DiscoveredMirror {
            name: "puna-test-machine-4711".into(),
            address: "https://models.intra:4711".into(),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while browse(daemon(), Duration::from_millis(500)).unwrap() != [mirror.clone()] {
            assert!(Instant::now() < deadline, "nobody hears of it");
        }
        let full_name = format!("{}.{MIRROR_SERVICE}", mirror.name);
        let is_there = |event: &ServiceEvent| matches!(event, ServiceEvent::ServiceResolved(it) if it.fullname == full_name);
        assert!(hears(&is_there), "the listener does not hear of it");
        drop(announcement);
        let is_gone = |event: &ServiceEvent| matches!(event, ServiceEvent::ServiceRemoved(_, it) if *it == full_name);
        assert!(hears(&is_gone), "nobody is told that it is gone");
        let _ = listener.shutdown();
    }

    #[test]
    fn service_records_give_addresses_or_are_refused() {
        let four: IpAddr = "192.168.1.5".parse().unwrap();
        let six: IpAddr = "fe80::1".parse().unwrap();
        let parse = |scheme, host, addresses: &[IpAddr], port| {
            record_address(scheme, host, addresses.to_vec(), port)
        };
        assert_eq!(parse(None, None, &[six, four], 5000).unwrap(), "http://192.168.1.5:5000");
        assert_eq!(parse(Some("http"), None, &[six], 5000).unwrap(), "http://[fe80::1]:5000");
        assert_eq!(
            parse(Some("https"), Some("m.intra"), &[four], 443).unwrap(),
            "https://m.intra:443"
        );
        assert_eq!(parse(None, Some("a/b@evil"), &[four], 1).unwrap(), "http://192.168.1.5:1");
        assert_eq!(parse(Some("file"), None, &[four], 1), None);
        assert_eq!(parse(None, None, &[], 1), None);
        assert_eq!(parse(None, None, &[four], 0), None);
    }
}
