//! Finds schemas without finite values: each value would contain another one of the same schema.
//!
//! The check reads a relaxed schema as a graph of conditions. A schema has a finite value when all
//! conditions of an "and" node hold, or one condition of an "or" node. Conditions that never become
//! true depend on each other in a cycle.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{Object, allows, child};

/// Types of values that hold no other values.
const PLAIN_TYPES: [&str; 5] = ["null", "boolean", "number", "integer", "string"];

/// Rejects a relaxed schema without finite values. `pointers` maps references to definitions to the
/// JSON pointers in the request's schema. `unfit` is the reason if there is no cycle.
///
/// # Errors
/// A sentence that names the schema, and the subschema that leads back to it.
pub(super) fn check_finite(
    root: &Value,
    pointers: &HashMap<&str, &str>,
    unfit: Option<String>,
) -> Result<(), String> {
    let mut graph = Graph { root, nodes: Vec::new(), schemas: HashMap::new(), unread: Vec::new() };
    let start = graph.schema(root, String::new());
    while let Some((number, schema)) = graph.unread.pop() {
        graph.read(number, schema, pointers);
    }
    let finite = graph.finite_nodes();
    match finite[start] {
        true => Ok(()),
        false => graph.cycle(start, &finite).or(unfit).map_or(Ok(()), Err),
    }
}

/// A condition that depends on other conditions.
#[derive(Default)]
struct Node {
    /// One of the conditions suffices. Otherwise all are needed.
    is_choice: bool,
    needs: Vec<usize>,
    /// JSON pointer of a schema. `None` for a condition within a schema.
    pointer: Option<String>,
    /// The schema describes a property or an item.
    is_part: bool,
}

struct Graph<'a> {
    root: &'a Value,
    nodes: Vec<Node>,
    /// Nodes of schemas by their addresses.
    schemas: HashMap<*const Value, usize>,
    unread: Vec<(usize, &'a Value)>,
}

impl<'a> Graph<'a> {
    fn add(&mut self, is_choice: bool, needs: Vec<usize>) -> usize {
        self.nodes.push(Node { is_choice, needs, ..Node::default() });
        self.nodes.len() - 1
    }

    /// Returns the node of a schema. The schema is read later.
    fn schema(&mut self, schema: &'a Value, pointer: String) -> usize {
        let address = std::ptr::from_ref(schema);
        if let Some(&known) = self.schemas.get(&address) {
            return known;
        }
        let number = self.add(false, Vec::new());
        self.nodes[number].pointer = Some(pointer);
        self.schemas.insert(address, number);
        self.unread.push((number, schema));
        number
    }

    /// Returns the node of a property's or item's schema.
    fn part(&mut self, schema: &'a Value, pointer: String) -> usize {
        let number = self.schema(schema, pointer);
        self.nodes[number].is_part = true;
        number
    }

