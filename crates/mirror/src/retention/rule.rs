//! Retention rules such as `team-*=last:5 pulled:30d keep:latest`.

use std::fmt;
use std::str::FromStr;

use crate::types::name_pattern::{check_namespace, matches_pattern, repository_matches};
use crate::types::repository::Repository;

/// Largest number of days in a rule: a century.
const MAX_DAYS: u64 = 36_500;

/// Syntax shown in error messages.
const SYNTAX_HINT: &str =
    "write rules such as team-*=last:5, library=pulled:30d keep:latest, or anna=all";

/// Rule that says which tags of matching repositories stay. A tag stays if any word of the rule
/// keeps it. The first rule that matches a repository applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Pattern of namespaces or whole repository names: `name` or `name*`.
    pub names: String,
    /// Keep everything.
    pub all: bool,
    /// Keep this many newest tags of each repository.
    pub last: Option<usize>,
    /// Keep what was pulled within this many days.
    pub pulled: Option<u64>,
    /// Keep tags that match one of these patterns: `name` or `name*`.
    pub keep: Vec<String>,
    /// Also apply the rule to models of the store that no mirror has fetched or received.
    pub includes_local_models: bool,
}

impl Rule {
    /// Whether the rule applies to a repository.
    pub(super) fn matches(&self, name: &Repository) -> bool {
        repository_matches(name, &self.names)
    }

    /// Whether the rule keeps a tag by its name.
    pub(super) fn keeps_tag(&self, tag: &str) -> bool {
        self.keep.iter().any(|pattern| matches_pattern(tag, pattern))
    }

    fn parse_word(&mut self, word: &str) -> Result<(), String> {
        let (what, value) = word.split_once(':').unwrap_or((word, ""));
        match what {
            "all" if value.is_empty() => self.all = true,
            "own" if value.is_empty() => self.includes_local_models = true,
            "last" => {
                let count = value.parse().ok().filter(|n| *n > 0);
                self.last = Some(count.ok_or("last: needs a number, 1 or more")?);
            }
            "pulled" => {
                self.pulled =
                    Some(days(value).ok_or("pulled: needs days or weeks, such as 30d or 4w")?)
            }
            "keep" if is_tag(value) => self.keep.push(value.to_owned()),
            "keep" => return Err("keep: needs a tag, or a prefix of tags with *".into()),
            _ => {
                return Err(format!(
                    "unknown word {word:?}, expected last:N, pulled:DAYS, keep:TAG, own or all"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = |what: &str| format!("has {text:?}: {what}; {SYNTAX_HINT}");
        let Some((names, words)) = text.split_once('=') else {
            return Err(problem("it lacks = and the tags to keep"));
        };
        let names = names.trim();
        if check_namespace(names).is_err() {
            return Err(problem("the text before = is not a namespace or repository"));
        }
        let mut rule = Self { names: names.to_owned(), ..Self::default() };
        for word in words.split_whitespace() {
            rule.parse_word(word).map_err(|what| problem(&what))?;
        }
        let limits = rule.last.is_some() || rule.pulled.is_some();
        match (rule.all, limits, rule.keep.is_empty() && !rule.includes_local_models) {
            (true, false, true) | (false, true, _) => Ok(rule),
            (true, ..) => Err(problem("all cannot be combined with other words")),
            (false, false, _) => Err(problem("it needs last:, pulled: or all")),
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
        words.extend(self.includes_local_models.then(|| "own".to_owned()));
        write!(f, "{}={}", self.names, words.join(" "))
    }
}

/// Whether the text is a tag or a prefix of tags with `*`.
fn is_tag(text: &str) -> bool {
    let start = text.strip_suffix('*').unwrap_or(text);
    !text.is_empty() && start.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Parses `30d` or `4w` as days.
fn days(text: &str) -> Option<u64> {
    let (number, scale) = match text.strip_suffix('d') {
        Some(number) => (number, 1),
        None => (text.strip_suffix('w')?, 7),
    };
    let days = number.parse::<u64>().ok()?.checked_mul(scale)?;
    (1..=MAX_DAYS).contains(&days).then_some(days)
}
