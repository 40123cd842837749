//! Python's format specifications, and `'%s' % x`.

use super::text::{float, push, repr_to, to_str};
use super::value::{EvalError, EvalResult, Number, SeqKind, Value};
use crate::control_marks::is_mark;
use crate::limits::{Budget, TemplateLimit};

/// Largest field width, in characters.
const MAX_WIDTH: usize = 10_000;

#[derive(Default, Clone)]
struct FormatSpec {
    fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    align: Option<char>,
    /// `+` or a space.
    sign: Option<char>,
    alternate: bool,
    /// Separator between groups of digits.
    comma: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `format % args`. A tuple supplies one argument for each field, a dict is used by `%(name)s`, and
/// any other value is the only argument.
pub(super) fn percent(format: &str, args: &Value, budget: &mut Budget) -> EvalResult<String> {
    budget.charge_read(format.len())?;
    let list: &[Value] = match args {
        Value::Seq(s) if s.kind == SeqKind::Tuple => &s.items,
        other => std::slice::from_ref(other),
    };
    let mut next = 0;
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        push(&mut out, &rest[..at])?;
        rest = &rest[at + 1..];
        let mut named = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let (name, after) = inner.split_once(')').ok_or("incomplete format key")?;
            let Value::Dict(dict) = args else { return Err("format requires a mapping".into()) };
            budget.charge_steps(1)?;
            named = Some(dict.get_str(name).cloned().ok_or_else(|| format!("'{name}'"))?);
            rest = after;
        }
        let mut take = || {
            next += 1;
            list.get(next - 1).cloned().ok_or("not enough arguments for format string")
        };
        let (spec, after) = percent_spec(rest, &mut take)?;
        rest = after;
        let Some(verb) = rest.chars().next() else { return Err("incomplete format".into()) };
        rest = &rest[verb.len_utf8()..];
        if verb == '%' {
            push(&mut out, "%")?;
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => take()?,
        };
        push(&mut out, &percent_field(verb, &spec, &value, budget)?)?;
    }
    push(&mut out, rest)?;
    if next < list.len() && !matches!(args, Value::Dict(_)) {
        return Err("not all arguments converted during string formatting".into());
    }
    Ok(out)
}

fn percent_spec<'f>(
    mut rest: &'f str,
    take: &mut impl FnMut() -> Result<Value, &'static str>,
) -> EvalResult<(FormatSpec, &'f str)> {
    let mut spec = FormatSpec { align: Some('>'), ..FormatSpec::default() };
    while let Some(c) = rest.chars().next() {
        match c {
            '-' => spec.align = Some('<'),
            '0' => spec.fill = Some('0'),
            '+' => spec.sign = Some('+'),
            ' ' => spec.sign = spec.sign.or(Some(' ')),
            '#' => spec.alternate = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    let mut size = |rest: &'f str| -> EvalResult<(Option<usize>, &'f str)> {
        if let Some(after) = rest.strip_prefix('*') {
            let n = take()?.int().map_err(|_| "* wants int")?;
            return Ok((Some(usize::try_from(n).map_err(|_| "width too large")?), after));
        }
        number(rest)
    };
    let (width, after) = size(rest)?;
    rest = after;
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = size(after)?;
        spec.precision = Some(precision.unwrap_or(0));
        rest = after;
    }
    spec.width = width.unwrap_or(0);
    check_size(&spec)?;
    Ok((spec, rest.trim_start_matches(['h', 'l', 'L'])))
}

fn number(rest: &str) -> EvalResult<(Option<usize>, &str)> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Ok((None, rest));
    }
    let n = rest[..digits].parse().map_err(|_| "Too many decimal digits in format string")?;
    Ok((Some(n), &rest[digits..]))
}

fn check_size(spec: &FormatSpec) -> EvalResult<()> {
    if spec.width > MAX_WIDTH || spec.precision.is_some_and(|p| p > MAX_WIDTH) {
        return Err(TemplateLimit::Text.into());
    }
    Ok(())
}