    fn read(&mut self, number: usize, schema: &'a Value, pointers: &HashMap<&str, &str>) {
        let Value::Object(map) = schema else {
            self.nodes[number].is_choice = *schema == Value::Bool(false);
            return;
        };
        let pointer = self.nodes[number].pointer.clone().unwrap_or_default();
        let mut needs = Vec::new();
        if let Some(reference) = map.get("$ref").and_then(Value::as_str)
            && let Some(target) =
                reference.strip_prefix('#').and_then(|path| self.root.pointer(path))
        {
            let given = pointers.get(reference).copied().unwrap_or_else(|| &reference[1..]);
            needs.push(self.schema(target, given.to_owned()));
        }
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let Some(list) = map.get(keyword).and_then(Value::as_array) else { continue };
            let inner = child(&pointer, keyword);
            let parts = list.iter().enumerate();
            let parts: Vec<usize> =
                parts.map(|(i, part)| self.schema(part, child(&inner, &i.to_string()))).collect();
            match keyword {
                "allOf" => needs.extend(parts),
                _ => needs.push(self.add(true, parts)),
            }
        }
        let is_plain = map.contains_key("const") || map.contains_key("enum");
        if !is_plain && !PLAIN_TYPES.iter().any(|kind| allows(map, kind)) {
            let list = allows(map, "array").then(|| self.items(map, &pointer));
            let object = allows(map, "object").then(|| self.properties(map, &pointer));
            let kinds = list.into_iter().chain(object).collect();
            needs.push(self.add(true, kinds));
        }
        self.nodes[number].needs = needs;
    }

    /// Condition for the items that an array must have.
    fn items(&mut self, map: &'a Object, pointer: &str) -> usize {
        let min = map.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let (keyword, first) = match (map.get("prefixItems"), map.get("items")) {
            (Some(Value::Array(first)), _) => ("prefixItems", first.as_slice()),
            (_, Some(Value::Array(first))) => ("items", first.as_slice()),
            _ => ("prefixItems", &[][..]),
        };
        let inner = child(pointer, keyword);
        let counted = first.iter().enumerate().take(usize::try_from(min).unwrap_or(usize::MAX));
        let mut needs: Vec<usize> =
            counted.map(|(i, item)| self.part(item, child(&inner, &i.to_string()))).collect();
        let keyword = if keyword == "items" { "additionalItems" } else { "items" };
        if min > first.len() as u64
            && let Some(item) = map.get(keyword)
        {
            needs.push(self.part(item, child(pointer, keyword)));
        }
        self.add(false, needs)
    }

    /// Condition for the properties that an object must have.
    fn properties(&mut self, map: &'a Object, pointer: &str) -> usize {
        let declared = map.get("properties").and_then(Value::as_object);
        let others =
            map.get("additionalProperties").filter(|_| !map.contains_key("patternProperties"));
        let inner = child(pointer, "properties");
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
        let mut needs = Vec::new();
        for name in &required {
            match (declared.and_then(|declared| declared.get(*name)), others) {
                (Some(property), _) => needs.push(self.part(property, child(&inner, name))),
                (None, Some(others)) => {
                    needs.push(self.part(others, child(pointer, "additionalProperties")))
                }
                (None, None) => {}
            }
        }
        let min = map.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        if min > required.len() as u64
            && let Some(others) = others
        {
            let optional = declared
                .into_iter()
                .flatten()
                .filter(|(name, _)| !required.contains(name.as_str()));
            let mut further: Vec<usize> =
                optional.map(|(name, property)| self.part(property, child(&inner, name))).collect();
            further.push(self.part(others, child(pointer, "additionalProperties")));
            needs.push(self.add(true, further));
        }
        self.add(false, needs)
    }

    /// For each node: whether it holds.
    fn finite_nodes(&self) -> Vec<bool> {
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut missing = Vec::with_capacity(self.nodes.len());
        let mut holding = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            node.needs.iter().for_each(|need| dependents[*need].push(number));
            missing.push(if node.is_choice { 1 } else { node.needs.len() });
            if missing[number] == 0 {
                holding.push(number);
            }
        }
        let mut finite = vec![false; self.nodes.len()];
        while let Some(number) = holding.pop() {
            if std::mem::replace(&mut finite[number], true) {
                continue;
            }
            for &dependent in &dependents[number] {
                missing[dependent] = missing[dependent].saturating_sub(1);
                if missing[dependent] == 0 {
                    holding.push(dependent);
                }
            }
        }
        finite
    }

    /// Describes a cycle of conditions that do not hold. `None` if a condition fails without a
    /// cycle.
    fn cycle(&self, start: usize, finite: &[bool]) -> Option<String> {
        let (mut path, mut positions) = (vec![start], HashMap::from([(start, 0)]));
        let begin = loop {
            let node = &self.nodes[*path.last()?];
            let next = node.needs.iter().copied().find(|need| !finite[*need])?;
            if let Some(&begin) = positions.get(&next) {
                break begin;
            }
            positions.insert(next, path.len());
            path.push(next);
        };
        let cycle = &path[begin..];
        let pointer = |number: &usize| self.nodes[*number].pointer.as_deref();
        let schema = cycle.iter().find_map(pointer)?;
        let part = cycle.iter().filter(|number| self.nodes[**number].is_part).find_map(pointer);
        Some(match part {
            Some(part) => format!(
                "no finite value matches #{schema}: it requires #{part}, which requires #{schema} again; make that optional (required, minItems, minProperties), or allow null"
            ),
            None => format!("no finite value matches #{schema}: its references are circular"),
        })
    }
}
