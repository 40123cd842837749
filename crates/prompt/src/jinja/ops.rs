//! Python's operators: arithmetic, comparison, membership, subscripts.

use std::cmp::Ordering;

use super::ast::{BinaryOp, CompareOp};
use super::format::percent;
use super::text::{push, to_str};
use super::value::{EvalError, EvalResult, MAX_ITEMS, Number, SeqKind, Value};
use crate::limits::{Budget, TemplateLimit};

pub(super) fn binary(op: BinaryOp, a: &Value, b: &Value, budget: &mut Budget) -> EvalResult {
    for operand in [a, b] {
        if let Value::Undefined(message) = operand {
            return Err(message.to_string().into());
        }
    }
    match (op, a, b) {
        (BinaryOp::Add, Value::Str(a), Value::Str(b)) => {
            budget.charge_text(a.len() + b.len())?;
            Ok(Value::str([&**a, b].concat()))
        }
        (BinaryOp::Add, Value::Seq(a), Value::Seq(b)) if a.kind == b.kind && is_plain(a.kind) => {
            let len = a.items.len() + b.items.len();
            take_items(len, budget)?;
            Value::seq(a.kind, a.items.iter().chain(&b.items).cloned().collect())
        }
        (BinaryOp::Mod, Value::Str(format), args) => {
            let text = percent(format, args, budget)?;
            budget.charge_text(text.len())?;
            Ok(Value::str(text))
        }
        (BinaryOp::Mul, Value::Str(s), n) | (BinaryOp::Mul, n, Value::Str(s)) => {
            let times = repeat_count(s.len(), n)?;
            budget.charge_text(s.len().saturating_mul(times))?;
            Ok(Value::str(s.repeat(times)))
        }
        (BinaryOp::Mul, Value::Seq(s), n) | (BinaryOp::Mul, n, Value::Seq(s))
            if is_plain(s.kind) =>
        {
            let times = repeat_count(s.items.len(), n)?;
            take_items(s.items.len().saturating_mul(times), budget)?;
            let mut items = Vec::with_capacity(s.items.len() * times);
            (0..times).for_each(|_| items.extend(s.items.iter().cloned()));
            Value::seq(s.kind, items)
        }
        _ => match (a.number(), b.number()) {
            (Some(a), Some(b)) => arithmetic(op, a, b),
            _ => Err(type_error(op, a, b)),
        },
    }
}

fn is_plain(kind: SeqKind) -> bool {
    matches!(kind, SeqKind::List | SeqKind::Tuple)
}

fn repeat_count(len: usize, times: &Value) -> EvalResult<usize> {
    match times.number() {
        Some(Number::Int(n)) if len > 0 => {
            usize::try_from(n.max(0)).map_err(|_| TemplateLimit::Text.into())
        }
        Some(Number::Int(_)) => Ok(0),
        _ => {
            Err(format!("can't multiply sequence by non-int of type '{}'", times.type_name())
                .into())
        }
    }
}

pub(super) fn take_items(len: usize, budget: &mut Budget) -> EvalResult<()> {
    if len > MAX_ITEMS {
        return Err(TemplateLimit::Text.into());
    }
    budget.charge_steps(len as u64)?;
    Ok(())
}

fn type_error(op: BinaryOp, a: &Value, b: &Value) -> EvalError {
    let symbol = match op {
        BinaryOp::Add => match a {
            Value::Str(_) => {
                return format!("can only concatenate str (not \"{}\") to str", b.type_name())
                    .into();
            }
            Value::Seq(s) if is_plain(s.kind) => {
                let list = a.type_name();
                return format!(
                    "can only concatenate {list} (not \"{}\") to {list}",
                    b.type_name()
                )
                .into();
            }
            _ => "+",
        },
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Mod => "%",
        BinaryOp::Pow => "** or pow()",
    };
    format!("unsupported operand type(s) for {symbol}: '{}' and '{}'", a.type_name(), b.type_name())
        .into()
}

fn arithmetic(op: BinaryOp, a: Number, b: Number) -> EvalResult {
    let (Number::Int(x), Number::Int(y)) = (a, b) else {
        return float_arithmetic(op, a.float(), b.float());
    };
    let result = match op {
        BinaryOp::Add => x.checked_add(y),
        BinaryOp::Sub => x.checked_sub(y),
        BinaryOp::Mul => x.checked_mul(y),
        BinaryOp::Div if y == 0 => return Err("division by zero".into()),
        BinaryOp::Div => return float_arithmetic(op, x as f64, y as f64),
        BinaryOp::FloorDiv if y == 0 => return Err("integer division or modulo by zero".into()),
        BinaryOp::Mod if y == 0 => return Err("integer modulo by zero".into()),
        BinaryOp::FloorDiv => {
            x.checked_div_euclid(y).map(|q| if y < 0 && x.rem_euclid(y) != 0 { q - 1 } else { q })
        }
        BinaryOp::Mod => {
            x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r })
        }
        BinaryOp::Pow if y < 0 => return float_arithmetic(op, x as f64, y as f64),
        BinaryOp::Pow => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
    };
    result.map(Value::Int).ok_or_else(|| "integer too large".into())
}

