//! HTTP client of registries: settings, endpoints and mirrors, TLS, sessions, retries, rate limits.

pub(crate) mod destinations;
pub(crate) mod endpoint;
pub(crate) mod hosts;
pub(crate) mod http;
pub(crate) mod pinned_clients;
pub(crate) mod rate_limit;
pub(crate) mod retry;
pub(crate) mod session;
pub(crate) mod settings;
pub(crate) mod tls;
