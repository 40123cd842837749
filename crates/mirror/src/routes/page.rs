//! The page for people: what is here, what is being fetched, who pulls, and how to point a client at it. It needs nothing from
//! elsewhere.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::{Answered, Mirror};
use crate::access::{Holder, Right};
use crate::history::History;
use crate::holding::Shown;
use crate::lock::lock;
use crate::name::Repository;
use crate::place::{self, text};
use crate::stock::Use;

/// Rows of a table at most.
const MAX_ROWS: usize = 1000;
/// Pulls that are remembered.
const MAX_PULLS: usize = 50;
/// Letters of what a client says about itself that are kept.
const MAX_AGENT: usize = 80;

/// What browsers may load: nothing but what the page brings.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
pre,code{background:#f3f3f3;border-radius:4px;padding:.1em .3em}pre{padding:.6em;overflow:auto}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25em .6em;border-bottom:1px solid #ddd}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre,code{background:#2a2a2a}td,th{border-color:#444}}";

/// The address at the other end of a connection. Whoever answers connections puts it among a request's extensions.
#[derive(Debug, Clone)]
pub struct Caller(pub String);

impl Caller {
    /// Where he is: of the addresses of the newer kind each has as many as he likes, with one beginning.
    pub(crate) fn place(&self) -> String {
        match self.0.parse() {
            Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_none() => {
                let net = Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX));
                format!("{net}/64")
            }
            _ => self.0.clone(),
        }
    }
}

/// The last pulls, newest first.
#[derive(Default)]
pub(crate) struct Pulls(Mutex<VecDeque<Pull>>);

#[derive(Clone)]
struct Pull {
    at: Instant,
    name: Repository,
    tag: String,
    who: String,
}

impl Pulls {
    /// Notes that somebody was given a manifest.
    pub(crate) fn note(&self, head: &Parts, name: &Repository, tag: &str) {
        let forwarded = head.headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let forwarded =
            forwarded.and_then(|all| all.split(',').next()).map(|one| one.trim().to_owned());
        let caller = || head.extensions.get::<Caller>().map(|caller| caller.0.clone());
        let agent = text(&head.headers, header::USER_AGENT).unwrap_or_default();
        let who = format!("{} {agent}", forwarded.or_else(caller).unwrap_or_default());
        let who = who.trim().chars().take(MAX_AGENT).collect();
        let mut pulls = lock(&self.0);
        pulls.truncate(MAX_PULLS - 1);
        pulls.push_front(Pull { at: Instant::now(), name: name.clone(), tag: tag.to_owned(), who });
    }

    fn all(&self) -> Vec<Pull> {
        lock(&self.0).iter().cloned().collect()
    }
}

