//! Filters on single values and texts. Filters on lists are in [`super::sequence_filters`].

use super::args::{CallArgs, text};
use super::eval::shorten;
use super::format::percent;
use super::interp::Interpreter;
use super::methods;
use super::ops::take_items;
use super::python_chars;
use super::text::{JsonStyle, push, to_json, to_str};
use super::value::{EvalResult, Number, Value};
use crate::control_marks::is_mark;

/// All filters.
pub(super) const NAMES: &[&str] = &[
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

impl Interpreter {
    pub(super) fn filter(&mut self, name: &str, value: &Value, args: &CallArgs) -> EvalResult {
        self.budget.charge_steps(1)?;
        self.budget.charge_read(value.size())?;
        args.charge(&mut self.budget)?;
        match name {
            "abs" => {
                args.none(name)?;
                match value.number() {
                    Some(Number::Int(n)) => Ok(Value::Int(n.saturating_abs())),
                    Some(Number::Float(f)) => Ok(Value::Float(f.abs())),
                    None => {
                        Err(format!("bad operand type for abs(): '{}'", value.type_name()).into())
                    }
                }
            }
            "attr" => {
                let attribute = text(&args.one(name)?)?;
                match value {
                    // Looks up attributes only, not items.
                    Value::Dict(_) if methods::attribute(value, &attribute).is_none() => {
                        let name = shorten(&attribute);
                        Ok(Value::Undefined(
                            format!("'dict object' has no attribute '{name}'").into(),
                        ))
                    }
                    _ => self.attribute(value, &attribute),
                }
            }
            "d" | "default" => {
                let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
                let replace = value.is_undefined()
                    || (boolean.is_some_and(|b| b.is_true()) && !value.is_true());
                Ok(if replace { default.unwrap_or_else(|| Value::str("")) } else { value.clone() })
            }
            "length" | "count" => {
                args.none(name)?;
                length(value)
            }
            "int" => {
                let [default, base] = args.bind(name, ["default", "base"])?;
                let base = base.map_or(Ok(10), |b| b.int())?;
                Ok(to_int(value, base).unwrap_or_else(|| default.unwrap_or(Value::Int(0))))
            }
            "float" => {
                let [default] = args.bind(name, ["default"])?;
                let parsed = match value {
                    Value::Str(s) => python_float(s),
                    other => other.number().map(Number::float),
                };
                Ok(parsed.map(Value::Float).unwrap_or_else(|| default.unwrap_or(Value::Float(0.0))))
            }
            "round" => round(value, args),
            "tojson" => {
                let style = json_style(args)?;
                self.budget.charge_read(style.item_separator.len() + style.key_separator.len())?;
                let text = to_json(value, &style)?;
                self.budget.charge_text(text.len())?;
                Ok(Value::str(text))
            }
            "filesizeformat" => file_size(value, args),
            "xmlattr" => xml_attributes(value, args),
            "random" => {
                args.none(name)?;
                take_items(value.size(), &mut self.budget)?;
                let mut items = value.iterate()?;
                // The time is constant during a rendering, and so is the random choice.
                let at =
                    usize::try_from(self.now.subsec_nanosecond()).unwrap_or(0) % items.len().max(1);
                let missing = || Value::Undefined("No random item, sequence was empty.".into());
                Ok(if items.is_empty() { missing() } else { items.swap_remove(at) })
            }
            "capitalize" | "center" | "e" | "escape" | "forceescape" | "format" | "indent"
            | "lower" | "pprint" | "replace" | "safe" | "string" | "striptags" | "title"
            | "trim" | "truncate" | "upper" | "urlencode" | "wordcount" | "wordwrap" => {
                self.text_filter(name, value, args)
            }
            _ => self.seq_filter(name, value, args),
        }
    }

    fn text_filter(&mut self, name: &str, value: &Value, args: &CallArgs) -> EvalResult {
        if name == "urlencode" && !matches!(value, Value::Str(_)) {
            return url_pairs(value);
        }
        let s = match value {
            Value::Str(s) => std::sync::Arc::clone(s),
            other => to_str(other)?.into(),
        };
        self.budget.charge_text(s.len())?;
        let text = match name {
            "string" | "safe" => return Ok(Value::Str(s)),
            "upper" => s.to_uppercase(),
            "lower" => s.to_lowercase(),
            "capitalize" => python_chars::capitalize(&s),
            "title" => title(&s),
            "e" | "escape" | "forceescape" => escape(&s),
            "pprint" => {
                let mut out = String::new();
                super::text::repr_to(&mut out, value)?;
                out
            }
            "striptags" => strip_tags(&s),
            "urlencode" => url_quote(&s),
            "wordcount" => {
                let words =
                    s.split(|c: char| c != '_' && !c.is_alphanumeric()).filter(|w| !w.is_empty());
                return Ok(Value::Int(words.count() as i128));
            }
            "format" => {
                let args = match (args.pos.is_empty(), args.named.is_empty()) {
                    (_, true) => Value::tuple(args.pos.clone())?,
                    (true, false) => {
                        let named =
                            args.named.iter().map(|(k, v)| (Value::Str(k.clone()), v.clone()));
                        Value::dict(named.collect(), &mut self.budget)?
                    }
                    _ => {
                        return Err(
                            "can't handle positional and keyword arguments at the same time".into(),
                        );
                    }
                };
                percent(&s, &args, &mut self.budget)?
            }
            "trim" => {
                let [chars] = args.bind(name, ["chars"])?;
                let set = match chars {
                    None | Some(Value::None) => None,
                    Some(chars) => Some(text(&chars)?),
                };
                methods::strip(&s, "strip", set.as_deref()).to_string()
            }
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
                let (Some(old), Some(new)) = (old, new) else {
                    return Err(
                        "replace() missing 2 required positional arguments: 'old' and 'new'".into(),
                    );
                };
                let count = match count {
                    None | Some(Value::None) => -1,
                    Some(count) => count.int()?,
                };
                return methods::replace(
                    &s,
                    &to_str(&old)?,
                    &to_str(&new)?,
                    count,
                    &mut self.budget,
                );
            }
            "center" => {
                let [width] = args.bind(name, ["width"])?;
                let width = width.map_or(Ok(80), |w| w.int())?;
                return methods::justify(&s, "center", width, " ", &mut self.budget);
            }
            "indent" => self.indent(&s, args)?,
            "wordwrap" => self.word_wrap(&s, args)?,
            _ => truncate(&s, args)?,
        };
        self.budget.charge_text(text.len())?;
        Ok(Value::str(text))
    }

    fn indent(&mut self, s: &str, args: &CallArgs) -> EvalResult<String> {
        let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
        let indention = match width {
            None => "    ".to_string(),
            Some(Value::Str(s)) => s.to_string(),
            Some(n) => " ".repeat(usize::try_from(n.int()?.clamp(0, 1000)).unwrap_or(0)),
        };
        let (first, blank) =
            (first.is_some_and(|f| f.is_true()), blank.is_some_and(|b| b.is_true()));
        let text = format!("{s}\n");
        let lines = methods::split_lines(&text, false);
        take_items(lines.len(), &mut self.budget)?;
        let mut out = String::new();
        for (i, line) in lines.into_iter().enumerate() {
            if i > 0 {
                push(&mut out, "\n")?;
            }
            if if i == 0 { first } else { blank || !line.is_empty() } {
                push(&mut out, &indention)?;
            }
            push(&mut out, line)?;
        }
        Ok(out)
    }
}

