//! Go's `fmt`: the verbs of `printf`, `print` and `println`, and the formatting of floats.

use std::fmt::Write as _;

use super::value::{List, Value, print};
use crate::control_marks::is_mark;
use crate::limits::{Budget, MAX_TEXT_BYTES, TemplateLimit};

/// Largest width and precision, in characters. Go's own limit is a million.
const MAX_WIDTH: usize = 1000;

/// `fmt.Sprint`: writes a space between two operands if neither is a string.
pub(super) fn sprint(args: &[Value]) -> String {
    let mut out = String::new();
    for (i, arg) in args.iter().enumerate() {
        let strings = matches!(arg, Value::Str(_))
            || matches!(args.get(i.wrapping_sub(1)), Some(Value::Str(_)));
        if i > 0 && !strings {
            out.push(' ');
        }
        out.push_str(&print(arg));
    }
    out
}

/// `fmt.Sprintln`.
pub(super) fn sprintln(args: &[Value]) -> String {
    let mut out = args.iter().map(print).collect::<Vec<_>>().join(" ");
    out.push('\n');
    out
}

#[derive(Default, Clone, Copy)]
struct VerbFlags {
    minus: bool,
    plus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

/// `fmt.Sprintf`. Every use of an argument is charged, since arguments may be repeated or
/// truncated.
pub(super) fn sprintf(
    format: &str,
    args: &[Value],
    budget: &mut Budget,
) -> Result<String, TemplateLimit> {
    budget.charge_read(format.len())?;
    let mut out = String::new();
    let mut state =
        FormatArgs { args, next: 0, reordered: false, bad_index: false, unclosed: false };
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (spec, after) = state.spec(rest);
        rest = after;
        let Some(verb) = rest.chars().next() else {
            out.push_str("%!(NOVERB)");
            break;
        };
        rest = &rest[verb.len_utf8()..];
        match verb {
            '%' => out.push('%'),
            _ if state.bad_index => _ = write!(out, "%!{verb}(BADINDEX)"),
            _ => match state.take() {
                Some(arg) => {
                    budget.charge_text(arg.printed_size())?;
                    verb_to(&mut out, verb, spec, arg);
                }
                None => _ = write!(out, "%!{verb}(MISSING)"),
            },
        }
        if out.len() > MAX_TEXT_BYTES {
            return Err(TemplateLimit::Text);
        }
    }
    out.push_str(rest);
    if !state.reordered && state.next < args.len() {
        out.push_str("%!(EXTRA ");
        for (i, arg) in args[state.next..].iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            match arg {
                Value::Nil => out.push_str("<nil>"),
                _ => _ = write!(out, "{}={}", arg.type_name(), print(arg)),
            }
        }
        out.push(')');
    }
    // Padding and error texts may be longer than the arguments.
    budget.charge_text(out.len())?;
    Ok(out)
}

struct FormatArgs<'a> {
    args: &'a [Value],
    next: usize,
    reordered: bool,
    bad_index: bool,
    /// The format contains no further `]`, so that none is searched for.
    unclosed: bool,
}

