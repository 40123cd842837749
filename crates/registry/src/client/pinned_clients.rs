//! HTTP clients that connect only to addresses that the outgoing policy has checked.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reqwest::{Client, Url};

use crate::error::RegistryError;
use crate::lock::lock;
use crate::outgoing::{Destination, OutgoingPolicy, OutgoingRefusal};

/// How long a checked address is used. After that, the host is resolved and checked again.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Largest number of hosts of one session. More of them replace all earlier ones.
const MAX_HOSTS: usize = 32;

/// Clients of one session by host and port.
#[derive(Default)]
pub(crate) struct PinnedClients(Mutex<HashMap<(String, u16), PinnedClient>>);

struct PinnedClient {
    destination: Destination,
    client: Client,
    checked_at: Instant,
}

impl PinnedClient {
    /// Whether two checks have found the same addresses. Resolvers rotate their order.
    fn has_addresses_of(&self, other: &Destination) -> bool {
        let sorted = |destination: &Destination| {
            let mut addresses = destination.addresses.clone();
            addresses.sort();
            addresses
        };
        sorted(&self.destination) == sorted(other)
    }
}

/// Why there is no client for a URL.
pub(crate) enum PinError {
    /// The policy refuses the host.
    Refused(OutgoingRefusal),
    /// The client cannot be made.
    Client(RegistryError),
}

impl PinnedClients {
    /// The client for a URL. It keeps its connections while the addresses stay the same.
    pub(crate) async fn client(
        &self,
        policy: &OutgoingPolicy,
        url: &Url,
        build: impl FnOnce(&Destination) -> Result<Client, RegistryError>,
    ) -> Result<Client, PinError> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let key = (host, url.port_or_known_default().unwrap_or_default());
        if let Some(pinned) = lock(&self.0).get(&key)
            && pinned.checked_at.elapsed() < MAX_AGE
        {
            return Ok(pinned.client.clone());
        }
        let destination = policy.resolve(url).await.map_err(PinError::Refused)?;
        let mut clients = lock(&self.0);
        let same = clients.get(&key).filter(|pinned| pinned.has_addresses_of(&destination));
        let client = match same {
            Some(pinned) => pinned.client.clone(),
            None => build(&destination).map_err(PinError::Client)?,
        };
        if clients.len() >= MAX_HOSTS && !clients.contains_key(&key) {
            clients.clear();
        }
        let pinned =
            PinnedClient { destination, client: client.clone(), checked_at: Instant::now() };
        clients.insert(key, pinned);
        Ok(client)
    }
}
