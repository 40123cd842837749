//! Messages, statuses and codes that clients get.

use super::*;
use crate::types::repository::Repository;
use puna_store::ModelName;

fn digest() -> Digest {
    Digest::of(b"x")
}

fn name() -> Repository {
    Repository::parse("team/thing").unwrap()
}

fn model() -> Box<ModelName> {
    Box::new(ModelName::parse("team/thing:v1").unwrap())
}

/// Checks the message, status and code of an error. `{D}` in the message stands for [`digest`].
fn check(error: impl Into<MirrorError>, code: (u16, &str), message: &str) {
    let error = error.into();
    let message = message.replace("{D}", &digest().to_string());
    assert_eq!((error.to_string(), error.code()), (message, code));
}

#[test]
fn denials_keep_their_messages() {
    let denied = (403, "DENIED");
    let (name, host) = (name(), "registry.ollama.ai".to_owned());
    let of = |repository| Denial::KeyPermission { key: "k".into(), repository };
    check(of(None), denied, "the API key \"k\" does not permit this request");
    check(
        of(Some(name.clone())),
        denied,
        "the API key \"k\" does not permit this request for team/thing",
    );
    check(
        Denial::KeyMetrics { key: "k".into() },
        denied,
        "the API key \"k\" does not permit reading metrics: use a key with the scope admin and without namespaces",
    );
    check(
        Denial::Mirrored { name: name.clone(), host },
        denied,
        "cannot push team/thing: it is mirrored from registry.ollama.ai; push to a namespace of mirror.private",
    );
    check(
        Denial::FetchNotAllowed(name.clone()),
        denied,
        "team/thing is not stored here, and mirror.fetch does not permit fetching it",
    );
    check(
        Denial::FetchTooLarge { model: model(), bytes: 7, limit: 5 },
        denied,
        "team/thing:v1 has 7 bytes, more than the 5 that are fetched without an API key (mirror.fetch_limit): pull it with a key",
    );
    check(
        Denial::ManifestIsChild { name, digest: digest(), list: digest() },
        denied,
        "manifest {D} is a child of the list {D} in team/thing: remove the list first",
    );
    check(
        Denial::ForeignMirrorHost,
        denied,
        "host name not allowed, because this mirror listens on a loopback address: add the name to mirror.names, or let the proxy send localhost",
    );
}

#[test]
fn errors_of_uploads_keep_their_messages() {
    let invalid = (400, "BLOB_UPLOAD_INVALID");
    check(
        UploadProblem::ContentRange("a".into()),
        invalid,
        "invalid Content-Range \"a\": expected FIRST-LAST, such as 0-99",
    );
    check(
        UploadProblem::Interrupted { received: 7, committed: 5 },
        invalid,
        "the last part was interrupted at byte 7: send the rest, or restart the part at byte 5",
    );
    check(
        UploadProblem::TooManyParts { max: 7 },
        invalid,
        "blob too large for this storage: an object has at most 7 parts",
    );
    check(
        MirrorError::BodyInterrupted { reason: "reset".into() },
        invalid,
        "request body interrupted: reset",
    );
    check(
        MirrorError::BodyStalled { seconds: 60 },
        invalid,
        "request body interrupted: no data for 60 seconds",
    );
    check(
        MirrorError::SizeMismatch { received: 7, announced: 5 },
        (400, "SIZE_INVALID"),
        "received 7 bytes, but 5 were announced",
    );
    let unknown = "upload 7 not found: it was finished, cancelled or expired; start a new upload";
    check(MirrorError::UploadUnknown("7".into()), (404, "BLOB_UPLOAD_UNKNOWN"), unknown);
    check(NameError::UploadId("7".into()), (404, "BLOB_UPLOAD_UNKNOWN"), unknown);
    check(
        MirrorError::NoSpace { free: 7, reserved: 5 },
        (507, "DENIED"),
        "not enough disk space for this upload: 7 bytes free, 5 of them reserved for other uploads",
    );
}

#[test]
fn limits_keep_their_messages() {
    let limited = (429, "TOOMANYREQUESTS");
    check(
        LimitReached::OwnUploads { max: 7 },
        limited,
        "too many open uploads of this client (limit 7): finish or cancel some, or retry later",
    );
    check(
        LimitReached::Uploads { max: 7 },
        limited,
        "too many open uploads (limit 7): retry later",
    );
    check(
        LimitReached::SignedRequests { max: 7, minutes: 5 },
        limited,
        "too many signed requests (limit 7 in 5 minutes): retry later",
    );
    check(
        LimitReached::Fetches(model()),
        limited,
        "cannot fetch team/thing:v1 now: the limit of parallel fetches (mirror.fetch_parallel) is reached; retry later",
    );
    check(
        PendingFetch::Files(model()),
        (503, "TOOMANYREQUESTS"),
        "team/thing:v1 is being fetched and merged from several files: retry later",
    );
}

