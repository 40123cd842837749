//! Filters on lists and dicts.

use std::cmp::Ordering;

use super::args::{CallArgs, text};
use super::ast::BinaryOp;
use super::eval::shorten;
use super::filters;
use super::interp::Interpreter;
use super::ops::{self, take_items};
use super::text::{push, to_str};
use super::value::{EvalError, EvalResult, Key, Value};

/// Cost of an item that is stored with its key, in steps.
const KEY_STEPS: u64 = 8;

impl Interpreter {
    pub(super) fn seq_filter(&mut self, name: &str, value: &Value, args: &CallArgs) -> EvalResult {
        if !filters::NAMES.contains(&name) {
            return Err(format!("No filter named '{}'.", shorten(name)).into());
        }
        match name {
            "first" => return self.end(value, false, "No first item"),
            "last" => return self.end(value, true, "No last item"),
            _ => take_items(value.size(), &mut self.budget)?,
        }
        match name {
            "list" => Value::list(value.iterate()?),
            "items" => match value {
                Value::Dict(d) => {
                    let pairs =
                        d.map.values().map(|(k, v)| Value::tuple(vec![k.clone(), v.clone()]));
                    Value::generator(pairs.collect::<EvalResult<_>>()?)
                }
                Value::Undefined(_) => Value::generator(Vec::new()),
                _ => Err("Can only get item pairs from a mapping.".into()),
            },
            "reverse" => match value {
                Value::Str(s) => Ok(Value::str(s.chars().rev().collect::<String>())),
                other => {
                    let mut items = other
                        .iterate()
                        .map_err(|fail| fail.with_message("argument must be iterable"))?;
                    items.reverse();
                    Value::generator(items)
                }
            },
            "join" => self.join(value, args),
            // For a false value, Jinja does not evaluate these filters: `none|map(…)` is empty.
            "map" | "select" | "reject" | "selectattr" | "rejectattr" if !value.is_true() => {
                Value::generator(Vec::new())
            }
            "map" => self.map(value, args),
            "select" | "reject" => self.select(value, args, name == "select", false),
            "selectattr" | "rejectattr" => self.select(value, args, name == "selectattr", true),
            "sort" => {
                let [reverse, case, attribute] =
                    args.bind(name, ["reverse", "case_sensitive", "attribute"])?;
                let case = case.is_some_and(|c| c.is_true());
                let attributes = match attribute {
                    Some(Value::Str(s)) => s.split(',').map(|a| Value::str(a.trim())).collect(),
                    Some(other) => vec![other],
                    None => vec![],
                };
                let keyed = self.keyed(value.iterate()?, &attributes, case)?;
                let sorted = self.sorted(keyed, reverse.is_some_and(|r| r.is_true()))?;
                Value::list(sorted)
            }
            "min" | "max" => self.extreme(value, args, name),
            "unique" => self.unique(value, args),
            "groupby" => self.group_by(value, args),
            "dictsort" => self.dict_sort(value, args),
            "sum" => {
                let [attribute, start] = args.bind(name, ["attribute", "start"])?;
                let mut sum = start.unwrap_or(Value::Int(0));
                for item in value.iterate()? {
                    let item = match &attribute {
                        Some(attribute) => self.path(&item, attribute)?,
                        None => item,
                    };
                    sum = ops::binary(BinaryOp::Add, &sum, &item, &mut self.budget)?;
                }
                Ok(sum)
            }
            _ => self.chunks(value, args, name),
        }
    }

    /// The first or last item. Only generators are iterated for it.
    fn end(&mut self, value: &Value, last: bool, none: &str) -> EvalResult {
        let item = match value {
            Value::Str(s) => {
                end_of(s.chars(), last).map(|c| Value::str(c.encode_utf8(&mut [0; 4])))
            }
            Value::Seq(s) => end_of(s.items.iter(), last).cloned(),
            Value::Dict(d) => end_of(d.map.values(), last).map(|(key, _)| key.clone()),
            _ => {
                take_items(value.size(), &mut self.budget)?;
                end_of(value.iterate()?.into_iter(), last)
            }
        };
        Ok(item.unwrap_or_else(|| empty(none)))
    }

    fn join(&mut self, value: &Value, args: &CallArgs) -> EvalResult {
        let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
        let separator = separator.map_or(Ok(String::new()), |s| to_str(&s))?;
        let mut out = String::new();
        for (i, item) in value.iterate()?.into_iter().enumerate() {
            let item = match &attribute {
                Some(attribute) => self.path(&item, attribute)?,
                None => item,
            };
            if i > 0 {
                push(&mut out, &separator)?;
            }
            super::text::str_to(&mut out, &item)?;
        }
        self.budget.charge_text(out.len())?;
        Ok(Value::str(out))
    }