impl FormatArgs<'_> {
    fn take(&mut self) -> Option<&Value> {
        let arg = self.args.get(self.next)?;
        self.next += 1;
        Some(arg)
    }

    /// Parses flags, `[n]`, width and precision before a verb.
    fn spec<'f>(&mut self, mut rest: &'f str) -> (VerbFlags, &'f str) {
        let mut spec = VerbFlags::default();
        self.bad_index = false;
        while let Some(c) = rest.chars().next() {
            match c {
                '-' => spec.minus = true,
                '+' => spec.plus = true,
                '#' => spec.sharp = true,
                ' ' => spec.space = true,
                '0' => spec.zero = true,
                _ => break,
            }
            rest = &rest[1..];
        }
        rest = self.index(rest);
        (spec.width, rest) = self.size(rest);
        if let Some(after) = rest.strip_prefix('.') {
            rest = self.index(after);
            (spec.precision, rest) = self.size(rest);
            spec.precision = spec.precision.or(Some(0));
        }
        rest = self.index(rest);
        if spec.minus {
            spec.zero = false;
        }
        (spec, rest)
    }

    fn index<'f>(&mut self, rest: &'f str) -> &'f str {
        let Some(inner) = rest.strip_prefix('[') else { return rest };
        let closed = if self.unclosed { None } else { inner.split_once(']') };
        let Some((digits, after)) = closed else {
            (self.bad_index, self.unclosed) = (true, true);
            return rest;
        };
        self.reordered = true;
        match digits.parse::<usize>() {
            Ok(n) if (1..=self.args.len()).contains(&n) => self.next = n - 1,
            _ => self.bad_index = true,
        }
        after
    }

    fn size<'f>(&mut self, rest: &'f str) -> (Option<usize>, &'f str) {
        if let Some(after) = rest.strip_prefix('*') {
            let size = match self.take() {
                Some(Value::Int(n)) => usize::try_from(*n).ok(),
                _ => None,
            };
            return (size.map(|n| n.min(MAX_WIDTH)), after);
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        (rest[..digits].parse().ok().map(|n: usize| n.min(MAX_WIDTH)), &rest[digits..])
    }
}

fn verb_to(out: &mut String, verb: char, mut spec: VerbFlags, arg: &Value) {
    // In `%+v`, the flag requests field names, not signs.
    spec.plus &= verb != 'v';
    if verb == 'T' {
        let name = if matches!(arg, Value::Nil) { "<nil>" } else { arg.type_name() };
        return pad(out, spec, name);
    }
    if matches!(arg, Value::Nil) {
        return match verb {
            'v' => pad(out, spec, "<nil>"),
            _ => _ = write!(out, "%!{verb}(<nil>)"),
        };
    }
    if let Some(text) = arg.custom_text().filter(|_| matches!(verb, 'v' | 's' | 'q' | 'x' | 'X')) {
        return verb_to(out, verb, spec, &Value::str(text));
    }
    match arg {
        Value::List(l) => list_to(out, verb, spec, l),
        Value::Map(m) => {
            out.push_str("map[");
            for (i, (key, item)) in m.entries.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                verb_to(out, verb, spec, &Value::Str(key.clone()));
                out.push(':');
                nested_to(out, verb, spec, item);
            }
            out.push(']');
        }
        Value::Struct(s) => {
            out.push('{');
            for (i, field) in s.fields.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                nested_to(out, verb, spec, &field.value);
            }
            out.push('}');
        }
        Value::Bool(b) if matches!(verb, 'v' | 't') => {
            pad(out, spec, if *b { "true" } else { "false" })
        }
        Value::Int(n) => int_to(out, verb, spec, *n),
        Value::Float(f) => float_to(out, verb, spec, *f),
        Value::Str(s) => str_to(out, verb, spec, s),
        _ => bad_verb(out, verb, arg),
    }
}

/// Formats an element of a list or map. Nil prints the same with every verb.
fn nested_to(out: &mut String, verb: char, spec: VerbFlags, item: &Value) {
    match item {
        Value::Nil => pad(out, spec, "<nil>"),
        _ => verb_to(out, verb, spec, item),
    }
}

fn list_to(out: &mut String, verb: char, spec: VerbFlags, list: &List) {
    out.push('[');
    for (i, item) in list.items().iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        nested_to(out, verb, spec, item);
    }
    out.push(']');
}

fn bad_verb(out: &mut String, verb: char, arg: &Value) {
    _ = write!(out, "%!{verb}({}={})", arg.type_name(), print(arg));
}