pub(super) fn length(value: &Value) -> EvalResult {
    let n = match value {
        Value::Undefined(_) => 0,
        Value::Str(s) => s.chars().count(),
        Value::Seq(s) => s.items.len(),
        Value::Dict(d) => d.map.len(),
        Value::Loop(l) => l.items.len(),
        other => return Err(format!("object of type '{}' has no len()", other.type_name()).into()),
    };
    Ok(Value::Int(n as i128))
}

fn to_int(value: &Value, base: i128) -> Option<Value> {
    let truncate =
        |f: f64| (f.is_finite() && f.abs() < 1e38).then(|| Value::Int(f.trunc() as i128));
    match value {
        Value::Str(s) => match python_int(s, base) {
            Some(n) => Some(Value::Int(n)),
            None => python_float(s).and_then(truncate),
        },
        other => match other.number()? {
            Number::Int(n) => Some(Value::Int(n)),
            Number::Float(f) => truncate(f),
        },
    }
}

/// `int(s, base)`.
fn python_int(s: &str, base: i128) -> Option<i128> {
    let s = ascii_digits(python_chars::trim(s));
    let (sign, magnitude) = match s.strip_prefix(['+', '-']) {
        Some(rest) => s.split_at(s.len() - rest.len()),
        None => ("", &*s),
    };
    let lower = magnitude.to_ascii_lowercase();
    let marked = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(mark, radix)| {
        let digits = lower.strip_prefix(mark).filter(|_| base == 0 || base == radix)?;
        Some((digits.strip_prefix('_').unwrap_or(digits), radix))
    });
    let (digits, radix) = marked.unwrap_or((&lower, if base == 0 { 10 } else { base }));
    let radix = u32::try_from(radix).ok().filter(|radix| (2..=36).contains(radix))?;
    let zero_led = base == 0 && marked.is_none() && digits.len() > 1 && digits.starts_with('0');
    if digits.starts_with(['+', '-']) || (zero_led && digits.contains(|c| c != '0' && c != '_')) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{}", without_underscores(digits)?), radix).ok()
}