#[test]
fn errors_of_requests_keep_their_messages() {
    let signature = |problem| AuthenticationError::Signature(problem);
    let unauthorized = (401, "UNAUTHORIZED");
    check(
        signature(SignatureProblem::ForeignAddress { address: "http://a".into() }),
        unauthorized,
        "invalid request signature: it is for http://a, which is not in mirror.names: ask the administrator to add it",
    );
    check(
        signature(SignatureProblem::LongNonce { max: 7 }),
        unauthorized,
        "invalid request signature: its nonce is longer than 7 bytes",
    );
    check(
        MirrorError::PreconditionFailed { current: Some(digest()) },
        (412, "DENIED"),
        "If-Match does not match: the current ETag is \"{D}\"",
    );
    check(
        MirrorError::PreconditionFailed { current: None },
        (412, "DENIED"),
        "If-Match does not match: the current ETag is none",
    );
    check(
        MirrorError::MethodNotAllowed(Method::PATCH),
        (405, "UNSUPPORTED"),
        "method PATCH not allowed at this path",
    );
    check(
        NameError::Tag("-".into()),
        (400, "NAME_INVALID"),
        "invalid tag \"-\": expected 1 to 128 letters, digits and . _ - where the first is not . or -",
    );
    check(
        NameError::Digest(String::new()),
        (400, "DIGEST_INVALID"),
        "invalid digest \"\": expected sha256: and 64 hexadecimal digits",
    );
    check(
        LoopProblem::TooManyMirrors { max: 7 },
        (508, "UNSUPPORTED"),
        "more than 7 mirrors in a chain: name one nearer to the source in mirror.upstreams, registry.default or registry.mirrors",
    );
}

#[test]
fn errors_of_manifests_keep_their_messages() {
    let invalid = (400, "MANIFEST_INVALID");
    check(
        ManifestProblem::TwoSizes { digest: digest(), size: 7, other: 5 },
        invalid,
        "not a manifest: it declares 7 bytes for {D}, and elsewhere 5",
    );
    check(ManifestProblem::NotAnObject, invalid, "not a manifest: it is not a JSON object");
    check(
        ManifestProblem::Child { number: 2, error: Box::new(ManifestProblem::Empty.into()) },
        invalid,
        "not a manifest: child 2 of the list: not a manifest: it has neither layers nor manifests",
    );
    check(
        ManifestProblem::ChildBlobSize { number: 2, digest: digest(), size: 7, other: 5 },
        invalid,
        "not a manifest: child 2 of the list declares 7 bytes for blob {D}, but another child declares 5",
    );
    check(
        ManifestProblem::BlobSize { digest: digest(), stated: 7, actual: 5 },
        invalid,
        "not a manifest: it declares 7 bytes for blob {D}, which has 5",
    );
    check(
        ManifestProblem::UntypedList,
        invalid,
        "not a manifest: a manifest list must state its mediaType: application/vnd.ollama.manifest.list.v2+json",
    );
    check(
        ManifestError::TooLarge { max: 7 },
        (413, "SIZE_INVALID"),
        "the manifest is larger than 7 bytes",
    );
}

#[test]
fn errors_of_upstreams_keep_their_messages() {
    let blob_size = || UpstreamProblem::BlobSize { digest: digest(), found: 7, declared: 5 };
    check(
        UpstreamProblem::OfModel { model: model(), problem: Box::new(blob_size()) },
        (502, "UNKNOWN"),
        "upstream registry: team/thing:v1: blob {D} has 7 bytes at the upstream, but its manifest declares 5",
    );
    check(
        UpstreamProblem::OfRepository { name: name(), problem: Box::new(blob_size()) },
        (502, "UNKNOWN"),
        "upstream registry: team/thing: blob {D} has 7 bytes at the upstream, but its manifest declares 5",
    );
    check(
        UpstreamProblem::Child { digest: digest(), problem: ChildProblem::List },
        (502, "UNKNOWN"),
        "upstream registry: child {D}: it is a list itself",
    );
    let looping = RegistryError::Status {
        status: "508 Loop Detected".into(),
        code: 508,
        body: "it loops".into(),
        retry_after: None,
    };
    check(looping, (508, "UNSUPPORTED"), "508 Loop Detected: it loops");
    check(RegistryError::NotFound, (502, "UNKNOWN"), "upstream registry: file does not exist");
    let full = RegistryError::NoSpace { what: "this model".into(), needed: 7, free: 5 };
    assert_eq!(MirrorError::from(full.clone()).code(), (507, "DENIED"));
    check(full.clone(), (507, "DENIED"), &full.to_string());
}

#[test]
fn internal_errors_are_not_shown_to_clients() {
    let failed = (500, "UNKNOWN");
    check(InternalError::from_panic(&"a test"), failed, "internal error: a task panicked: a test");
    check(
        InternalError::AssemblyGivenUp(model()),
        failed,
        "internal error: merging the files of team/thing:v1 was cancelled",
    );
    let address = "/home/me".to_owned();
    let secret = RegistryError::from(puna_registry::SetupProblem::Address { address });
    check(
        secret.clone(),
        failed,
        "internal error: cannot set up connections: \"/home/me\" is not the address of a registry: use HOST, HOST:PORT or a URL such as https://registry.example.com:5000",
    );
    let public = MirrorError::from(secret).public_message();
    assert_eq!(public, "internal error of this registry: its log has the reason");
    let path = std::path::Path::new("/home/me/models");
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let full = MirrorError::from(StoreError::io("write", path, &kind.into()));
        assert_eq!(full.code(), (507, "DENIED"));
        for message in [full.public_message(), full.to_string()] {
            assert!(!message.contains("/home/me"), "{message}");
        }
    }
    check(
        MirrorError::StorageFailed {
            location: "s3://b".into(),
            problem: BucketProblem::Service { cause: "timeout".into() },
        },
        (503, "UNKNOWN"),
        "storage s3://b: timeout: check that the service runs and that mirror.storage_endpoint is correct",
    );
}