impl Mirror {
    pub(super) async fn page(&self, head: &Parts, holder: Option<&Holder>) -> Answered {
        let may =
            |name: &Repository| holder.is_none_or(|holder| holder.may(Right::Read, Some(name)));
        let shown = self.stock().shown(self.library()).await?;
        let mut shown: Vec<&Shown> = shown.iter().filter(|entry| may(&entry.name)).collect();
        shown.sort_by(|a, b| (&a.name, &a.tag).cmp(&(&b.name, &b.tag)));
        let (fetched, here): (Vec<_>, Vec<_>) =
            shown.into_iter().partition(|entry| entry.completed.is_some());
        self.history().learn_for_people(self.library().notes()).await;
        let mut uses = self.stock().uses(self.library()).await?;
        uses.retain(|of| holder.is_none_or(|holder| holder.may_see(&of.namespace)));
        let mut pulls = self.pulls().all();
        pulls.retain(|pull| may(&pull.name));
        let place = place::of(head);
        let host = escaped(place.split_once("://").map_or("", |(_, host)| host));
        let html = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
             <meta http-equiv=\"refresh\" content=\"10\"><title>Models at {host}</title><style>{STYLE}</style>\
             <h1>Models at {host}</h1>{}{}{}{}{}</html>",
            how(&host, place.starts_with("https:")),
            fetching(&fetched),
            listed(&here, self.history()),
            limited(&uses),
            pulled(&pulls),
        );
        let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
        let mut response: Response = (StatusCode::OK, kind, Body::from(html)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// How to point a client at it.
fn how(host: &str, secure: bool) -> String {
    let (flag, tls) = match secure {
        true => ("", ""),
        false => (" --insecure", " --src-tls-verify=false"),
    };
    format!(
        "<h2>Pull from here</h2><pre>ollama pull{flag} {host}/library/NAME:TAG\npuna pull{flag} {host}/library/NAME:TAG\n\
         skopeo copy{tls} docker://{host}/REPOSITORY:TAG dir:FOLDER</pre>"
    )
}

fn fetching(entries: &[&Shown]) -> String {
    let row = |entry: &&Shown| {
        let (done, all) = (entry.completed.unwrap_or(0), entry.size);
        format!(
            "<tr><td>{}<td>{} of {}<td>{} %",
            label(entry),
            bytes(done),
            bytes(all),
            percent(done, all)
        )
    };
    table("Being fetched", "<th>Model<th>Bytes<th>", entries.iter().map(row).collect())
}

fn listed(entries: &[&Shown], history: &History) -> String {
    let now = history.now();
    let row = |entry: &&Shown| {
        let (label, size, digest) = (label(entry), bytes(entry.size), entry.digest.short());
        let pulled = history.last_pull(&entry.name, &entry.tag, &entry.digest);
        let pulled =
            pulled.map(|at| ago(Duration::from_secs(now.saturating_sub(at)))).unwrap_or_default();
        format!("<tr><td>{label}<td>{size}<td><code>{digest}</code><td>{pulled}")
    };
    let rows: Vec<String> = entries.iter().take(MAX_ROWS).map(row).collect();
    let more = match entries.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => {
            format!("<p>And {more} more; <code>/v2/_catalog</code> names all repositories.</p>")
        }
    };
    match rows.is_empty() {
        true => "<p>There is nothing here yet.</p>".to_owned(),
        false => table("Here", "<th>Repository<th>Size<th>Digest<th>Last pull", rows) + &more,
    }
}

fn limited(uses: &[Use]) -> String {
    let row = |of: &Use| {
        let (name, share) = (escaped(&of.namespace), percent(of.used, of.quota));
        format!("<tr><td>{name}<td>{} of {}<td>{share} %", bytes(of.used), bytes(of.quota))
    };
    table("Quotas", "<th>Namespace<th>Used<th>", uses.iter().map(row).collect())
}

fn pulled(pulls: &[Pull]) -> String {
    let row = |pull: &Pull| {
        let (name, tag) = (escaped(pull.name.as_str()), escaped(&pull.tag));
        format!("<tr><td>{name}:{tag}<td>{}<td>{}", ago(pull.at.elapsed()), escaped(&pull.who))
    };
    table("Last pulls", "<th>Repository<th>When<th>Who", pulls.iter().map(row).collect())
}

/// A table; nothing without rows.
fn table(title: &str, head: &str, rows: Vec<String>) -> String {
    match rows.is_empty() {
        true => String::new(),
        false => format!("<h2>{title}</h2><table><tr>{head}{}</table>", rows.concat()),
    }
}

fn label(entry: &Shown) -> String {
    escaped(&format!("{}:{}", entry.name, entry.tag))
}

fn percent(done: u64, all: u64) -> u128 {
    u128::from(done) * 100 / u128::from(all.max(1))
}

/// Bytes in the unit that fits.
fn bytes(count: u64) -> String {
    let unit = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)]
        .into_iter()
        .find(|(_, size)| count >= *size);
    match unit {
        Some((name, size)) => format!("{:.1} {name}", count as f64 / size as f64),
        None => format!("{count} B"),
    }
}

fn ago(time: Duration) -> String {
    match time.as_secs() {
        0..60 => "just now".to_owned(),
        seconds @ 60..3600 => format!("{} min ago", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

/// Text of others within the page.
fn escaped(text: &str) -> String {
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
    fn what_others_say_stays_text() {
        assert_eq!(escaped("<b onload='x'>&\"\n"), "&lt;b onload=&#39;x&#39;&gt;&amp;&#34;");
        assert_eq!([0, 999, 1000, 4_700_000_000].map(bytes), ["0 B", "999 B", "1.0 kB", "4.7 GB"]);
        assert_eq!(
            [(0, 0), (1, 3), (u64::MAX, u64::MAX)].map(|(done, all)| percent(done, all)),
            [0, 33, 100]
        );
        let times =
            [59, 60, 3600, 172_799, 172_800].map(|seconds| ago(Duration::from_secs(seconds)));
        assert_eq!(times, ["just now", "1 min ago", "1 h ago", "47 h ago", "2 days ago"]);
    }
}
