//! Limits the patterns that a JSON Schema requires of one text.
//!
//! `llguidance` intersects all patterns of a value: those of `allOf`, of references beside other
//! keywords, and of one property in several branches of `allOf`. While it reads the schema, it
//! checks that the intersection matches any text. One step of this check combines the alternatives
//! of all patterns, and the library counts steps only. So thirty patterns with two alternatives
//! each take a billion combinations.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::overlap::{MAX_COMBINATIONS, OverlapMeter};

/// Alternatives that a `format` counts as. The largest overlap of the library's formats is 14, that
/// of `ipv6`.
const FORMAT_ALTERNATIVES: u32 = 16;
/// Maximum number of values that are examined, which limits the work for schemas with many
/// references.
const MAX_VALUES: usize = 500_000;
/// Keywords of which one applies, and those that apply instead of others.
const CHOICES: [&str; 5] = ["anyOf", "oneOf", "if", "then", "else"];

/// Checks a schema.
///
/// # Errors
/// A sentence about the place with too many patterns.
pub fn check(schema: &Value) -> Result<(), String> {
    let mut check = PatternCheck {
        root: schema,
        overlaps: OverlapMeter::default(),
        measured: HashMap::new(),
        referred: HashMap::new(),
        values: 0,
    };
    match check.texts(schema)?.excess() {
        None => Ok(()),
        Some(place) => Err(format!(
            "a text at {:?} must match too many patterns at once: use fewer or simpler patterns for one value",
            if place.is_empty() { "/" } else { &place }
        )),
    }
}

/// Patterns that a text must match.
#[derive(Debug, Clone, Default)]
enum Patterns<'a> {
    /// No pattern.
    #[default]
    None,
    /// One of these patterns.
    One(Vec<&'a str>),
    /// Several patterns, with this number of combinations.
    Several(u32),
}

/// Patterns of a value and of the values in it.
#[derive(Debug, Clone, Default)]
struct Texts<'a> {
    own: Patterns<'a>,
    /// Those of properties and items.
    named: BTreeMap<&'a str, Texts<'a>>,
    /// Those of all properties and items without a name here.
    others: Option<Box<Texts<'a>>>,
}

impl Texts<'_> {
    fn is_empty(&self) -> bool {
        matches!(self.own, Patterns::None) && self.named.is_empty() && self.others.is_none()
    }

    /// The first place with too many combinations.
    fn excess(&self) -> Option<String> {
        if matches!(self.own, Patterns::Several(count) if count > MAX_COMBINATIONS) {
            return Some(String::new());
        }
        let within = |(name, texts): (&str, &Self)| Some(format!("/{name}{}", texts.excess()?));
        let named = self.named.iter().map(|(name, texts)| (*name, texts));
        named.chain(self.others.iter().map(|texts| ("*", &**texts))).find_map(within)
    }
}

/// How two schemas apply to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Both,
    Either,
}

struct PatternCheck<'a> {
    root: &'a Value,
    overlaps: OverlapMeter,
    /// Overlaps of patterns.
    measured: HashMap<&'a str, u32>,
    /// Results by reference; `None` while the reference is followed.
    referred: HashMap<&'a str, Option<Rc<Texts<'a>>>>,
    values: usize,
}

