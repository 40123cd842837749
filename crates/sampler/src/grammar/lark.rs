//! Translates a GBNF grammar to Lark.
//!
//! The two differ in one respect. GBNF describes characters. Lark separates rules from *terminals*,
//! which are regular expressions with the longest match. So the translation makes terminals as
//! large as possible. Every rule without recursion becomes a regular expression, and so does every
//! run of regular rules, literals and classes within a recursive rule. A grammar without recursion
//! becomes a single expression, and then both forms accept the same texts. In a recursive grammar a
//! terminal may consume characters that GBNF would leave to what follows. The translation then
//! rejects texts that GBNF accepts, never the other way round.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::gbnf::{Expr, Grammar};

/// Maximum number of bytes of a regular expression. Rules that mention others twice double their
/// size with each level.
const MAX_REGEX_BYTES: usize = 64 << 10;
/// Maximum number of bytes of all rules' regular expressions.
const MAX_PATTERNS_BYTES: usize = 4 << 20;
/// Maximum number of bytes of the result.
const MAX_LARK_BYTES: usize = 4 << 20;
/// Maximum number of bytes of all expressions that the translation writes or copies. A rule that is
/// mentioned often is copied each time. This is some tens of milliseconds.
const MAX_WORK_BYTES: usize = 64 << 20;

/// Translates a grammar to Lark for `llguidance`.
///
/// # Errors
/// The result is too large.
pub fn write(grammar: &Grammar) -> Result<String, String> {
    let budget = WorkBudget(Cell::new(MAX_WORK_BYTES));
    let regular = regular_rules(&grammar.rules, &budget);
    let mut writer =
        Writer { regular, budget, terminals: HashMap::new(), definitions: String::new() };
    let mut rules = String::new();
    let mut wanted = vec![grammar.root];
    let mut seen = HashSet::from([grammar.root]);
    while let Some(index) = wanted.pop() {
        let body = writer.expr(&grammar.rules[index]);
        let name = if index == grammar.root { "start".into() } else { rule_name(index) };
        let _ = writeln!(rules, "{name}: {}", if body.is_empty() { "\"\"" } else { &body });
        let is_too_long = rules.len() + writer.definitions.len() > MAX_LARK_BYTES;
        if is_too_long || writer.budget.is_spent() {
            return Err(
                "it is too large: use fewer rules, and mention long rules less often".into()
            );
        }
        if writer.regular[index].is_none() {
            let mut mentioned = Vec::new();
            mentions(&grammar.rules[index], &mut mentioned);
            let new = |rule: &usize| writer.regular[*rule].is_none() && seen.insert(*rule);
            wanted.extend(mentioned.into_iter().filter(new));
        }
    }
    // The root may refer to itself.
    if writer.regular[grammar.root].is_none() {
        let _ = writeln!(rules, "{}: start", rule_name(grammar.root));
    }
    Ok(rules + &writer.definitions)
}

fn rule_name(index: usize) -> String {
    format!("r{index}")
}

/// Bytes that the translation may still write or copy. Once they are spent, no expression is
/// regular, so that the rest of the translation is short.
struct WorkBudget(Cell<usize>);

impl WorkBudget {
    /// Spends bytes; `None` if there are not as many.
    fn spend(&self, bytes: usize) -> Option<()> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or(0));
        left.map(drop)
    }

    fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

/// A regular expression.
#[derive(Debug, Clone, Default, PartialEq)]
struct Regular {
    /// In Rust's syntax, grouped: it can be repeated and concatenated.
    pattern: String,
    /// Whether it matches the empty text.
    nullable: bool,
}

/// Regular expressions of the rules that have one. Visits a rule after all rules that it mentions,
/// so recursive rules are never visited.
fn regular_rules(rules: &[Expr], budget: &WorkBudget) -> Vec<Option<Regular>> {
    let mut done: Vec<Option<Regular>> = vec![None; rules.len()];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut missing = vec![0usize; rules.len()];
    for (index, rule) in rules.iter().enumerate() {
        let mut mentioned = Vec::new();
        mentions(rule, &mut mentioned);
        missing[index] = mentioned.len();
        mentioned.into_iter().for_each(|used| users[used].push(index));
    }
    let mut ready: Vec<usize> = (0..rules.len()).filter(|&i| missing[i] == 0).collect();
    let mut left = MAX_PATTERNS_BYTES;
    while let Some(index) = ready.pop() {
        let Some(found) = regular(&rules[index], &done, budget) else { continue };
        let Some(rest) = left.checked_sub(found.pattern.len()) else { continue };
        left = rest;
        done[index] = Some(found);
        for &user in &users[index] {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(user);
            }
        }
    }
    done
}

fn mentions(expr: &Expr, found: &mut Vec<usize>) {
    match expr {
        Expr::Rule(index) => found.push(*index),
        Expr::Sequence(list) | Expr::Choice(list) => list.iter().for_each(|e| mentions(e, found)),
        Expr::Repeat { what, .. } => mentions(what, found),
        Expr::Text(_) | Expr::Class { .. } | Expr::Any | Expr::Token(_) => {}
    }
}

