//! Id of the current request and the servers that it has passed, as task-local values.

use axum::http::HeaderMap;

use crate::util::random_ids;

/// Header with the servers that a request has passed.
pub(crate) const VIA_HEADER: &str = "puna-via";

/// Maximum characters of a request id chosen by the client.
const MAX_ID_CHARS: usize = 128;

tokio::task_local! {
    static REQUEST_ID: String;
    static VIA: Vec<String>;
}

/// Awaits the response to a request with this id that has passed these servers.
pub(super) async fn scope<T>(id: String, via: Vec<String>, answer: impl Future<Output = T>) -> T {
    REQUEST_ID.scope(id, VIA.scope(via, answer)).await
}

/// Puna servers that the current request has passed.
pub(crate) fn current_via() -> Vec<String> {
    VIA.try_with(Clone::clone).unwrap_or_default()
}

/// Id of the current request; a new id outside of a request.
pub(crate) fn current_id() -> String {
    REQUEST_ID.try_with(Clone::clone).unwrap_or_else(|_| random_ids::hex("req_"))
}

/// Servers in the `puna-via` headers.
pub(super) fn via(headers: &HeaderMap) -> Vec<String> {
    let text = headers.get(VIA_HEADER).and_then(|via| via.to_str().ok()).unwrap_or_default();
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Request id from the client, if it is short and printable.
pub(super) fn client_request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    let shown =
        !id.is_empty() && id.len() <= MAX_ID_CHARS && id.bytes().all(|b| b.is_ascii_graphic());
    shown.then(|| id.to_owned())
}
