//! Rules: `team-*=last:5 pulled:30d keep:latest`.

use std::fmt;
use std::str::FromStr;

use crate::name::Repository;
use crate::pattern::{check_namespace, fits, is_in};

/// Days that a rule may look back: a century.
const MAX_DAYS: u64 = 36_500;

/// What such a thing looks like.
const LIKE: &str = "a rule is like team-*=last:5, library=pulled:30d keep:latest, or anna=all";

/// What stays of some repositories: what one of the words of a rule keeps. The first rule that fits a repository counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Which repositories: `name` or `name*`, of namespaces or whole names.
    pub names: String,
    /// All stays.
    pub all: bool,
    /// The newest tags of each repository stay, so many.
    pub last: Option<usize>,
    /// What was pulled within so many days stays.
    pub pulled: Option<u64>,
    /// Tags that stay: `name` or `name*`.
    pub keep: Vec<String>,
    /// It also speaks of models of the store that no mirror has brought.
    pub own: bool,
}

impl Rule {
    /// Whether it speaks of a repository.
    pub(super) fn fits(&self, name: &Repository) -> bool {
        fits(name, &self.names)
    }

    /// Whether it keeps a tag by its name.
    pub(super) fn keeps(&self, tag: &str) -> bool {
        self.keep.iter().any(|pattern| is_in(tag, pattern))
    }

    fn read(&mut self, word: &str) -> Result<(), String> {
        let (what, value) = word.split_once(':').unwrap_or((word, ""));
        match what {
            "all" if value.is_empty() => self.all = true,
            "own" if value.is_empty() => self.own = true,
            "last" => {
                let count = value.parse().ok().filter(|n| *n > 0);
                self.last = Some(count.ok_or("last: takes a number from 1 up")?);
            }
            "pulled" => {
                self.pulled =
                    Some(days(value).ok_or("pulled: takes days or weeks, such as 30d or 4w")?)
            }
            "keep" if is_tag(value) => self.keep.push(value.to_owned()),
            "keep" => return Err("keep: takes a tag, or the beginning of some and a *".into()),
            _ => {
                return Err(format!("{word:?} is none of last:N, pulled:DAYS, keep:TAG, own, all"));
            }
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = |what: &str| format!("has {text:?}: {what}; {LIKE}");
        let Some((names, words)) = text.split_once('=') else {
            return Err(problem("it does not say what stays"));
        };
        let names = names.trim();
        if check_namespace(names).is_err() {
            return Err(problem("what stands before the = is no namespace or repository"));
        }
        let mut rule = Self { names: names.to_owned(), ..Self::default() };
        for word in words.split_whitespace() {
            rule.read(word).map_err(|what| problem(&what))?;
        }
        let limits = rule.last.is_some() || rule.pulled.is_some();
        match (rule.all, limits, rule.keep.is_empty() && !rule.own) {
            (true, false, true) | (false, true, _) => Ok(rule),
            (true, ..) => Err(problem("all leaves nothing for other words to say")),
            (false, false, _) => {
                Err(problem("without last: or pulled: it would keep next to nothing"))
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.all.then(|| "all".to_owned()));
        words.extend(self.last.map(|n| format!("last:{n}")));
        words.extend(self.pulled.map(|days| format!("pulled:{days}d")));
        words.extend(self.keep.iter().map(|tag| format!("keep:{tag}")));
        words.extend(self.own.then(|| "own".to_owned()));
        write!(f, "{}={}", self.names, words.join(" "))
    }
}

/// A tag, or the beginning of some and a `*`.
fn is_tag(text: &str) -> bool {
    let start = text.strip_suffix('*').unwrap_or(text);
    !text.is_empty() && start.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// `30d` or `4w`.
fn days(text: &str) -> Option<u64> {
    let (number, scale) = match text.strip_suffix('d') {
        Some(number) => (number, 1),
        None => (text.strip_suffix('w')?, 7),
    };
    let days = number.parse::<u64>().ok()?.checked_mul(scale)?;
    (1..=MAX_DAYS).contains(&days).then_some(days)
}