impl<'a> PatternCheck<'a> {
    fn texts(&mut self, schema: &'a Value) -> Result<Texts<'a>, String> {
        let mut all = Texts::default();
        let Value::Object(map) = schema else { return Ok(all) };
        for (keyword, value) in map {
            match (keyword.as_str(), value) {
                ("pattern", Value::String(pattern)) => {
                    let own = Patterns::One(vec![pattern]);
                    all.own =
                        self.join_patterns(std::mem::take(&mut all.own), &own, Relation::Both);
                }
                ("format", Value::String(_)) => {
                    let own = Patterns::Several(FORMAT_ALTERNATIVES);
                    all.own =
                        self.join_patterns(std::mem::take(&mut all.own), &own, Relation::Both);
                }
                ("$ref", Value::String(name)) => {
                    if let Some(target) = self.referred(name)? {
                        all = self.join(all, &target, Relation::Both)?;
                    }
                }
                ("allOf", Value::Array(list)) => {
                    for schema in list {
                        let other = self.texts(schema)?;
                        all = self.join(all, &other, Relation::Both)?;
                    }
                }
                (choice, value) if CHOICES.contains(&choice) => {
                    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                    let either = self.either(list)?;
                    all = self.join(all, &either, Relation::Both)?;
                }
                _ => {}
            }
        }
        let contained = self.contained_texts(map)?;
        self.join(all, &contained, Relation::Both)
    }

    /// Patterns of a value's properties and items.
    fn contained_texts(&mut self, map: &'a Map<String, Value>) -> Result<Texts<'a>, String> {
        let mut all = Texts::default();
        let patterned = map.get("patternProperties").and_then(Value::as_object);
        let patterned = self.either(patterned.into_iter().flat_map(Map::values))?;
        if let Some(Value::Object(properties)) = map.get("properties") {
            for (name, schema) in properties {
                let texts = self.texts(schema)?;
                let texts = self.join(texts, &patterned, Relation::Both)?;
                if !texts.is_empty() {
                    all.named.insert(name, texts);
                }
            }
        }
        let mut others = vec![patterned];
        for keyword in ["additionalProperties", "additionalItems", "items"] {
            match map.get(keyword) {
                Some(schema @ Value::Object(_)) => others.push(self.texts(schema)?),
                Some(Value::Array(items)) => others.push(self.either(items)?),
                _ => {}
            }
        }
        if let Some(Value::Array(items)) = map.get("prefixItems") {
            others.push(self.either(items)?);
        }
        let mut either = Texts::default();
        for texts in &others {
            either = self.join(either, texts, Relation::Either)?;
        }
        all.others = (!either.is_empty()).then(|| Box::new(either));
        Ok(all)
    }

    /// Patterns of a value that one of several schemas applies to.
    fn either(
        &mut self,
        schemas: impl IntoIterator<Item = &'a Value>,
    ) -> Result<Texts<'a>, String> {
        let mut all = Texts::default();
        for schema in schemas {
            let other = self.texts(schema)?;
            all = self.join(all, &other, Relation::Either)?;
        }
        Ok(all)
    }

    /// The patterns of a reference's target. `None` if the reference leads back to itself, or to no
    /// schema.
    fn referred(&mut self, name: &'a str) -> Result<Option<Rc<Texts<'a>>>, String> {
        if let Some(known) = self.referred.get(name) {
            return Ok(known.clone());
        }
        let target = name.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let Some(target) = target else { return Ok(None) };
        self.referred.insert(name, None);
        let found = Rc::new(self.texts(target)?);
        self.referred.insert(name, Some(found.clone()));
        Ok(Some(found))
    }

    /// The patterns of a value that two schemas apply to.
    fn join(
        &mut self,
        mut all: Texts<'a>,
        other: &Texts<'a>,
        relation: Relation,
    ) -> Result<Texts<'a>, String> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err("its references repeat too many patterns: use fewer of them".into());
        }
        all.own = self.join_patterns(all.own, &other.own, relation);
        for (name, texts) in &mut all.named {
            if let Some(other) = other.named.get(name).or(other.others.as_deref()) {
                *texts = self.join(std::mem::take(texts), other, relation)?;
            }
        }
        for (name, texts) in &other.named {
            if !all.named.contains_key(name) {
                let known = all.others.as_deref().cloned().unwrap_or_default();
                let joined = self.join(known, texts, relation)?;
                all.named.insert(name, joined);
            }
        }
        if let Some(other) = other.others.as_deref() {
            let known = all.others.take().map_or_else(Texts::default, |texts| *texts);
            all.others = Some(Box::new(self.join(known, other, relation)?));
        }
        Ok(all)
    }

