//! All tables of the mirror that requests of several clients fill, and the types with a lock and a
//! collection that are none. `tests/tidy.py` finds every other such type.

use crate::types::shared_table::{SharedTable, TableExemption};

/// Tables that clients share, in the order of the manual.
pub static SHARED_TABLES: &[&SharedTable] = &[
    &crate::auth::NONCES,
    &crate::uploads::admission::OPEN_UPLOADS,
    &crate::quota::namespace_index::NAMESPACE_QUOTAS,
    &crate::quota::namespace_index::VISIBLE_BLOBS,
    &crate::storage::s3::UPLOAD_MEMORY,
    &crate::storage::s3::BUCKET_CACHES,
    &crate::pull_through::UPSTREAM_FETCHES,
    &crate::pull_through::UPSTREAM_TAGS,
    &crate::pull_through::UPSTREAM_CHILDREN,
    &crate::pull_through::UPSTREAM_BLOBS,
    &crate::pull_through::BLOB_SIZES,
    &crate::integrity::BLOB_CHECKS,
    &crate::retention::usage_log::USAGE_RECORDS,
    &crate::http::RECENT_PULLS,
];

/// Types with a lock and a collection that no client fills for others.
pub static TABLE_EXEMPTIONS: &[TableExemption] = &[
    TableExemption {
        holder: "puna_mirror::locks::KeyedLocks",
        reason: "an entry exists only while a request holds the lock or waits for it",
    },
    TableExemption {
        holder: "puna_mirror::storage::s3::S3Storage",
        reason: "only garbage collection fills it, with objects of the bucket",
    },
    TableExemption {
        holder: "puna_mirror::storage::s3::connection::HttpTransport",
        reason: "one client for each host of the configured bucket",
    },
    TableExemption {
        holder: "puna_mirror::metrics::Metrics",
        reason: "labels are methods, routes and statuses that the program defines",
    },
];
