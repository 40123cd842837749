//! Errors as a caller without administrator rights sees them.

use super::{RegistryError, SetupProblem};
use crate::Registry;
use crate::client::settings::Options;

impl Registry {
    /// The error of an operation with the registry `host` as its caller sees it. A limited caller
    /// learns nothing about hosts of the server's network, and no text of other hosts.
    pub(crate) fn error_for_caller(
        &self,
        error: RegistryError,
        options: &Options,
        host: &str,
    ) -> RegistryError {
        if self.policy(options).is_none() {
            return error;
        }
        tracing::info!(host, %error, "an operation of a caller without admin rights failed");
        error.limited(host)
    }
}

impl RegistryError {
    /// Replaces every error that describes a connection or quotes a response. Errors of refused,
    /// closed and silent hosts become equal.
    fn limited(self, host: &str) -> Self {
        let inner = |error: Box<Self>| Box::new(error.limited(host));
        let host = host.to_owned();
        match self {
            Self::AfterMirrors { error, .. } | Self::RetriesExceeded(error) => error.limited(&host),
            Self::PullManifest(error) => match error.limited(&host) {
                error @ (Self::Unreachable { .. } | Self::UnreadableResponse { .. }) => error,
                error => Self::PullManifest(Box::new(error)),
            },
            Self::Child { child, error } => Self::Child { child, error: inner(error) },
            Self::Transport { .. }
            | Self::Tls { .. }
            | Self::Stalled { .. }
            | Self::TooSlow { .. }
            | Self::Truncated { .. }
            | Self::Redirects { .. }
            | Self::Redirect { .. }
            | Self::Proxy { .. }
            | Self::Unreachable { .. } => Self::Unreachable { host },
            Self::Setup(problem) if !matches!(problem, SetupProblem::Address { .. }) => {
                Self::Unreachable { host }
            }

            Self::InvalidResponse { .. }
            | Self::RangeIgnored { .. }
            | Self::NotAManifest(_)
            | Self::Bundle(_) => Self::UnreadableResponse { host },
            // The token server is another host.
            Self::CredentialsWithheld { host: to, .. } if to != host => Self::Unauthorized,
            // These name files, keys or token servers of this machine and of its administrator.
            Self::Key(_)
            | Self::KeyRefused { .. }
            | Self::TokenRefused { .. }
            | Self::RealmHost { .. }
            | Self::RealmScheme { .. }
            | Self::Secret { .. }
            | Self::NoKey { .. }
            | Self::NoCredentials { .. } => Self::Unauthorized,
            error => error,
        }
    }
}