    fn join_patterns(
        &mut self,
        all: Patterns<'a>,
        other: &Patterns<'a>,
        relation: Relation,
    ) -> Patterns<'a> {
        match (all, other, relation) {
            (all, Patterns::None, _) => all,
            (Patterns::None, other, _) => other.clone(),
            (Patterns::One(mut all), Patterns::One(other), Relation::Either) => {
                all.extend(
                    other.iter().filter(|pattern| !all.contains(pattern)).collect::<Vec<_>>(),
                );
                Patterns::One(all)
            }
            (all, other, relation) => {
                let (one, two) = (self.combinations(&all), self.combinations(other));
                Patterns::Several(match relation {
                    Relation::Both => one.saturating_mul(two),
                    Relation::Either => one.max(two),
                })
            }
        }
    }

    fn combinations(&mut self, patterns: &Patterns<'a>) -> u32 {
        match patterns {
            Patterns::None => 1,
            Patterns::Several(count) => *count,
            Patterns::One(list) => {
                list.iter().map(|pattern| self.overlap(pattern)).max().unwrap_or(1)
            }
        }
    }

    fn overlap(&mut self, pattern: &'a str) -> u32 {
        let overlaps = &mut self.overlaps;
        let measure = || overlaps.pattern_overlap(pattern).unwrap_or(u32::MAX);
        *self.measured.entry(pattern).or_insert_with(measure)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_patterns_of_one_value_are_accepted() {
        let name = json!({"type": "string", "pattern": "^[a-z][a-z0-9-]*$"});
        let id = json!({"pattern": "^(a|b|c)[0-9]{2,9}$", "format": "uuid"});
        let kinds_of_letters = ["[A-Z]", "[a-z]", "[0-9]", "[!-/]"].map(|p| json!({"pattern": p}));
        let branches: Vec<Value> = (0..200)
            .map(|n| json!({"properties": {"kind": {"const": n}, "id": {"$ref": "#/$defs/id"}, "name": {"$ref": "#/$defs/name"}}}))
            .collect();
        for schema in [
            json!({"oneOf": branches, "$defs": {"id": id, "name": name}}),
            json!({"allOf": [name, id, {"pattern": "x$"}]}),
            json!({"type": "string", "pattern": "a|".repeat(50_000)}),
            json!({"allOf": kinds_of_letters}),
            json!({"patternProperties": {"^a": name, "^b": name, "^c": name}, "additionalProperties": name}),
            json!({"properties": (0..500).map(|n| (n.to_string(), name.clone())).collect::<serde_json::Map<_, _>>()}),
            json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"name": name, "next": {"$ref": "#/$defs/tree"}}}}}),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn many_patterns_of_one_value_are_refused() {
        let patterns = |wrap: &dyn Fn(Value) -> Value| -> Value {
            let one =
                |n: usize| wrap(json!({"type": "string", "pattern": format!("(a|b){{{n},}}")}));
            json!({"allOf": (1..30).map(one).collect::<Vec<_>>()})
        };
        let direct = patterns(&|schema| schema);
        let unanchored = |n: usize| json!({"type": "string", "pattern": format!("[ab]{n}x")});
        let by_keyword: Vec<_> = (0..24)
            .map(|n| match n % 3 {
                0 => json!({"properties": {"a": unanchored(n)}}),
                1 => json!({"additionalProperties": unanchored(n)}),
                _ => json!({"patternProperties": {"^a": unanchored(n)}}),
            })
            .collect();
        for schema in [
            patterns(&|schema| json!({"properties": {"a": {"items": schema}}})),
            patterns(&|schema| json!({"anyOf": [{"type": "null"}, schema]})),
            json!({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": direct}}}}),
            json!({"items": {"items": direct.clone()}}),
            direct,
            json!({"allOf": by_keyword}),
            json!({"allOf": (0..24).map(unanchored).collect::<Vec<_>>()}),
            json!({"allOf": [unanchored(1), {"pattern": "a.{18}b"}]}),
        ] {
            assert!(
                check(&schema).is_err_and(|error| error.contains("too many patterns")),
                "{schema}"
            );
        }
    }

    #[test]
    fn references_that_double_take_bounded_time() {
        let define = |n: usize| {
            let next = json!({"$ref": format!("#/$defs/{}", n + 1)});
            (n.to_string(), json!({"properties": {"a": next, "b": next}}))
        };
        let mut defs: serde_json::Map<String, Value> = (0..60).map(define).collect();
        defs.insert("60".into(), json!({"pattern": "a|b"}));
        let error = check(&json!({"$ref": "#/$defs/0", "$defs": defs})).unwrap_err();
        assert!(error.contains("references"), "{error}");
    }
}
