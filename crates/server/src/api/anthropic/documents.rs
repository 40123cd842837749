//! Documents and search results in a conversation. The server reads only their text.

use serde_json::Value;

use crate::canonical::ApiError;

/// Returns the prompt text for a document.
///
/// # Errors
/// The source is not text.
pub(super) fn document(block: &Value) -> Result<String, ApiError> {
    let source = &block["source"];
    let text = match source["type"].as_str().unwrap_or_default() {
        "text" => source["data"].as_str().unwrap_or_default().to_owned(),
        "content" => content_text(&source["content"])?,
        "base64" => decode_text(source)?,
        kind => {
            return Err(ApiError::bad_request(format!(
                "document source of type {kind:?} is not supported: send the text"
            )));
        }
    };
    Ok(tagged_text(
        "document",
        &[("title", &block["title"]), ("context", &block["context"])],
        &text,
    ))
}

/// Returns the prompt text for a search result.
pub(super) fn search_result(block: &Value) -> Result<String, ApiError> {
    let text = content_text(&block["content"])?;
    Ok(tagged_text(
        "search_result",
        &[("title", &block["title"]), ("source", &block["source"])],
        &text,
    ))
}

/// Returns the text of a string or of a list of text blocks.
fn content_text(content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let block_text = |block: &Value| match block["text"].as_str() {
                Some(text) if block["type"] == "text" => Ok(text.to_owned()),
                _ => Err(ApiError::bad_request(format!(
                    "document content of type {} is not supported: send text",
                    block["type"]
                ))),
            };
            blocks.iter().map(block_text).collect()
        }
        _ => {
            Err(ApiError::bad_request("document content must be a string or a list of text blocks"))
        }
    }
}

/// Decodes a base64 document of a `text/*` media type.
fn decode_text(source: &Value) -> Result<String, ApiError> {
    let kind = source["media_type"].as_str().unwrap_or_default();
    if !kind.starts_with("text/") {
        return Err(ApiError::bad_request(format!(
            "documents of type {kind} are not supported: send the text as text/plain"
        )));
    }
    let bytes =
        puna_api::base64_decode(source["data"].as_str().unwrap_or_default()).map_err(|at| {
            ApiError::bad_request(format!(
                "invalid base64 document data: illegal base64 data at input byte {at}"
            ))
        })?;
    String::from_utf8(bytes).map_err(|_| ApiError::bad_request("document text is not UTF-8"))
}

/// Wraps text in a tag with attributes. Values that are not strings are left out.
fn tagged_text(tag: &str, attributes: &[(&str, &Value)], text: &str) -> String {
    let attribute =
        |(name, value): &(&str, &Value)| value.as_str().map(|value| format!(" {name}={value:?}"));
    let attributes: String = attributes.iter().filter_map(attribute).collect();
    format!("<{tag}{attributes}>\n{}\n</{tag}>\n", text.trim_end())
}
