//! Checks of the hosts that a request names, before an operation starts.

use puna_store::ModelRef;
use reqwest::Url;

use crate::Registry;
use crate::client::endpoint::Endpoint;
use crate::client::settings::Options;
use crate::error::RegistryError;
use crate::outgoing::{OutgoingAccess, OutgoingPolicy, OutgoingRefusal};

impl Registry {
    /// The policy for an operation. `None`: the caller may reach every host, or the settings have
    /// no policy.
    pub(crate) fn policy(&self, options: &Options) -> Option<&OutgoingPolicy> {
        match options.access {
            OutgoingAccess::Unlimited => None,
            OutgoingAccess::Limited => self.settings().outgoing.as_ref(),
        }
    }

    /// Checks that the caller of a pull may reach the registry and the mirror that it names. A pull
    /// checks this too; an earlier check gives the error before any progress.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`], or an invalid address.
    pub async fn check_pull(
        &self,
        reference: &ModelRef,
        options: &Options,
    ) -> Result<(), RegistryError> {
        let Some(policy) = self.policy(options) else { return Ok(()) };
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let endpoints = Endpoint::candidates(self.settings(), &reference.name, &options)?;
        let is_configured =
            |endpoint: &&Endpoint| endpoint.mirror_of.is_some() && !endpoint.is_requested_mirror;
        // A mirror may have the model although this network cannot resolve the registry.
        let has_mirror = endpoints.iter().any(|endpoint| is_configured(&endpoint));
        for endpoint in endpoints.iter().filter(|endpoint| !is_configured(endpoint)) {
            match check_endpoint(policy, endpoint).await {
                Err(OutgoingRefusal::Unresolved) if has_mirror && endpoint.mirror_of.is_none() => {}
                Err(reason) => {
                    return Err(refusal_error(endpoint, &endpoint.root, reason));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Checks that the caller of a push may reach the registry of the name.
    ///
    /// # Errors
    /// As for [`Registry::check_pull`].
    pub async fn check_push(
        &self,
        reference: &ModelRef,
        options: &Options,
    ) -> Result<(), RegistryError> {
        let Some(policy) = self.policy(options) else { return Ok(()) };
        let options = Options { insecure: options.insecure || reference.http, ..options.clone() };
        let target = Endpoint::push_target(self.settings(), &reference.name, &options)?;
        let checked = check_endpoint(policy, &target).await;
        checked.map_err(|reason| refusal_error(&target, &target.root, reason))
    }

    /// Checks that the caller may reach the host of a URL.
    ///
    /// # Errors
    /// As for [`Registry::check_pull`].
    pub(crate) async fn check_url(
        &self,
        url: &Url,
        options: &Options,
    ) -> Result<(), RegistryError> {
        let Some(policy) = self.policy(options) else { return Ok(()) };
        let endpoint = Endpoint::from_url(self.settings(), url)?;
        let checked = check_endpoint(policy, &endpoint).await;
        checked.map_err(|reason| refusal_error(&endpoint, &endpoint.root, reason))
    }
}

async fn check_endpoint(
    policy: &OutgoingPolicy,
    endpoint: &Endpoint,
) -> Result<(), OutgoingRefusal> {
    // The name of a registry and the host of its URL differ for Docker Hub.
    let requested = Url::parse(&format!("{}://{}", endpoint.root.scheme(), endpoint.host));
    let requested = requested.unwrap_or_else(|_| endpoint.root.clone());
    policy.resolve_requested(&requested, &endpoint.root).await.map(drop)
}

/// Error for a URL that the policy refuses. Only the log has the URL's host and the reason.
pub(crate) fn refusal_error(
    endpoint: &Endpoint,
    url: &Url,
    reason: OutgoingRefusal,
) -> RegistryError {
    let (host, to) = (endpoint.host.clone(), crate::display::authority(url));
    tracing::warn!(host, to, %reason, "refused to connect for a caller without admin rights");
    RegistryError::Unreachable { host }
}