    /// The value at a path such as `a.b.0` in an item, as for `map(attribute=…)`.
    fn path(&mut self, item: &Value, attribute: &Value) -> EvalResult {
        let Value::Str(path) = attribute else { return self.item(item, attribute) };
        let mut value = item.clone();
        for part in path.split('.') {
            self.budget.charge_steps(1)?;
            self.budget.charge_read(part.len())?;
            let key = match part.parse::<u32>() {
                Ok(n) => Value::Int(n.into()),
                Err(_) => Value::str(part),
            };
            value = self.item(&value, &key)?;
        }
        Ok(value)
    }

    fn map(&mut self, value: &Value, args: &CallArgs) -> EvalResult {
        let mut mapped = Vec::new();
        if let Some((_, attribute)) = args.named.iter().find(|(n, _)| &**n == "attribute") {
            let default = args.named.iter().find(|(n, _)| &**n == "default").map(|(_, v)| v);
            for item in value.iterate()? {
                let found = self.path(&item, attribute)?;
                mapped.push(match default {
                    Some(default) if found.is_undefined() => default.clone(),
                    _ => found,
                });
            }
        } else {
            let Some((filter, rest)) = args.pos.split_first() else {
                return Err("map requires a filter argument".into());
            };
            let filter = text(filter)?;
            let rest = CallArgs { pos: rest.to_vec(), named: args.named.clone() };
            for item in value.iterate()? {
                mapped.push(self.nested_filter(&filter, &item, &rest)?);
            }
        }
        Value::generator(mapped)
    }

    fn nested_filter(&mut self, name: &str, value: &Value, args: &CallArgs) -> EvalResult {
        self.budget.enter()?;
        let result = self.filter(name, value, args)?;
        self.budget.leave();
        Ok(result)
    }

    fn select(
        &mut self,
        value: &Value,
        args: &CallArgs,
        wanted: bool,
        by_attribute: bool,
    ) -> EvalResult {
        let mut pos = args.pos.iter();
        let attribute = match by_attribute {
            true => Some(pos.next().ok_or("Missing parameter for attribute name")?),
            false => None,
        };
        let test = pos.next().map(text).transpose()?;
        let rest = CallArgs { pos: pos.cloned().collect(), named: args.named.clone() };
        let mut kept = Vec::new();
        for item in value.iterate()? {
            let tested = match attribute {
                Some(attribute) => self.path(&item, attribute)?,
                None => item.clone(),
            };
            let passes = match &test {
                Some(test) => self.test(test, &tested, &rest)?,
                None => tested.is_true(),
            };
            if passes == wanted {
                kept.push(item);
            }
        }
        Value::generator(kept)
    }

    /// The key for comparing a value: strings in lower case, unless `case` is set.
    fn folded(&mut self, value: Value, case: bool) -> EvalResult {
        match value {
            Value::Str(s) if !case => {
                self.budget.charge_text(s.len())?;
                Ok(Value::str(s.to_lowercase()))
            }
            other => Ok(other),
        }
    }

    /// Pairs each item with its key for comparison.
    fn keyed(
        &mut self,
        items: Vec<Value>,
        attributes: &[Value],
        case: bool,
    ) -> EvalResult<Vec<(Vec<Value>, Value)>> {
        self.budget.charge_steps(KEY_STEPS * items.len() as u64)?;
        let mut keyed = Vec::with_capacity(items.len());
        for item in items {
            let mut key = Vec::with_capacity(attributes.len().max(1));
            if attributes.is_empty() {
                key.push(self.folded(item.clone(), case)?);
            }
            for attribute in attributes {
                let value = self.path(&item, attribute)?;
                key.push(self.folded(value, case)?);
            }
            keyed.push((key, item));
        }
        Ok(keyed)
    }

    /// Sorts stably by key. A comparison that Python refuses is an error.
    fn sorted(
        &mut self,
        mut keyed: Vec<(Vec<Value>, Value)>,
        reverse: bool,
    ) -> EvalResult<Vec<Value>> {
        let mut failed: Option<EvalError> = None;
        let budget = &mut self.budget;
        keyed.sort_by(|a, b| {
            if failed.is_some() {
                return Ordering::Equal;
            }
            for (x, y) in a.0.iter().zip(&b.0) {
                match ops::order(x, y, "<", budget) {
                    Ok(Some(Ordering::Equal) | None) => {}
                    Ok(Some(order)) => return if reverse { order.reverse() } else { order },
                    Err(fail) => {
                        failed = Some(fail);
                        return Ordering::Equal;
                    }
                }
            }
            Ordering::Equal
        });
        match failed {
            Some(fail) => Err(fail),
            None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
        }
    }

    fn extreme(&mut self, value: &Value, args: &CallArgs, name: &str) -> EvalResult {
        let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"])?;
        let attributes: Vec<Value> = attribute.into_iter().collect();
        let keyed = self.keyed(value.iterate()?, &attributes, case.is_some_and(|c| c.is_true()))?;
        let mut best: Option<(Vec<Value>, Value)> = None;
        for (key, item) in keyed {
            let better = match &best {
                None => true,
                Some((held, _)) => {
                    let order = ops::order(
                        &key[0],
                        &held[0],
                        if name == "min" { "<" } else { ">" },
                        &mut self.budget,
                    )?;
                    order == Some(if name == "min" { Ordering::Less } else { Ordering::Greater })
                }
            };
            if better {
                best = Some((key, item));
            }
        }
        Ok(best.map_or_else(|| empty("No aggregated item"), |(_, item)| item))
    }

