//! Keywords of an answer's schema that are checked on the finished answer, for the answer's headers to name.

use std::future::Future;
use std::sync::{Arc, Mutex};

use axum::http::HeaderMap;

use super::header_list::list_value;
use crate::lock::lock;

/// Names the keywords that are not enforced while the answer is written.
const UNENFORCED: &str = "x-puna-schema-unenforced";
/// Names those of them that the finished answer does not keep to.
const VIOLATIONS: &str = "x-puna-schema-violations";
/// Keywords that a header names at most.
const NAMES_MAX: usize = 32;
/// Characters of one of them at most.
const NAME_MAX: usize = 200;

tokio::task_local! {
    static NOTES: SchemaNotes;
}

/// What the headers of one answer say about its schema.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchemaNotes(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    unenforced: Vec<String>,
    violations: Vec<String>,
}

/// Notes keywords that are not enforced while the answer of the current request is written.
pub(crate) fn note_unenforced(keywords: Vec<String>) {
    let _ = NOTES.try_with(|notes| add(&mut lock(&notes.0).unenforced, keywords));
}

/// Notes keywords that the answer of the current request does not keep to.
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
    /// Waits for an answer; what is noted until then is in here.
    pub(crate) async fn during<T>(&self, answer: impl Future<Output = T>) -> T {
        NOTES.scope(self.clone(), answer).await
    }

    /// Adds the headers, where there is something to say.
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
    async fn headers_name_keywords_once_and_encode_their_places() {
        let notes = SchemaNotes::default();
        let place = "uniqueItems at #/properties/a, \u{e4}".to_owned();
        notes
            .during(async {
                note_unenforced(vec![place.clone(), "not at #".into(), place.clone()])
            })
            .await;
        let mut headers = HeaderMap::new();
        notes.write(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[UNENFORCED], "uniqueItems at #/properties/a%2C %C3%A4, not at #");
        notes.during(async { note_violations(vec!["not at #".into()]) }).await;
        notes.write(&mut headers);
        assert_eq!(headers[VIOLATIONS], "not at #");
        // Outside of a request there is nobody to tell.
        note_violations(vec!["not at #".into()]);
    }
}