fn python_float(s: &str) -> Option<f64> {
    // Rust's parser accepts what Python's does, except digits of other scripts and underscores.
    without_underscores(&ascii_digits(python_chars::trim(s)))?.parse().ok()
}

fn ascii_digits(s: &str) -> String {
    let digit =
        |c| python_chars::decimal(c).and_then(|value| char::from_digit(value, 10)).unwrap_or(c);
    s.chars().map(digit).collect()
}

/// Removes underscores, which may stand between two digits.
fn without_underscores(s: &str) -> Option<String> {
    let bytes = s.as_bytes();
    let is_digit =
        |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_alphanumeric);
    let good = (0..bytes.len()).filter(|at| bytes[*at] == b'_');
    let good = good.into_iter().all(|at| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)));
    good.then(|| s.replace('_', ""))
}

fn round(value: &Value, args: &CallArgs) -> EvalResult {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |p| p.int())?.clamp(-300, 300) as i32;
    let method = method.map_or(Ok("common".into()), |m| text(&m))?;
    let Some(number) = value.number() else {
        return Err(format!("type {} doesn't define __round__ method", value.type_name()).into());
    };
    match (&*method, number) {
        ("common", Number::Int(n)) if precision >= 0 => Ok(Value::Int(n)),
        ("common", Number::Int(n)) => {
            let unit = 10i128.checked_pow(precision.unsigned_abs()).unwrap_or(i128::MAX);
            let low = n.div_euclid(unit) * unit;
            let (below, above) = (n - low, low.saturating_add(unit) - n);
            let up = above < below || (above == below && (low / unit) % 2 != 0);
            Ok(Value::Int(if up { low.saturating_add(unit) } else { low }))
        }
        ("common", Number::Float(f)) if precision >= 0 => {
            // Decimal formatting rounds the exact value half to even, as Python's `round`.
            let text = format!("{f:.*}", precision.unsigned_abs() as usize);
            Ok(Value::Float(text.parse().unwrap_or(f)))
        }
        ("common", Number::Float(f)) => {
            let unit = 10f64.powi(-precision);
            Ok(Value::Float((f / unit).round_ties_even() * unit))
        }
        ("ceil" | "floor", number) => {
            let unit = 10f64.powi(precision);
            let scaled = number.float() * unit;
            Ok(Value::Float(if &*method == "ceil" { scaled.ceil() } else { scaled.floor() } / unit))
        }
        _ => Err("method must be common, ceil or floor".into()),
    }
}

fn json_style(args: &CallArgs) -> EvalResult<JsonStyle> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = args.bind("tojson", names)?;
    let mut style = JsonStyle::plain();
    style.ensure_ascii = ensure_ascii.is_some_and(|v| v.is_true());
    style.sort_keys = sort_keys.is_some_and(|v| v.is_true());
    match indent {
        None | Some(Value::None) => {}
        Some(Value::Str(s)) => style.indent = Some(s.to_string()),
        Some(n) => {
            style.indent = Some(" ".repeat(usize::try_from(n.int()?.clamp(0, 100)).unwrap_or(0)))
        }
    }
    if style.indent.is_some() {
        style.item_separator = ",".into();
    }
    match separators {
        None | Some(Value::None) => {}
        Some(pair) => match <[Value; 2]>::try_from(pair.iterate()?) {
            Ok([item, key]) => {
                style.item_separator = text(&item)?.to_string();
                style.key_separator = text(&key)?.to_string();
            }
            Err(_) => return Err("separators must be two strings".into()),
        },
    }
    Ok(style)
}

fn file_size(value: &Value, args: &CallArgs) -> EvalResult {
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let binary = binary.is_some_and(|b| b.is_true());
    let bytes = match value {
        Value::Str(s) => {
            python_float(s).ok_or_else(|| format!("could not convert string to float: '{s}'"))?
        }
        other => other
            .number()
            .map(Number::float)
            .ok_or("float() argument must be a string or a real number")?,
    };
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::str("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::str(format!("{} Bytes", bytes.trunc())));
    }
    let mut unit = base;
    let mut text = String::new();
    for prefix in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
        let letter = if binary { prefix.to_uppercase() + "i" } else { prefix.to_string() };
        text = format!("{:.1} {letter}B", bytes / unit);
        unit *= base;
        if bytes < unit {
            break;
        }
    }
    Ok(Value::str(text))
}

