//! Response headers that name the schema keywords checked on the finished answer.

use std::future::Future;
use std::sync::{Arc, Mutex};

use axum::http::HeaderMap;

use super::header_list::list_value;
use crate::util::lock::lock;

/// Header with the keywords that the grammar does not enforce.
const UNENFORCED: &str = "x-puna-schema-unenforced";
/// Header with the keywords that the finished answer violates.
const VIOLATIONS: &str = "x-puna-schema-violations";
/// Maximum keywords per header.
const NAMES_MAX: usize = 32;
/// Maximum characters per keyword.
const NAME_MAX: usize = 200;

tokio::task_local! {
    static NOTES: SchemaNotes;
}

/// Notes on the schema of one response.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchemaNotes(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    unenforced: Vec<String>,
    violations: Vec<String>,
}

/// Records unenforced keywords for the current request.
pub(crate) fn note_unenforced(keywords: Vec<String>) {
    let _ = NOTES.try_with(|notes| add(&mut lock(&notes.0).unenforced, keywords));
}

/// Records violated keywords for the current request.
pub(crate) fn note_violations(keywords: Vec<String>) {
    let _ = NOTES.try_with(|notes| add(&mut lock(&notes.0).violations, keywords));
}

fn add(names: &mut Vec<String>, more: Vec<String>) {
    for name in more {
        if names.len() < NAMES_MAX && !names.contains(&name) {
            names.push(name);
        }
    }
}

impl SchemaNotes {
    /// Awaits a response and collects the notes that are made until then.
    pub(crate) async fn scope<T>(&self, answer: impl Future<Output = T>) -> T {
        NOTES.scope(self.clone(), answer).await
    }

    /// Adds the headers that have content.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let notes = lock(&self.0);
        for (name, keywords) in [(UNENFORCED, &notes.unenforced), (VIOLATIONS, &notes.violations)] {
            if let Some(value) = list_value(keywords, NAME_MAX) {
                headers.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn headers_name_keywords_once_and_encode_their_locations() {
        let notes = SchemaNotes::default();
        let place = "uniqueItems at #/properties/a, \u{e4}".to_owned();
        notes
            .scope(async { note_unenforced(vec![place.clone(), "not at #".into(), place.clone()]) })
            .await;
        let mut headers = HeaderMap::new();
        notes.write(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[UNENFORCED], "uniqueItems at #/properties/a%2C %C3%A4, not at #");
        notes.scope(async { note_violations(vec!["not at #".into()]) }).await;
        notes.write(&mut headers);
        assert_eq!(headers[VIOLATIONS], "not at #");
        // Outside of a request a note has no effect.
        note_violations(vec!["not at #".into()]);
    }
}