/// Converts an expression to a regular one, if it is regular and not too long.
fn regular(expr: &Expr, rules: &[Option<Regular>], budget: &WorkBudget) -> Option<Regular> {
    let found = match expr {
        _ if budget.is_spent() => return None,
        Expr::Text(_) | Expr::Class { .. } | Expr::Any => character_pattern(expr),
        Expr::Rule(index) => {
            let found = rules[*index].as_ref()?;
            budget.spend(found.pattern.len())?;
            return Some(found.clone());
        }
        Expr::Token(_) => return None,
        Expr::Sequence(list) => {
            let mut all = Regular::EMPTY;
            for expr in list {
                all = all.then("", &regular(expr, rules, budget)?)?;
            }
            all.grouped()
        }
        Expr::Choice(list) => {
            let mut all: Option<Regular> = None;
            for expr in list {
                let part = regular(expr, rules, budget)?;
                all = Some(match all {
                    None => part,
                    Some(before) => {
                        let nullable = before.nullable || part.nullable;
                        Regular { nullable, ..before.then("|", &part)? }
                    }
                });
            }
            all.unwrap_or(Regular::EMPTY).grouped()
        }
        Expr::Repeat { what, min, max } => {
            let what = regular(what, rules, budget)?;
            let nullable = *min == 0 || what.nullable;
            Regular { pattern: group(&format!("{}{}", what.pattern, times(*min, *max))), nullable }
        }
    };
    budget.spend(found.pattern.len())?;
    (found.pattern.len() <= MAX_REGEX_BYTES).then_some(found)
}

/// Regular expression of a literal or a class.
fn character_pattern(expr: &Expr) -> Regular {
    match expr {
        Expr::Text(text) => {
            let pattern: String = text.chars().map(escaped).collect();
            Regular { pattern: group(&pattern), nullable: text.is_empty() }
        }
        Expr::Class { ranges, negated } => {
            let range =
                |(first, last): &(char, char)| format!("{}-{}", escaped(*first), escaped(*last));
            let ranges: String = ranges.iter().map(range).collect();
            let pattern = format!("[{}{ranges}]", if *negated { "^" } else { "" });
            Regular { pattern, nullable: false }
        }
        _ => Regular { pattern: "(?s:.)".into(), nullable: false },
    }
}

impl Regular {
    /// Matches the empty text.
    const EMPTY: Self = Self { pattern: String::new(), nullable: true };

    /// Concatenates two expressions. `None` if the result is too long.
    fn then(mut self, between: &str, next: &Self) -> Option<Self> {
        self.pattern.push_str(between);
        self.pattern.push_str(&next.pattern);
        self.nullable &= next.nullable;
        (self.pattern.len() <= MAX_REGEX_BYTES).then_some(self)
    }

    fn grouped(self) -> Self {
        Self { pattern: group(&self.pattern), ..self }
    }
}

fn group(pattern: &str) -> String {
    format!("(?:{pattern})")
}

fn times(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// Escapes a character for any position of a pattern, including between the slashes of Lark.
pub(super) fn escaped(c: char) -> String {
    match c.is_ascii_alphanumeric() {
        true => c.to_string(),
        false => format!("\\x{{{:x}}}", u32::from(c)),
    }
}

struct Writer {
    regular: Vec<Option<Regular>>,
    budget: WorkBudget,
    /// Numbers of terminals by their patterns.
    terminals: HashMap<String, usize>,
    definitions: String,
}

impl Writer {
    /// Writes an expression of a rule. Returns an empty string for the empty text.
    fn expr(&mut self, expr: &Expr) -> String {
        if let Some(found) = regular(expr, &self.regular, &self.budget) {
            return self.terminal(&found);
        }
        match expr {
            Expr::Rule(index) => rule_name(*index),
            Expr::Token(token) => token_name(&token.written, token.negated),
            Expr::Sequence(list) => self.sequence(list),
            Expr::Choice(list) => {
                let parts: Vec<String> = list.iter().map(|e| self.expr(e)).collect();
                let written = parts.iter().map(|p| if p.is_empty() { "\"\"" } else { p });
                format!("({})", written.collect::<Vec<_>>().join(" | "))
            }
            Expr::Repeat { what, min, max } => {
                format!("({}){}", self.expr(what), times(*min, *max))
            }
            // Too long as part of another expression, but not for a terminal.
            Expr::Text(_) | Expr::Class { .. } | Expr::Any => {
                self.terminal(&character_pattern(expr))
            }
        }
    }

    /// Writes a sequence. Each run of regular expressions becomes one terminal.
    fn sequence(&mut self, list: &[Expr]) -> String {
        let (mut parts, mut run) = (Vec::new(), None::<Regular>);
        for expr in list {
            let found = regular(expr, &self.regular, &self.budget);
            let longer = match (&run, &found) {
                (Some(run), Some(found)) => {
                    let copied = self.budget.spend(run.pattern.len() + found.pattern.len());
                    copied.and_then(|()| run.clone().then("", found))
                }
                (None, found) => found.clone(),
                (Some(_), None) => None,
            };
            if longer.is_none() {
                parts.extend(run.take().map(|run| self.terminal(&run.grouped())));
            }
            match found {
                Some(found) => run = longer.or(Some(found)),
                None => parts.push(self.expr(expr)),
            }
        }
        parts.extend(run.map(|run| self.terminal(&run.grouped())));
        parts.retain(|part| !part.is_empty());
        parts.join(" ")
    }

    /// Name of a terminal. Terminals never match the empty text, so a nullable one becomes
    /// optional.
    fn terminal(&mut self, found: &Regular) -> String {
        let next = self.terminals.len();
        let index = *self.terminals.entry(found.pattern.clone()).or_insert(next);
        if index == next {
            let not_empty = if found.nullable { " & /(?s:.)+/" } else { "" };
            let _ = writeln!(self.definitions, "T{index}: /{}/{not_empty}", found.pattern);
        }
        format!("T{index}{}", if found.nullable { "?" } else { "" })
    }
}

/// The negation of `<[5]>` is `<[^5]>`.
fn token_name(written: &str, negated: bool) -> String {
    match (negated, written.strip_prefix("<[")) {
        (true, Some(rest)) => format!("<[^{rest}"),
        _ => written.to_owned(),
    }
}