fn float_arithmetic(op: BinaryOp, x: f64, y: f64) -> EvalResult {
    let result = match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div if y == 0.0 => return Err("float division by zero".into()),
        BinaryOp::FloorDiv if y == 0.0 => return Err("float floor division by zero".into()),
        BinaryOp::Mod if y == 0.0 => return Err("float modulo".into()),
        BinaryOp::Div => x / y,
        BinaryOp::FloorDiv => (x / y).floor(),
        BinaryOp::Mod => x - y * (x / y).floor(),
        BinaryOp::Pow if x == 0.0 && y < 0.0 => {
            return Err("0.0 cannot be raised to a negative power".into());
        }
        BinaryOp::Pow => x.powf(y),
    };
    Ok(Value::Float(result))
}

pub(super) fn negate(value: &Value) -> EvalResult {
    match (value, value.number()) {
        (Value::Undefined(message), _) => Err(message.to_string().into()),
        (_, Some(Number::Int(n))) => {
            n.checked_neg().map(Value::Int).ok_or_else(|| "integer too large".into())
        }
        (_, Some(Number::Float(f))) => Ok(Value::Float(-f)),
        _ => Err(format!("bad operand type for unary -: '{}'", value.type_name()).into()),
    }
}

pub(super) fn compare(
    cmp: CompareOp,
    a: &Value,
    b: &Value,
    budget: &mut Budget,
) -> EvalResult<bool> {
    match cmp {
        CompareOp::Eq => equal(a, b, budget),
        CompareOp::Ne => Ok(!equal(a, b, budget)?),
        CompareOp::In => contains(b, a, budget),
        CompareOp::NotIn => Ok(!contains(b, a, budget)?),
        CompareOp::Lt => Ok(order(a, b, "<", budget)? == Some(Ordering::Less)),
        CompareOp::Gt => Ok(order(a, b, ">", budget)? == Some(Ordering::Greater)),
        CompareOp::Le => {
            Ok(matches!(order(a, b, "<=", budget)?, Some(Ordering::Less | Ordering::Equal)))
        }
        CompareOp::Ge => {
            Ok(matches!(order(a, b, ">=", budget)?, Some(Ordering::Greater | Ordering::Equal)))
        }
    }
}