fn int_to(out: &mut String, verb: char, spec: VerbFlags, n: i64) {
    let magnitude = n.unsigned_abs();
    let mut digits = match verb {
        'v' | 'd' => magnitude.to_string(),
        'b' => format!("{magnitude:b}"),
        'o' | 'O' => format!("{magnitude:o}"),
        'x' => format!("{magnitude:x}"),
        'X' => format!("{magnitude:X}"),
        'c' | 'q' | 'U' => {
            let c = u32::try_from(n).ok().and_then(char::from_u32).unwrap_or('\u{fffd}');
            return match verb {
                'c' => pad(out, spec, c.encode_utf8(&mut [0; 4])),
                'q' => pad(out, spec, &quote(&c.to_string(), '\'')),
                _ => pad(out, spec, &format!("U+{n:04X}")),
            };
        }
        _ => return bad_verb(out, verb, &Value::Int(n)),
    };
    let wanted = match (spec.precision, spec.width) {
        (Some(precision), _) => precision,
        (None, Some(width)) if spec.zero => {
            width - usize::from(n < 0 || spec.plus || spec.space).min(width)
        }
        _ => 0,
    };
    if digits.len() < wanted {
        digits.insert_str(0, &"0".repeat(wanted - digits.len()));
    }
    if spec.sharp || verb == 'O' {
        let prefix = match verb {
            'b' => "0b",
            'o' => "0",
            'O' => "0o",
            'x' => "0x",
            'X' => "0X",
            _ => "",
        };
        digits.insert_str(0, prefix);
    }
    digits.insert_str(0, sign(n < 0, spec));
    pad(out, VerbFlags { zero: false, ..spec }, &digits);
}

fn sign(negative: bool, spec: VerbFlags) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn float_to(out: &mut String, verb: char, spec: VerbFlags, f: f64) {
    let magnitude = f.abs();
    let text = match verb {
        _ if !f.is_finite() => (if f.is_nan() { "NaN" } else { "Inf" }).to_string(),
        'v' | 'g' | 'G' => match spec.precision {
            None => float_g(magnitude),
            Some(p) => float_g_precision(magnitude, p),
        },
        'e' | 'E' => exponent(&format!("{magnitude:.*e}", spec.precision.unwrap_or(6))),
        'f' | 'F' => format!("{magnitude:.*}", spec.precision.unwrap_or(6)),
        _ => return bad_verb(out, verb, &Value::Float(f)),
    };
    let text = if matches!(verb, 'E' | 'G') { text.to_uppercase() } else { text };
    let negative = f.is_sign_negative() && !f.is_nan();
    let sign = if f.is_infinite() && !negative { "+" } else { sign(negative, spec) };
    match spec.width {
        Some(width) if spec.zero && f.is_finite() => {
            let zeros = width.saturating_sub(sign.len() + text.len());
            _ = write!(out, "{sign}{}{text}", "0".repeat(zeros));
        }
        _ => pad(out, spec, &format!("{sign}{text}")),
    }
}

fn str_to(out: &mut String, verb: char, spec: VerbFlags, s: &str) {
    let cut: String = match spec.precision {
        Some(precision) if !matches!(verb, 'x' | 'X') => s.chars().take(precision).collect(),
        _ => s.to_string(),
    };
    match verb {
        'v' if spec.sharp => pad(out, spec, &quote(&cut, '"')),
        'v' | 's' => pad(out, spec, &cut),
        'q' if spec.sharp && !cut.contains('`') => pad(out, spec, &format!("`{cut}`")),
        'q' => pad(out, spec, &quote(&cut, '"')),
        'x' | 'X' => {
            // Hexadecimal digits cannot spell a control token, so that marks are removed.
            let cut: String = cut.chars().filter(|c| !is_mark(*c)).collect();
            let bytes = &cut.as_bytes()[..spec.precision.unwrap_or(cut.len()).min(cut.len())];
            let mut hex = String::with_capacity(bytes.len() * 2);
            for (i, b) in bytes.iter().enumerate() {
                if spec.space && i > 0 {
                    hex.push(' ');
                }
                _ = if verb == 'x' { write!(hex, "{b:02x}") } else { write!(hex, "{b:02X}") };
            }
            pad(out, spec, &hex);
        }
        _ => bad_verb(out, verb, &Value::str(s)),
    }
}

