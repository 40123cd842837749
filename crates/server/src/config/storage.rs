//! Object storage of the mirror's library.

use puna_mirror::S3Location;

use super::reader::SettingsReader;

/// Variables of Amazon's tools, which other S3 services use too. Puna's own settings take
/// precedence.
const VARIABLES: [(&str, &str); 10] = [
    ("AWS_REGION", "aws_region"),
    ("AWS_DEFAULT_REGION", "aws_default_region"),
    ("AWS_SESSION_TOKEN", "aws_session_token"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "aws_web_identity_token_file"),
    ("AWS_ROLE_ARN", "aws_role_arn"),
    ("AWS_ROLE_SESSION_NAME", "aws_role_session_name"),
    ("AWS_ENDPOINT_URL_STS", "aws_endpoint_url_sts"),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "aws_container_credentials_relative_uri"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "aws_container_credentials_full_uri"),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "aws_container_authorization_token_file"),
];

/// Reads `PUNA_MIRROR_STORAGE` and its related settings.
pub(super) fn read(read: &mut SettingsReader<'_>) -> Option<S3Location> {
    let storage = read.storage("mirror.storage");
    let endpoint = read.endpoint("mirror.storage_endpoint");
    let region = read.text("mirror.storage_region", None);
    let keys = (read.secret("mirror.storage_key"), read.secret("mirror.storage_secret"));
    let mut storage = storage?;
    let of_variable = |name: &str| read.raw(name);
    storage.endpoint = endpoint
        .or_else(|| of_variable("AWS_ENDPOINT_URL_S3"))
        .or_else(|| of_variable("AWS_ENDPOINT_URL"));
    for (variable, name) in VARIABLES {
        storage.options.extend(of_variable(variable).map(|value| (name, value)));
    }
    let ours = [
        ("aws_region", region),
        ("aws_access_key_id", keys.0.or_else(|| of_variable("AWS_ACCESS_KEY_ID"))),
        ("aws_secret_access_key", keys.1.or_else(|| of_variable("AWS_SECRET_ACCESS_KEY"))),
    ];
    storage.options.extend(ours.into_iter().filter_map(|(name, value)| Some((name, value?))));
    Some(storage)
}
