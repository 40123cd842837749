//! Web page of the registry: models, fetches in progress, recent pulls, quotas, and how to pull. It
//! loads no external resources.

use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{HandlerResult, Mirror};
use crate::auth::{Permission, Principal};
use crate::http::base_url;
use crate::http::recent_pulls::Pull;
use crate::quota::namespace_index::QuotaUsage;
use crate::retention::usage_log::UsageLog;
use crate::types::repository::Repository;
use crate::types::stored_object::TagEntry;

/// Largest number of rows in a table.
const MAX_ROWS: usize = 1000;
/// Content security policy of the page: only its own inline style.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
pre,code{background:#f3f3f3;border-radius:4px;padding:.1em .3em}pre{padding:.6em;overflow:auto}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25em .6em;border-bottom:1px solid #ddd}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre,code{background:#2a2a2a}td,th{border-color:#444}}";

impl Mirror {
    pub(super) async fn web_ui(
        &self,
        head: &Parts,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        let may = |name: &Repository| {
            principal.is_none_or(|principal| principal.is_allowed(Permission::Read, Some(name)))
        };
        let entries = self.namespace_index().tag_entries().await?;
        let mut entries: Vec<&TagEntry> = entries.iter().filter(|entry| may(&entry.name)).collect();
        entries.sort_by(|a, b| (&a.name, &a.tag).cmp(&(&b.name, &b.tag)));
        let (fetched, here): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.completed.is_some());
        self.usage_log().refresh_for_web_ui(self.storage().inventory.usage_notes()).await;
        let mut uses = self.namespace_index().quota_usage().await?;
        uses.retain(|of| {
            principal.is_none_or(|principal| principal.can_see_namespace(&of.namespace))
        });
        let mut pulls = self.pulls().all();
        pulls.retain(|pull| may(&pull.name));
        let base_url = base_url::base_url(head);
        let host = escape_html(base_url.split_once("://").map_or("", |(_, host)| host));
        let html = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <meta http-equiv=\"refresh\" content=\"10\"><title>Models at {host}</title><style>{STYLE}</style>\
             <h1>Models at {host}</h1>{}{}{}{}{}</html>",
            pull_instructions(&host, base_url.starts_with("https:")),
            fetch_table(&fetched),
            manifest_table(&here, self.usage_log()),
            quota_table(&uses),
            pull_table(&pulls),
        );
        let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
        let mut response: Response = (StatusCode::OK, kind, Body::from(html)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// Commands to pull from this registry.
fn pull_instructions(host: &str, is_https: bool) -> String {
    let (flag, tls) = match is_https {
        true => ("", ""),
        false => (" --insecure", " --src-tls-verify=false"),
    };
    format!(
        "<h2>Pull from this mirror</h2><pre>ollama pull{flag} {host}/library/NAME:TAG\npuna pull{flag} {host}/library/NAME:TAG\n\
         skopeo copy{tls} docker://{host}/REPOSITORY:TAG dir:FOLDER</pre>"
    )
}

fn fetch_table(entries: &[&TagEntry]) -> String {
    let row = |entry: &&TagEntry| {
        let (done, all) = (entry.completed.unwrap_or(0), entry.size);
        format!(
            "<tr><td>{}<td>{} of {}<td>{} %",
            label(entry),
            format_bytes(done),
            format_bytes(all),
            percent(done, all)
        )
    };
    table("Running fetches", "<th>Model<th>Bytes<th>", entries.iter().map(row).collect())
}

fn manifest_table(entries: &[&TagEntry], usage_log: &UsageLog) -> String {
    let now = usage_log.now();
    let row = |entry: &&TagEntry| {
        let (label, size, digest) = (label(entry), format_bytes(entry.size), entry.digest.short());
        let pull_table = usage_log.last_pull(&entry.name, &entry.tag, &entry.digest);
        let pull_table = pull_table
            .map(|at| format_age(Duration::from_secs(now.saturating_sub(at))))
            .unwrap_or_default();
        format!("<tr><td>{label}<td>{size}<td><code>{digest}</code><td>{pull_table}")
    };
    let rows: Vec<String> = entries.iter().take(MAX_ROWS).map(row).collect();
    let more = match entries.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => {
            format!("<p>And {more} more; <code>/v2/_catalog</code> names all repositories.</p>")
        }
    };
    match rows.is_empty() {
        true => "<p>No models stored yet.</p>".to_owned(),
        false => {
            table("Stored models", "<th>Repository<th>Size<th>Digest<th>Last pull", rows) + &more
        }
    }
}

fn quota_table(uses: &[QuotaUsage]) -> String {
    let row = |of: &QuotaUsage| {
        let (name, share) = (escape_html(&of.namespace), percent(of.used.bytes, of.limit.bytes));
        format!(
            "<tr><td>{name}<td>{} of {}<td>{share} %<td>{} of {}",
            format_bytes(of.used.bytes),
            format_bytes(of.limit.bytes),
            of.used.objects,
            of.limit.objects
        )
    };
    table("Quotas", "<th>Namespace<th>Used<th><th>Objects", uses.iter().map(row).collect())
}

fn pull_table(pulls: &[Pull]) -> String {
    let row = |pull: &Pull| {
        let (name, tag) = (escape_html(pull.name.as_str()), escape_html(&pull.tag));
        format!(
            "<tr><td>{name}:{tag}<td>{}<td>{}",
            format_age(pull.at.elapsed()),
            escape_html(&pull.client)
        )
    };
    table("Last pulls", "<th>Repository<th>When<th>Client", pulls.iter().map(row).collect())
}

/// Renders a table; nothing without rows.
fn table(title: &str, head: &str, rows: Vec<String>) -> String {
    match rows.is_empty() {
        true => String::new(),
        false => format!("<h2>{title}</h2><table><tr>{head}{}</table>", rows.concat()),
    }
}

fn label(entry: &TagEntry) -> String {
    escape_html(&format!("{}:{}", entry.name, entry.tag))
}

fn percent(done: u64, all: u64) -> u128 {
    u128::from(done) * 100 / u128::from(all.max(1))
}

/// Formats bytes with a unit.
fn format_bytes(count: u64) -> String {
    let unit = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)]
        .into_iter()
        .find(|(_, size)| count >= *size);
    match unit {
        Some((name, size)) => format!("{:.1} {name}", count as f64 / size as f64),
        None => format!("{count} B"),
    }
}

fn format_age(time: Duration) -> String {
    match time.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Escapes text for HTML.
fn escape_html(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    plain.fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_values_are_escaped_and_formatted() {
        assert_eq!(escape_html("<b onload='x'>&\"\n"), "&lt;b onload=&#39;x&#39;&gt;&amp;&#34;");
        assert_eq!(
            [0, 999, 1000, 4_700_000_000].map(format_bytes),
            ["0 B", "999 B", "1.0 kB", "4.7 GB"]
        );
        assert_eq!(
            [(0, 0), (1, 3), (u64::MAX, u64::MAX)].map(|(done, all)| percent(done, all)),
            [0, 33, 100]
        );
        let times = [59, 60, 3600, 172_799, 172_800]
            .map(|seconds| format_age(Duration::from_secs(seconds)));
        assert_eq!(times, ["just now", "1 min ago", "1 h ago", "47 h ago", "2 days ago"]);
    }
}