pub(super) fn equal(a: &Value, b: &Value, budget: &mut Budget) -> EvalResult<bool> {
    budget.charge_steps(1)?;
    if let (Some(a), Some(b)) = (a.number(), b.number()) {
        return Ok(match (a, b) {
            (Number::Int(a), Number::Int(b)) => a == b,
            _ => a.float() == b.float(),
        });
    }
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            budget.charge_read(if a.len() == b.len() { a.len() } else { 0 })?;
            a == b
        }
        (Value::Seq(a), Value::Seq(b)) => {
            if a.kind != b.kind || a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (x, y) in a.items.iter().zip(&b.items) {
                if !equal(x, y, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.map.len() != b.map.len() {
                return Ok(false);
            }
            for (key, (_, x)) in &a.map {
                budget.charge_read(key.weight())?;
                match b.map.get(key) {
                    Some((_, y)) if equal(x, y, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Macro(a), Value::Macro(b)) => std::rc::Rc::ptr_eq(a, b),
        _ => false,
    })
}

/// `None` if one value is NaN.
pub(super) fn order(
    a: &Value,
    b: &Value,
    symbol: &str,
    budget: &mut Budget,
) -> EvalResult<Option<Ordering>> {
    budget.charge_steps(1)?;
    match (a, b, a.number(), b.number()) {
        (Value::Undefined(message), ..) | (_, Value::Undefined(message), ..) => {
            Err(message.to_string().into())
        }
        (_, _, Some(Number::Int(a)), Some(Number::Int(b))) => Ok(Some(a.cmp(&b))),
        (_, _, Some(a), Some(b)) => Ok(a.float().partial_cmp(&b.float())),
        (Value::Str(a), Value::Str(b), ..) => {
            budget.charge_read(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::Seq(x), Value::Seq(y), ..) if x.kind == y.kind && is_plain(x.kind) => {
            for (x, y) in x.items.iter().zip(&y.items) {
                if !equal(x, y, budget)? {
                    return order(x, y, symbol, budget);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        _ => Err(format!(
            "'{symbol}' not supported between instances of '{}' and '{}'",
            a.type_name(),
            b.type_name()
        )
        .into()),
    }
}

pub(super) fn contains(container: &Value, item: &Value, budget: &mut Budget) -> EvalResult<bool> {
    match container {
        Value::Undefined(_) => Ok(false),
        Value::Str(text) => match item {
            Value::Str(part) => {
                budget.charge_steps(1)?;
                budget.charge_read(text.len())?;
                Ok(text.contains(&**part))
            }
            Value::Undefined(message) => Err(message.to_string().into()),
            other => Err(format!(
                "'in <string>' requires string as left operand, not {}",
                other.type_name()
            )
            .into()),
        },
        Value::Dict(d) => Ok(d.map.contains_key(&super::value::Key::from_value(item, budget)?)),
        Value::Seq(s) => {
            for x in &s.items {
                if equal(x, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Generator(_) => {
            for x in container.iterate()? {
                if equal(&x, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => Err(format!("argument of type '{}' is not iterable", other.type_name()).into()),
    }
}

/// `value[index]` for strings, lists and dicts. `None` where Python raises a lookup or type error.
pub(super) fn item(value: &Value, index: &Value, budget: &mut Budget) -> EvalResult<Option<Value>> {
    Ok(match value {
        Value::Dict(d) => d.get(index, budget)?.cloned(),
        Value::Seq(s) if !matches!(s.kind, SeqKind::View(_)) => {
            wrap(index, s.items.len()).and_then(|at| s.items.get(at).cloned())
        }
        Value::Str(s) if index.number().is_some() => {
            // Checks for ASCII, or finds the character offsets.
            budget.charge_read(s.len())?;
            character(s, index)
        }
        _ => None,
    })
}

fn character(s: &str, index: &Value) -> Option<Value> {
    if s.is_ascii() {
        let at = wrap(index, s.len())?;
        return s.get(at..at + 1).map(Value::str);
    }
    let at = wrap(index, s.chars().count())?;
    s.chars().nth(at).map(|c| Value::str(c.encode_utf8(&mut [0; 4])))
}

fn wrap(index: &Value, len: usize) -> Option<usize> {
    let Some(Number::Int(n)) = index.number() else { return None };
    let n = if n < 0 { n + len as i128 } else { n };
    usize::try_from(n).ok().filter(|n| *n < len)
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, ends: [Option<Value>; 3], budget: &mut Budget) -> EvalResult {
    let end = |v: &Option<Value>| match v {
        None | Some(Value::None) => Ok(None),
        Some(v) => v.int().map(Some).map_err(|_| {
            EvalError::from("slice indices must be integers or None or have an __index__ method")
        }),
    };
    let (start, stop) = (end(&ends[0])?, end(&ends[1])?);
    let step = end(&ends[2])?.unwrap_or(1);
    if step == 0 {
        return Err("slice step cannot be zero".into());
    }
    match value {
        Value::Str(s) => {
            budget.charge_text(s.len())?;
            if step == 1 && s.is_ascii() {
                let (from, to) = bounds(s.len(), start, stop, 1);
                return Ok(Value::str(s.get(from as usize..(to.max(from)) as usize).unwrap_or("")));
            }
            let chars: Vec<char> = s.chars().collect();
            let picked: String =
                positions(chars.len(), start, stop, step).map(|i| chars[i]).collect();
            Ok(Value::str(picked))
        }
        Value::Seq(s) if !matches!(s.kind, SeqKind::View(_)) => {
            take_items(s.items.len(), budget)?;
            let items =
                positions(s.items.len(), start, stop, step).map(|i| s.items[i].clone()).collect();
            let kind = if s.kind == SeqKind::Tuple { SeqKind::Tuple } else { SeqKind::List };
            Value::seq(kind, items)
        }
        Value::Undefined(message) => Err(message.to_string().into()),
        other => Err(format!("'{}' object is not subscriptable", other.type_name()).into()),
    }
}

/// Start and stop clamped as in Python, both within -1..=len.
fn bounds(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> (i128, i128) {
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |v: i128| (if v < 0 { v.saturating_add(len) } else { v }).clamp(low, high);
    let (first, last) = if step > 0 { (0, len) } else { (len - 1, -1) };
    (start.map_or(first, clamp), stop.map_or(last, clamp))
}

fn positions(
    len: usize,
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
) -> impl Iterator<Item = usize> {
    let (from, to) = bounds(len, start, stop, step);
    let inside = move |at: &i128| if step > 0 { *at < to } else { *at > to };
    std::iter::successors(Some(from), move |at| at.checked_add(step))
        .take_while(inside)
        .filter_map(|at| usize::try_from(at).ok())
}

/// `a ~ b ~ c`.
pub(super) fn concat(parts: &[Value], budget: &mut Budget) -> EvalResult {
    let mut out = String::new();
    for part in parts {
        push(&mut out, &to_str(part)?)?;
    }
    budget.charge_text(out.len())?;
    Ok(Value::str(out))
}
