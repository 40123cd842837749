//! Python's `'{}'.format(x)`.

use super::args::CallArgs;
use super::format::{ascii, format_spec};
use super::interp::Interpreter;
use super::text::{push, repr_to, to_str};
use super::value::{EvalResult, Value};

/// `format.format(args)`: `{}`, `{0}`, `{name}`, attributes and items, `!r`, and format
/// specifications, which may contain fields.
pub(super) fn braces(
    format: &str,
    args: &CallArgs,
    interp: &mut Interpreter,
) -> EvalResult<String> {
    BraceFormatter { pos: &args.pos, named: &args.named, next: 0, interp }.fill(format, 2)
}

struct BraceFormatter<'a> {
    pos: &'a [Value],
    named: &'a [(std::sync::Arc<str>, Value)],
    /// Index of the argument for the next unnamed field.
    next: usize,
    interp: &'a mut Interpreter,
}

impl BraceFormatter<'_> {
    /// Replaces the fields. `depth` is the remaining nesting depth of fields in specifications.
    fn fill(&mut self, format: &str, depth: usize) -> EvalResult<String> {
        self.interp.budget.charge_read(format.len())?;
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            push(&mut out, &rest[..at])?;
            let mark = rest.as_bytes()[at];
            rest = &rest[at + 1..];
            if rest.as_bytes().first() == Some(&mark) {
                push(&mut out, if mark == b'{' { "{" } else { "}" })?;
                rest = &rest[1..];
                continue;
            }
            if mark == b'}' {
                return Err("Single '}' encountered in format string".into());
            }
            let end = field_end(rest).ok_or("expected '}' before end of string")?;
            let text = self.field(&rest[..end], depth)?;
            push(&mut out, &text)?;
            rest = &rest[end + 1..];
        }
        push(&mut out, rest)?;
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> EvalResult<String> {
        let depth = depth.checked_sub(1).ok_or("Max string recursion exceeded")?;
        let (expr, spec) = field.split_once(':').unwrap_or((field, ""));
        let (expr, conversion) = expr.split_once('!').unwrap_or((expr, ""));
        self.interp.budget.charge_steps(1 + self.named.len() as u64 / 4)?;
        let value = self.value(expr)?;
        let spec = if spec.contains('{') { self.fill(spec, depth)? } else { spec.to_owned() };
        let budget = &mut self.interp.budget;
        match conversion {
            "" => format_spec(&value, &spec, budget),
            "r" | "a" => {
                let mut repr = String::new();
                repr_to(&mut repr, &value)?;
                format_spec(
                    &Value::str(if conversion == "a" { ascii(&repr) } else { repr }),
                    &spec,
                    budget,
                )
            }
            "s" => format_spec(&Value::str(to_str(&value)?), &spec, budget),
            other => Err(format!("Unknown conversion specifier '{other}'").into()),
        }
    }

    /// The value named before the colon of a field.
    fn value(&mut self, expr: &str) -> EvalResult {
        let root_len = expr.find(['.', '[']).unwrap_or(expr.len());
        let (root, path) = expr.split_at(root_len);
        let value = if root.is_empty() {
            self.next += 1;
            self.pos.get(self.next - 1).cloned()
        } else if let Ok(index) = root.parse::<usize>() {
            self.pos.get(index).cloned()
        } else {
            let found = self.named.iter().find(|(name, _)| **name == *root).map(|(_, v)| v.clone());
            Some(found.ok_or_else(|| format!("'{root}'"))?)
        };
        let missing = "tuple index out of range";
        follow(value.ok_or(missing)?, path, self.interp)
    }
}

/// Offset of a field's closing brace. Braces in its specification are balanced.
fn field_end(text: &str) -> Option<usize> {
    let mut open = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

/// Evaluates `.name` and `[key]` behind the first part of a field.
fn follow(mut value: Value, mut path: &str, interp: &mut Interpreter) -> EvalResult {
    while !path.is_empty() {
        interp.budget.charge_steps(1)?;
        if let Some(inner) = path.strip_prefix('[') {
            let (key, after) = inner.split_once(']').ok_or("Missing ']' in format string")?;
            let key = key.parse::<i64>().map_or_else(|_| Value::str(key), |n| Value::Int(n.into()));
            value = interp.item(&value, &key)?;
            path = after;
        } else {
            let inner = path
                .strip_prefix('.')
                .ok_or("Only '.' or '[' may follow ']' in format field specifier")?;
            let end = inner.find(['.', '[']).unwrap_or(inner.len());
            value = interp.attribute(&value, &inner[..end])?;
            path = &inner[end..];
        }
    }
    Ok(value)
}
