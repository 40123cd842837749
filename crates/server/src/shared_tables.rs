//! All tables of the server that requests of several clients fill, and the types with a lock and a
//! collection that are none. `tests/tidy.py` finds every other such type.

use puna_mirror::{SharedTable, TableExemption, TableLimit};

/// Description of the prefix tree of a model.
static CACHED_PREFIXES: SharedTable = SharedTable {
    name: "cached prefixes",
    holders: &["puna_engine::kv::page_pool::PagePool"],
    limits: &[TableLimit::Rule("the cache of the model")],
    shares: &[TableLimit::Rule("none: what is missing is computed again, in fair order")],
    when_full: "the least recently used is evicted",
    test: "the_least_recently_used_leaf_is_evicted_and_pinned_pages_stay",
};

/// Tables that clients share, in the order of the manual.
pub static SHARED_TABLES: &[&SharedTable] = &[
    &crate::http::connection_table::CONNECTIONS,
    &crate::http::serve::HANDSHAKES,
    &crate::http::body_budget::BODY_MEMORY,
    &crate::http::body_workers::BODY_WORK,
    &crate::model_scheduler::queue::WAITING_REQUESTS,
    &crate::runner::worker::RUNNER_TASKS,
    &CACHED_PREFIXES,
    &crate::runner::public_prefix::PUBLIC_PROMPTS,
    &crate::runner::templates::PARSED_TEMPLATES,
    &crate::api::openai::responses::store::STORED_RESPONSES,
    &crate::api::image_urls::IMAGE_FETCHES,
    &crate::auth::rate_limits::KEY_REQUESTS,
    &crate::models::blob_access::UPLOADED_BLOBS,
    &crate::models::memory_plans::PLANNED_MODELS,
    &crate::models::unsupported::UNSUPPORTED_MODELS,
    &crate::remote::description_cache::REMOTE_DESCRIPTIONS,
    &crate::metrics::MODEL_METRICS,
];

/// Types with a lock and a collection that no client fills for others.
pub static TABLE_EXEMPTIONS: &[TableExemption] = &[
    TableExemption {
        holder: "puna_server::auth::authorizer::Authorizer",
        reason: "it holds the key file",
    },
    TableExemption {
        holder: "puna_server::script::ScriptFile",
        reason: "it holds the file of `puna debug script`",
    },
    TableExemption {
        holder: "puna_server::http::body::CompatibilityReport",
        reason: "each request has its own",
    },
    TableExemption {
        holder: "puna_server::http::schema_report::SchemaReport",
        reason: "each request has its own",
    },
    TableExemption {
        holder: "puna_server::http::body_budget::RequestReservation",
        reason: "each request has its own",
    },
    TableExemption {
        holder: "puna_server::util::bounded_channel::Sender",
        reason: "each runner has its own, and reads it without waiting for the engine",
    },
    TableExemption {
        holder: "puna_server::remote::client::Remotes",
        reason: "one entry for each host that `remotes` permits",
    },
];

/// All tables that clients share, those of the mirror last.
pub fn all() -> impl Iterator<Item = &'static SharedTable> {
    SHARED_TABLES.iter().chain(puna_mirror::SHARED_TABLES).copied()
}