fn percent_field(
    verb: char,
    spec: &FormatSpec,
    value: &Value,
    budget: &mut Budget,
) -> EvalResult<String> {
    let text = match verb {
        's' => to_str(value)?,
        'r' | 'a' => {
            let mut out = String::new();
            repr_to(&mut out, value)?;
            if verb == 'a' { ascii(&out) } else { out }
        }
        'c' => match value {
            Value::Int(n) => u32::try_from(*n)
                .ok()
                .and_then(char::from_u32)
                .ok_or("%c arg not in range(0x110000)")?
                .to_string(),
            Value::Str(s) if s.chars().count() == 1 => s.to_string(),
            _ => return Err("%c requires an int or a unicode character".into()),
        },
        'd' | 'i' | 'u' => match value.number() {
            Some(Number::Int(n)) => return Ok(integer(spec, n, 'd')),
            Some(Number::Float(f)) if f.is_finite() => {
                return Ok(integer(spec, f.trunc() as i128, 'd'));
            }
            _ => {
                return Err(format!(
                    "%{verb} format: a real number is required, not {}",
                    value.type_name()
                )
                .into());
            }
        },
        'x' | 'X' | 'o' => match value.number() {
            Some(Number::Int(n)) => return Ok(integer(spec, n, verb)),
            _ => {
                return Err(format!(
                    "%{verb} format: an integer is required, not {}",
                    value.type_name()
                )
                .into());
            }
        },
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match value.number() {
            Some(n) => return Ok(real(spec, n.float(), verb)),
            None => return Err(format!("must be real number, not {}", value.type_name()).into()),
        },
        _ => {
            return Err(
                format!("unsupported format character '{verb}' (0x{:x})", u32::from(verb)).into()
            );
        }
    };
    // The whole text is charged, even if it is truncated.
    budget.charge_read(text.len())?;
    let text = match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    };
    Ok(pad(&FormatSpec { fill: None, ..spec.clone() }, "", &text))
}

/// `ascii` of a value with the `repr` `text`.
pub(super) fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match u32::from(c) {
            0..=0x7f => out.push(c),
            _ if is_mark(c) => out.push(c),
            code @ 0x80..=0xff => out.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..=0xffff => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}

/// `format(value, spec)`.
pub(super) fn format_spec(value: &Value, spec: &str, budget: &mut Budget) -> EvalResult<String> {
    // Texts and lists are written completely before they are truncated.
    let written = |value: &Value, budget: &mut Budget| -> EvalResult<String> {
        let text = to_str(value)?;
        budget.charge_read(text.len())?;
        Ok(text)
    };
    if spec.is_empty() {
        return written(value, budget);
    }
    let spec = parse_spec(spec)?;
    match (value, value.number()) {
        (_, Some(Number::Int(n))) => match spec.kind.unwrap_or('d') {
            'd' | 'n' => Ok(integer(&spec, n, 'd')),
            kind @ ('x' | 'X' | 'o' | 'b') => Ok(integer(&spec, n, kind)),
            'c' => Ok(pad(
                &spec,
                "",
                &u32::try_from(n).ok().and_then(char::from_u32).unwrap_or('?').to_string(),
            )),
            kind if is_real(kind) => Ok(real(&spec, n as f64, kind)),
            kind => Err(unknown_code(kind, value)),
        },
        (_, Some(Number::Float(f))) => match (spec.kind, spec.precision) {
            (None, None) => Ok(signed(&spec, f.is_sign_negative(), &float(f.abs()))),
            (kind, _) => match kind.unwrap_or('g') {
                'n' => Ok(real(&spec, f, 'g')),
                kind if is_real(kind) => Ok(real(&spec, f, kind)),
                kind => Err(unknown_code(kind, value)),
            },
        },
        _ if !matches!(value, Value::Str(_)) => {
            let name = value.type_name();
            Err(format!("unsupported format string passed to {name}.__format__").into())
        }
        _ => {
            if let Some(kind) = spec.kind.filter(|k| *k != 's') {
                return Err(unknown_code(kind, value));
            }
            let text: String = match spec.precision {
                Some(precision) => written(value, budget)?.chars().take(precision).collect(),
                None => written(value, budget)?,
            };
            Ok(pad(&FormatSpec { align: spec.align.or(Some('<')), ..spec }, "", &text))
        }
    }
}

fn is_real(kind: char) -> bool {
    matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')
}

fn unknown_code(kind: char, value: &Value) -> EvalError {
    let name = if matches!(value, Value::Bool(_)) { "int" } else { value.type_name() };
    format!("Unknown format code '{kind}' for object of type '{name}'").into()
}

