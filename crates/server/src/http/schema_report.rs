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
const MAX_NAMES: usize = 32;
/// Maximum characters per keyword.
const MAX_NAME: usize = 200;

tokio::task_local! {
    static REPORT: SchemaReport;
}

/// Schema keywords that one response reports.
#[derive(Debug, Clone, Default)]
pub(crate) struct SchemaReport(Arc<Mutex<ReportedKeywords>>);

#[derive(Debug, Default)]
struct ReportedKeywords {
    unenforced: Vec<String>,
    violations: Vec<String>,
}

/// Records unenforced keywords for the current request.
pub(crate) fn record_unenforced_keywords(keywords: Vec<String>) {
    let _ = REPORT.try_with(|report| add(&mut lock(&report.0).unenforced, keywords));
}

/// Records violated keywords for the current request.
pub(crate) fn record_schema_violations(keywords: Vec<String>) {
    let _ = REPORT.try_with(|report| add(&mut lock(&report.0).violations, keywords));
}

fn add(names: &mut Vec<String>, more: Vec<String>) {
    for name in more {
        if names.len() < MAX_NAMES && !names.contains(&name) {
            names.push(name);
        }
    }
}

impl SchemaReport {
    /// Awaits a response and collects the records that are made until then.
    pub(crate) async fn scope<T>(&self, answer: impl Future<Output = T>) -> T {
        REPORT.scope(self.clone(), answer).await
    }

    /// Adds the headers that have content.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let report = lock(&self.0);
        for (name, keywords) in [(UNENFORCED, &report.unenforced), (VIOLATIONS, &report.violations)]
        {
            if let Some(value) = list_value(keywords, MAX_NAME) {
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
        let report = SchemaReport::default();
        let place = "uniqueItems at #/properties/a, \u{e4}".to_owned();
        report
            .scope(async {
                record_unenforced_keywords(vec![place.clone(), "not at #".into(), place.clone()])
            })
            .await;
        let mut headers = HeaderMap::new();
        report.write(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers[UNENFORCED], "uniqueItems at #/properties/a%2C %C3%A4, not at #");
        report.scope(async { record_schema_violations(vec!["not at #".into()]) }).await;
        report.write(&mut headers);
        assert_eq!(headers[VIOLATIONS], "not at #");
        // Outside of a request a record has no effect.
        record_schema_violations(vec!["not at #".into()]);
    }
}