fn pad(out: &mut String, spec: VerbFlags, text: &str) {
    let missing = spec.width.unwrap_or(0).saturating_sub(text.chars().count());
    let fill = if spec.zero { "0" } else { " " }.repeat(missing);
    if spec.minus {
        out.push_str(text);
        out.push_str(&fill);
    } else {
        out.push_str(&fill);
        out.push_str(text);
    }
}

/// `strconv.Quote`.
pub(super) fn quote(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(mark);
    for c in text.chars() {
        match c {
            _ if c == mark => {
                out.push('\\');
                out.push(c);
            }
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\0'..='\u{1f}' | '\u{7f}' => _ = write!(out, "\\x{:02x}", u32::from(c)),
            _ if !is_print(c) && u32::from(c) > 0xffff => {
                _ = write!(out, "\\U{:08x}", u32::from(c))
            }
            _ if !is_print(c) => _ = write!(out, "\\u{:04x}", u32::from(c)),
            _ => out.push(c),
        }
    }
    out.push(mark);
    out
}

/// Approximates Go's printable characters without its tables: no control characters, no spaces
/// except the ASCII space, no separators, no private use. Marks count as printable, so that
/// escaping functions keep them.
pub(super) fn is_print(c: char) -> bool {
    is_mark(c)
        || !(c.is_control()
            || (c.is_whitespace() && c != ' ')
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}'..='\u{ffff}')
            || c >= '\u{e0000}')
}

/// Go's `%v` of a float: the shortest text that parses back to `f`. Exponent form is used below
/// 1e-4 and from 1e6 on (`fmt.Println(12345678.0)` prints `1.2345678e+07`).
pub(super) fn float_g(f: f64) -> String {
    if f == 0.0 {
        return if f.is_sign_negative() { "-0" } else { "0" }.to_string();
    }
    if !f.is_finite() {
        return if f.is_nan() {
            "NaN"
        } else if f > 0.0 {
            "+Inf"
        } else {
            "-Inf"
        }
        .to_string();
    }
    let scientific = format!("{f:e}");
    let exponent_value: i32 =
        scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    if (-4..6).contains(&exponent_value) { format!("{f}") } else { exponent(&scientific) }
}

/// `%.{p}g`.
fn float_g_precision(f: f64, precision: usize) -> String {
    let precision = precision.max(1);
    if f == 0.0 {
        return "0".to_string();
    }
    let scientific = format!("{f:.*e}", precision - 1);
    let (mantissa, e) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let e: i32 = e.parse().unwrap_or(0);
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if e < -4 || e >= i32::try_from(precision).unwrap_or(i32::MAX) {
        return exponent(&format!("{}e{e}", strip(mantissa)));
    }
    let decimals = usize::try_from(precision as i64 - 1 - i64::from(e)).unwrap_or(0);
    strip(&format!("{f:.decimals$}"))
}

/// Converts Rust's `1.5e7` to C's and Go's `1.5e+07`.
fn exponent(scientific: &str) -> String {
    let Some((mantissa, e)) = scientific.split_once('e') else { return scientific.to_string() };
    let (sign, digits) = match e.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', e),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// Formats a float as in `encoding/json`. Infinities and NaN, which Go refuses, do not become JSON
/// numbers.
pub(crate) fn float_json(f: f64) -> String {
    if !f.is_finite() {
        return "null".to_string();
    }
    if f == 0.0 {
        return if f.is_sign_negative() { "-0" } else { "0" }.to_string();
    }
    if f.abs() < 1e-6 || f.abs() >= 1e21 {
        let text = exponent(&format!("{f:e}"));
        // `e-09` becomes `e-9`.
        return match text.split_once("e-0") {
            Some((mantissa, digit)) => format!("{mantissa}e-{digit}"),
            None => text,
        };
    }
    format!("{f}")
}