/// Jinja's `title`: words also start behind `-`, brackets and `<`.
fn title(s: &str) -> String {
    let splits = |c: char| python_chars::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(s.len());
    for word in s.split_inclusive(splits) {
        let mut letters = word.chars();
        out.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&letters.as_str().to_lowercase());
    }
    out
}

fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    out
}

/// Writes `name="value"` for each attribute that has a value.
fn xml_attributes(value: &Value, args: &CallArgs) -> EvalResult {
    let [space] = args.bind("xmlattr", ["autospace"])?;
    let Value::Dict(dict) = value else {
        return Err(format!("'{}' object has no attribute 'items'", value.type_name()).into());
    };
    let mut out = String::new();
    for (key, value) in dict.map.values() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let key = to_str(key)?;
        if key.contains(|c| python_chars::is_space(c) || matches!(c, '/' | '>' | '=')) {
            return Err(format!(
                "Invalid character in attribute name: {}",
                super::text::repr_str(&key)
            )
            .into());
        }
        let is_bare = out.is_empty() && !space.as_ref().is_none_or(Value::is_true);
        push(&mut out, if is_bare { "" } else { " " })?;
        push(&mut out, &format!("{}=\"{}\"", escape(&key), escape(&to_str(value)?)))?;
    }
    Ok(Value::str(out))
}

fn strip_tags(s: &str) -> String {
    let mut text = String::with_capacity(s.len());
    let mut rest = s;
    while let Some(at) = rest.find('<') {
        let end = if rest[at..].starts_with("<!--") { "-->" } else { ">" };
        let Some(len) = rest[at..].find(end) else { break };
        text.push_str(&rest[..at]);
        rest = &rest[at + len + end.len()..];
    }
    text.push_str(rest);
    let words = text.split(python_chars::is_space).filter(|word| !word.is_empty());
    let text = words.collect::<Vec<_>>().join(" ");
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&#39;", "'")
        .replace("&#34;", "\"")
        .replace("&amp;", "&")
}

fn url_quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' | '~' | '/' => out.push(c),
            _ if is_mark(c) => out.push(c),
            _ => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| out.push_str(&format!("%{b:02X}")))
            }
        }
    }
    out
}

fn url_pairs(value: &Value) -> EvalResult {
    let pairs = match value {
        Value::Dict(d) => d.map.values().cloned().collect(),
        Value::Seq(_) | Value::Generator(_) => value
            .iterate()?
            .iter()
            .map(|pair| match <[Value; 2]>::try_from(pair.iterate()?) {
                Ok([k, v]) => Ok((k, v)),
                Err(_) => Err("urlencode requires a mapping or pairs".into()),
            })
            .collect::<EvalResult<Vec<_>>>()?,
        other => return Ok(Value::str(url_quote(&to_str(other)?))),
    };
    let quote = |v: &Value| {
        Ok::<_, super::value::EvalError>(
            url_quote(&to_str(v)?).replace('/', "%2F").replace("%20", "+"),
        )
    };
    let parts = pairs
        .iter()
        .map(|(k, v)| Ok(format!("{}={}", quote(k)?, quote(v)?)))
        .collect::<EvalResult<Vec<_>>>()?;
    Ok(Value::str(parts.join("&")))
}

fn truncate(s: &str, args: &CallArgs) -> EvalResult<String> {
    let [length, kill_words, end, leeway] =
        args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = usize::try_from(length.map_or(Ok(255), |n| n.int())?.max(0)).unwrap_or(usize::MAX);
    let end = end.map_or(Ok("...".into()), |e| text(&e))?;
    let leeway = match leeway {
        None | Some(Value::None) => 5,
        Some(n) => usize::try_from(n.int()?.max(0)).unwrap_or(5),
    };
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(s.to_string());
    }
    let end_len = end.chars().count();
    if length < end_len {
        return Err(format!("expected length >= {end_len}, got {length}").into());
    }
    let kept: String = s.chars().take(length - end_len).collect();
    if kill_words.is_some_and(|k| k.is_true()) {
        return Ok(kept + &end);
    }
    Ok(format!("{}{end}", kept.rsplit_once(' ').map_or(kept.as_str(), |(before, _)| before)))
}