    fn unique(&mut self, value: &Value, args: &CallArgs) -> EvalResult {
        let [case, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
        let attributes: Vec<Value> = attribute.into_iter().collect();
        let keyed = self.keyed(value.iterate()?, &attributes, case.is_some_and(|c| c.is_true()))?;
        let mut seen = std::collections::HashSet::new();
        let mut kept = Vec::new();
        for (key, item) in keyed {
            let key = key
                .iter()
                .map(|k| Key::from_value(k, &mut self.budget))
                .collect::<EvalResult<Vec<_>>>()?;
            if seen.insert(key) {
                kept.push(item);
            }
        }
        Value::generator(kept)
    }

    fn group_by(&mut self, value: &Value, args: &CallArgs) -> EvalResult {
        let [attribute, default, case] =
            args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
        let attribute =
            attribute.ok_or("groupby() missing 1 required positional argument: 'attribute'")?;
        let case = case.is_some_and(|c| c.is_true());
        let (items, mut keyed) = (value.iterate()?, Vec::new());
        self.budget.charge_steps(2 * KEY_STEPS * items.len() as u64)?;
        for item in items {
            let mut key = self.path(&item, &attribute)?;
            if let (true, Some(default)) = (key.is_undefined(), &default) {
                key = default.clone();
            }
            let folded = self.folded(key.clone(), case)?;
            keyed.push((vec![folded.clone()], Value::tuple(vec![folded, key, item])?));
        }
        let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
        for entry in self.sorted(keyed, false)? {
            let Ok([folded, key, item]) = <[Value; 3]>::try_from(entry.iterate()?) else {
                continue;
            };
            match groups.last_mut() {
                Some(group) if ops::equal(&group.0, &folded, &mut self.budget)? => {
                    group.2.push(item)
                }
                _ => groups.push((folded, key, vec![item])),
            }
        }
        let pairs =
            groups.into_iter().map(|(_, key, items)| Value::tuple(vec![key, Value::list(items)?]));
        Value::list(pairs.collect::<EvalResult<_>>()?)
    }

    fn dict_sort(&mut self, value: &Value, args: &CallArgs) -> EvalResult {
        let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
        let by = by.map_or(Ok("key".into()), |b| text(&b))?;
        let at = match &*by {
            "key" => 0,
            "value" => 1,
            _ => return Err("You can only sort by either \"key\" or \"value\"".into()),
        };
        let pairs = match value {
            Value::Dict(d) => {
                let pairs = d.map.values().map(|(k, v)| Value::tuple(vec![k.clone(), v.clone()]));
                pairs.collect::<EvalResult<Vec<_>>>()?
            }
            Value::Undefined(message) => return Err(message.to_string().into()),
            other => {
                return Err(
                    format!("'{}' object has no attribute 'items'", other.type_name()).into()
                );
            }
        };
        let keyed = self.keyed(pairs, &[Value::Int(at)], case.is_some_and(|c| c.is_true()))?;
        let sorted = self.sorted(keyed, reverse.is_some_and(|r| r.is_true()))?;
        Value::list(sorted)
    }

    /// `batch` and `slice`.
    fn chunks(&mut self, value: &Value, args: &CallArgs, name: &str) -> EvalResult {
        let [count, fill] = args.bind(name, ["count", "fill_with"])?;
        let count = count
            .ok_or_else(|| format!("{name}() missing 1 required positional argument"))?
            .int()?;
        let count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or("division by zero")?;
        let fill = fill.filter(|f| !matches!(f, Value::None));
        let items = value.iterate()?;
        take_items(
            items.len().saturating_add(if name == "slice" { count } else { 0 }),
            &mut self.budget,
        )?;
        let mut chunks = Vec::new();
        if name == "batch" {
            take_items(if fill.is_some() { count } else { 0 }, &mut self.budget)?;
            for chunk in items.chunks(count) {
                let mut chunk = chunk.to_vec();
                if let Some(fill) = &fill {
                    chunk.resize(count, fill.clone());
                }
                chunks.push(Value::list(chunk)?);
            }
            return Value::generator(chunks);
        }
        let (per, extra) = (items.len() / count, items.len() % count);
        let mut from = 0;
        for i in 0..count {
            let to = from + per + usize::from(i < extra);
            let mut chunk = items[from..to].to_vec();
            if let Some(fill) = fill.as_ref().filter(|_| i >= extra) {
                chunk.push(fill.clone());
            }
            chunks.push(Value::list(chunk)?);
            from = to;
        }
        Value::generator(chunks)
    }
}

fn end_of<I: DoubleEndedIterator>(mut items: I, last: bool) -> Option<I::Item> {
    if last { items.next_back() } else { items.next() }
}

fn empty(what: &str) -> Value {
    Value::Undefined(format!("{what}, sequence was empty.").into())
}
