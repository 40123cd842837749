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
    check(of(None), denied, "the key \"k\" may not do this");
    check(of(Some(name.clone())), denied, "the key \"k\" may not do this with team/thing");
    check(
        Denial::KeyMetrics { key: "k".into() },
        denied,
        "the key \"k\" may not see the figures: that takes the scope admin, without namespaces",
    );
    check(
        Denial::Mirrored { name: name.clone(), host },
        denied,
        "team/thing is mirrored from registry.ollama.ai, and only what is there is here: push to a namespace of mirror.private",
    );
    check(
        Denial::FetchNotAllowed(name.clone()),
        denied,
        "team/thing is not here, and this mirror fetches nothing that mirror.fetch does not name",
    );
    check(
        Denial::FetchTooLarge { model: model(), bytes: 7, limit: 5 },
        denied,
        "team/thing:v1 has 7 bytes, and without a key nobody has this mirror fetch more than 5 (mirror.fetch_limit): pull it with a key",
    );
    check(
        Denial::ManifestIsChild { name, digest: digest(), list: digest() },
        denied,
        "manifest {D} is a child of the list {D} in team/thing: remove the list first",
    );
    check(
        Denial::ForeignMirrorHost,
        denied,
        "this mirror listens to its own machine alone, and answers to no other name: add the one that clients use to mirror.names, or have the proxy say localhost",
    );
}

#[test]
fn errors_of_uploads_keep_their_messages() {
    let invalid = (400, "BLOB_UPLOAD_INVALID");
    check(
        UploadProblem::ContentRange("a".into()),
        invalid,
        "Content-Range \"a\" is no place: write FIRST-LAST, such as 0-99",
    );
    check(
        UploadProblem::Interrupted { received: 7, committed: 5 },
        invalid,
        "the last part broke off at byte 7: send the rest of it, or all of it from byte 5 on",
    );
    check(
        UploadProblem::TooManyParts { most: 7 },
        invalid,
        "this blob is larger than the storage takes: an object has 7 parts at most",
    );
    check(
        MirrorError::BodyInterrupted { reason: "reset".into() },
        invalid,
        "the request broke off: reset",
    );
    check(
        MirrorError::BodyStalled { seconds: 60 },
        invalid,
        "the request broke off: nothing came for 60 seconds",
    );
    check(
        MirrorError::SizeMismatch { received: 7, announced: 5 },
        (400, "SIZE_INVALID"),
        "7 bytes came, but 5 were announced",
    );
    let unknown = "upload 7 is not open: it was finished, cancelled, or left alone for too long; begin a new one";
    check(MirrorError::UploadUnknown("7".into()), (404, "BLOB_UPLOAD_UNKNOWN"), unknown);
    check(NameError::UploadId("7".into()), (404, "BLOB_UPLOAD_UNKNOWN"), unknown);
    check(
        MirrorError::NoSpace { free: 7, reserved: 5 },
        (507, "DENIED"),
        "there is not enough space for this upload: 7 bytes are free, 5 of which are left for others",
    );
}

#[test]
fn limits_keep_their_messages() {
    let limited = (429, "TOOMANYREQUESTS");
    check(
        LimitReached::OwnUploads { most: 7 },
        limited,
        "you have 7 open uploads already: finish or cancel some, or come back later",
    );
    check(
        LimitReached::Uploads { most: 7 },
        limited,
        "7 uploads are open already: come back later",
    );
    check(
        LimitReached::SignedRequests { most: 7, minutes: 5 },
        limited,
        "7 signed requests came within 5 minutes, and no more are told apart: come back later",
    );
    check(
        LimitReached::Fetches(model()),
        limited,
        "team/thing:v1 is not here, and as many models are being fetched as may be (mirror.fetch_parallel): ask again in a while",
    );
    check(
        PendingFetch::Files(model()),
        (503, "TOOMANYREQUESTS"),
        "team/thing:v1 comes in several files, which are being fetched and made into one model: ask again in a while",
    );
}

