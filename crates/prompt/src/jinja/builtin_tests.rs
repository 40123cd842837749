//! Jinja's built-in tests: `is defined`, `is string`, …

use super::args::CallArgs;
use super::ast::{BinaryOp, CompareOp};
use super::eval::shorten;
use super::interp::Interpreter;
use super::ops;
use super::text::to_str;
use super::value::{EvalResult, Number, SeqKind, Value};

const NAMES: &[&str] = &[
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

impl Interpreter {
    pub(super) fn test(&mut self, name: &str, value: &Value, args: &CallArgs) -> EvalResult<bool> {
        if !NAMES.contains(&name) {
            return Err(format!("No test named '{}'.", shorten(name)).into());
        }
        args.charge(&mut self.budget)?;
        let cmp = match name {
            "eq" | "equalto" | "==" => Some(CompareOp::Eq),
            "ne" | "!=" => Some(CompareOp::Ne),
            "lt" | "lessthan" | "<" => Some(CompareOp::Lt),
            "le" | "<=" => Some(CompareOp::Le),
            "gt" | "greaterthan" | ">" => Some(CompareOp::Gt),
            "ge" | ">=" => Some(CompareOp::Ge),
            "in" => Some(CompareOp::In),
            _ => None,
        };
        if let Some(cmp) = cmp {
            return ops::compare(cmp, value, &args.one(name)?, &mut self.budget);
        }
        match name {
            "divisibleby" => {
                let rest = ops::binary(BinaryOp::Mod, value, &args.one(name)?, &mut self.budget)?;
                return Ok(!rest.is_true());
            }
            "sameas" => {
                self.budget.charge_read(value.size())?;
                return Ok(same(value, &args.one(name)?));
            }
            _ => args.none(name)?,
        }
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.number().is_some(),
            "string" => matches!(value, Value::Str(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "sequence" => match value {
                Value::Seq(s) => !matches!(s.kind, SeqKind::View(_)),
                other => matches!(other, Value::Str(_) | Value::Dict(_) | Value::Undefined(_)),
            },
            "iterable" => matches!(
                value,
                Value::Str(_)
                    | Value::Seq(_)
                    | Value::Dict(_)
                    | Value::Generator(_)
                    | Value::Undefined(_)
            ),
            "callable" => matches!(
                value,
                Value::Function(_)
                    | Value::Method(_)
                    | Value::Macro(_)
                    | Value::Loop(_)
                    | Value::Joiner(_)
            ),
            "even" | "odd" => {
                let rest = ops::binary(BinaryOp::Mod, value, &Value::Int(2), &mut self.budget)?;
                rest.is_true() == (name == "odd")
            }
            "lower" => {
                let text = to_str(value)?;
                self.budget.charge_read(text.len())?;
                text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
            }
            "upper" => {
                let text = to_str(value)?;
                self.budget.charge_read(text.len())?;
                text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase)
            }
            "filter" => matches!(value, Value::Str(s) if super::filters::NAMES.contains(&&**s)),
            "test" => matches!(value, Value::Str(s) if NAMES.contains(&&**s)),
            // Values are never marked as escaped.
            _ => false,
        })
    }
}

/// Approximates Python's `is`: singletons, small values, and the same list object.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => a == b,
        (Value::Seq(a), Value::Seq(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        (Value::Int(_), Value::Int(_)) | (Value::Float(_), Value::Float(_)) => {
            match (a.number(), b.number()) {
                (Some(Number::Int(a)), Some(Number::Int(b))) => a == b,
                (Some(a), Some(b)) => a.float() == b.float(),
                _ => false,
            }
        }
        _ => false,
    }
}