fn parse_spec(text: &str) -> EvalResult<FormatSpec> {
    let mut spec = FormatSpec::default();
    let mut chars: Vec<char> = text.chars().collect();
    let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^' | '='));
    if is_align(chars.get(1)) {
        spec.fill = Some(chars[0]);
        spec.align = Some(chars[1]);
        chars.drain(..2);
    } else if is_align(chars.first()) {
        spec.align = Some(chars.remove(0));
    }
    let mut rest: String = chars.into_iter().collect();
    if let Some(sign) = rest.chars().next().filter(|c| matches!(c, '+' | '-' | ' ')) {
        spec.sign = Some(sign).filter(|c| *c != '-');
        rest.remove(0);
    }
    if rest.starts_with('#') {
        spec.alternate = true;
        rest.remove(0);
    }
    if rest.starts_with('0') && spec.align.is_none() {
        spec.fill = Some('0');
        spec.align = Some('=');
    }
    let (width, after) = number(&rest)?;
    spec.width = width.unwrap_or(0);
    spec.comma = after.chars().next().filter(|c| matches!(c, ',' | '_'));
    let after = after.strip_prefix([',', '_']).unwrap_or(after);
    let after = match after.strip_prefix('.') {
        Some(digits) => {
            let (precision, after) = number(digits)?;
            spec.precision = Some(precision.ok_or("Format specifier missing precision")?);
            after
        }
        None => after,
    };
    let mut chars = after.chars();
    spec.kind = chars.next();
    if chars.next().is_some() {
        return Err("Invalid format specifier".into());
    }
    check_size(&spec)?;
    Ok(spec)
}

fn integer(spec: &FormatSpec, n: i128, kind: char) -> String {
    let magnitude = n.unsigned_abs();
    let (prefix, digits) = match kind {
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        'o' => ("0o", format!("{magnitude:o}")),
        'b' => ("0b", format!("{magnitude:b}")),
        _ => ("", magnitude.to_string()),
    };
    let group = if matches!(kind, 'x' | 'X' | 'o' | 'b') { 4 } else { 3 };
    let digits = spec.comma.map_or_else(|| digits.clone(), |comma| grouped(&digits, comma, group));
    let digits = match spec.precision {
        Some(precision) => format!("{digits:0>precision$}"),
        None => digits,
    };
    let prefix = if spec.alternate { prefix } else { "" };
    signed(spec, n < 0, &format!("{prefix}{digits}"))
}

fn grouped(digits: &str, comma: char, group: usize) -> String {
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(group) {
            out.push(comma);
        }
        out.push(c);
    }
    out
}

fn real(spec: &FormatSpec, f: f64, kind: char) -> String {
    let precision = spec.precision.unwrap_or(6);
    let magnitude = f.abs();
    let text = match kind {
        _ if !f.is_finite() => float(magnitude),
        'e' | 'E' => exponent(&format!("{magnitude:.precision$e}")),
        'g' | 'G' => general(magnitude, precision.max(1)),
        '%' => format!("{:.precision$}%", magnitude * 100.0),
        _ => format!("{magnitude:.precision$}"),
    };
    let text = match (spec.comma, text.split_once('.')) {
        (Some(comma), Some((whole, fraction))) => {
            format!("{}.{fraction}", grouped(whole, comma, 3))
        }
        (Some(comma), None) => grouped(&text, comma, 3),
        _ => text,
    };
    let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
    signed(spec, f.is_sign_negative() && !f.is_nan(), &text)
}

fn exponent(text: &str) -> String {
    let (mantissa, e) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, digits) = match e.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', e),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// `%g`: the shorter one of fixed and exponent notation, without trailing zeros.
fn general(f: f64, precision: usize) -> String {
    if f == 0.0 {
        return "0".into();
    }
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    let text = format!("{f:.*e}", precision - 1);
    let (mantissa, e) = text.split_once('e').unwrap_or((&text, "0"));
    let e: i64 = e.parse().unwrap_or(0);
    if e < -4 || e >= precision as i64 {
        return exponent(&format!("{}e{e}", strip(mantissa)));
    }
    strip(&format!("{f:.*}", usize::try_from(precision as i64 - 1 - e).unwrap_or(0)))
}

fn signed(spec: &FormatSpec, negative: bool, digits: &str) -> String {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (_, Some('+')) => "+",
        (_, Some(' ')) => " ",
        _ => "",
    };
    pad(spec, sign, digits)
}

/// Pads to the width. Zeros are inserted between sign and digits.
fn pad(spec: &FormatSpec, sign: &str, text: &str) -> String {
    let missing = spec.width.saturating_sub(sign.len() + text.chars().count());
    let fill = spec.fill.unwrap_or(' ').to_string();
    let align = match (spec.align, spec.fill) {
        // `%05d`: pads with zeros unless the field is left-aligned.
        (Some('>'), Some('0')) | (Some('='), _) => '=',
        (align, _) => align.unwrap_or('>'),
    };
    match align {
        '<' => {
            format!(
                "{sign}{text}{}",
                if fill == "0" { " ".repeat(missing) } else { fill.repeat(missing) }
            )
        }
        '^' => {
            let left = missing / 2;
            format!("{}{sign}{text}{}", fill.repeat(left), fill.repeat(missing - left))
        }
        '=' => format!("{sign}{}{text}", fill.repeat(missing)),
        _ => format!("{}{sign}{text}", fill.repeat(missing)),
    }
}