#[test]
fn errors_of_requests_keep_their_messages() {
    let signature = |problem| AuthenticationError::Signature(problem);
    let unauthorized = (401, "UNAUTHORIZED");
    check(
        signature(SignatureProblem::ForeignAddress { address: "http://a".into() }),
        unauthorized,
        "the signature of this request is for http://a, and that is none of the names in mirror.names: whoever runs this registry can add it there",
    );
    check(
        signature(SignatureProblem::LongNonce { most: 7 }),
        unauthorized,
        "the signature of this request has a nonce of more than 7 bytes",
    );
    check(
        MirrorError::PreconditionFailed { current: Some(digest()) },
        (412, "DENIED"),
        "this is \"{D}\" here, and not what If-Match names",
    );
    check(
        MirrorError::PreconditionFailed { current: None },
        (412, "DENIED"),
        "this is nothing here, and not what If-Match names",
    );
    check(
        MirrorError::MethodNotAllowed(Method::PATCH),
        (405, "UNSUPPORTED"),
        "PATCH means nothing here",
    );
    check(
        NameError::Tag("-".into()),
        (400, "NAME_INVALID"),
        "\"-\" is no tag: 1 to 128 letters, digits, and . _ - after the first",
    );
    check(
        NameError::Digest(String::new()),
        (400, "DIGEST_INVALID"),
        "\"\" is no digest: sha256: and 64 hexadecimal digits",
    );
    check(
        LoopProblem::TooManyMirrors { most: 7 },
        (508, "UNSUPPORTED"),
        "more than 7 mirrors stand one behind the other: name one nearer to the source in mirror.upstreams, registry.default or registry.mirrors",
    );
}

#[test]
fn errors_of_manifests_keep_their_messages() {
    let invalid = (400, "MANIFEST_INVALID");
    check(ManifestProblem::NotAnObject, invalid, "not a manifest: it is no JSON object");
    check(
        ManifestProblem::Child { number: 2, error: Box::new(ManifestProblem::Empty.into()) },
        invalid,
        "not a manifest: child 2 of the list: not a manifest: it has neither layers nor manifests",
    );
    check(
        ManifestProblem::ChildBlobSize { number: 2, digest: digest(), size: 7, other: 5 },
        invalid,
        "not a manifest: child 2 of the list says that blob {D} has 7 bytes, but another child says 5",
    );
    check(
        ManifestProblem::BlobSize { digest: digest(), stated: 7, actual: 5 },
        invalid,
        "not a manifest: it says that blob {D} has 7 bytes, but it has 5",
    );
    check(
        ManifestProblem::UntypedList,
        invalid,
        "not a manifest: a manifest list must state its mediaType: application/vnd.ollama.manifest.list.v2+json",
    );
    check(
        ManifestError::TooLarge { most: 7 },
        (413, "SIZE_INVALID"),
        "a manifest may have 7 bytes at most",
    );
}

#[test]
fn errors_of_upstreams_keep_their_messages() {
    let blob_size = || UpstreamProblem::BlobSize { digest: digest(), found: 7, declared: 5 };
    check(
        UpstreamProblem::OfModel { model: model(), problem: Box::new(blob_size()) },
        (502, "UNKNOWN"),
        "the upstream registry: team/thing:v1: the blob {D} has 7 bytes there, but its manifest says 5",
    );
    check(
        UpstreamProblem::OfRepository { name: name(), problem: Box::new(blob_size()) },
        (502, "UNKNOWN"),
        "the upstream registry: team/thing: the blob {D} has 7 bytes there, but its manifest says 5",
    );
    check(
        UpstreamProblem::Child { digest: digest(), problem: ChildProblem::List },
        (502, "UNKNOWN"),
        "the upstream registry: the child {D} is a list itself",
    );
    let looping = RegistryError::Status {
        status: "508 Loop Detected".into(),
        code: 508,
        body: "it loops".into(),
        retry_after: None,
    };
    check(looping, (508, "UNSUPPORTED"), "508 Loop Detected: it loops");
    check(RegistryError::NotFound, (502, "UNKNOWN"), "the upstream registry: file does not exist");
    let full = RegistryError::NoSpace { what: "this model".into(), needed: 7, free: 5 };
    assert_eq!(MirrorError::from(full.clone()).code(), (507, "DENIED"));
    check(full.clone(), (507, "DENIED"), &full.to_string());
}

#[test]
fn internal_errors_are_not_shown_to_clients() {
    let failed = (500, "UNKNOWN");
    check(InternalError::from_panic(&"a test"), failed, "internal error: it panicked: a test");
    check(
        InternalError::AssemblyGivenUp(model()),
        failed,
        "internal error: making team/thing:v1 was given up",
    );
    let address = "/home/me".to_owned();
    let secret = RegistryError::from(puna_registry::SetupProblem::Address { address });
    check(
        secret.clone(),
        failed,
        "internal error: cannot set up connections: \"/home/me\" is no address of a registry",
    );
    let public = MirrorError::from(secret).public_message();
    assert_eq!(public, "this registry failed at it: its log says why");
    check(
        MirrorError::StorageFailed {
            location: "s3://b".into(),
            problem: BucketProblem::Service { cause: "timeout".into() },
        },
        (503, "UNKNOWN"),
        "the storage s3://b: timeout (is the service there, and mirror.storage_endpoint right?)",
    );
}
