//! Go literals: numbers, character constants, quoted strings.

use super::node::Number;

/// Parses a number or character constant.
pub(super) fn number(text: &str) -> Result<Number, String> {
    if text == "''" {
        return Err("invalid syntax".into());
    }
    if text.starts_with('\'') {
        let inner = unquote(text).map_err(|_| format!("malformed character constant: {text}"))?;
        let mut chars = inner.chars();
        return match (chars.next(), chars.next()) {
            (Some(c), None) => Ok(Number::Int(i64::from(u32::from(c)))),
            _ => Err(format!("malformed character constant: {text}")),
        };
    }
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase().replace('_', "");
    if let Some(n) = integer(&lower) {
        let n = if negative { -i128::from(n) } else { i128::from(n) };
        return Ok(i64::try_from(n).map_or(Number::Overflow, Number::Int));
    }
    let is_hex = lower.starts_with("0x");
    if !lower.contains(['.', 'p']) && (is_hex || !lower.contains('e')) {
        return Err(format!("integer overflow: {text:?}"));
    }
    let value = if is_hex { hex_float(&lower[2..]) } else { lower.parse().ok() };
    match value {
        Some(f) if f64::is_finite(f) => Ok(Number::Float(if negative { -f } else { f })),
        _ => Err(format!("illegal number syntax: {text:?}")),
    }
}

fn integer(lower: &str) -> Option<u64> {
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// `1.8p3`: hexadecimal mantissa, decimal power of two.
fn hex_float(text: &str) -> Option<f64> {
    let (mantissa, power) = text.split_once('p')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut value = 0.0;
    for c in whole.chars() {
        value = value * 16.0 + f64::from(c.to_digit(16)?);
    }
    let mut scale = 1.0 / 16.0;
    for c in fraction.chars() {
        value += f64::from(c.to_digit(16)?) * scale;
        scale /= 16.0;
    }
    let power: i32 = power.parse().ok()?;
    Some(value * f64::from(power.clamp(-1100, 1100)).exp2())
}

/// Decodes a `"…"`, `` `…` `` or `'…'` literal.
pub(super) fn unquote(literal: &str) -> Result<String, String> {
    let syntax = || "invalid syntax".to_string();
    let quote = literal.chars().next().ok_or_else(syntax)?;
    let inner = literal.get(1..literal.len().saturating_sub(1)).ok_or_else(syntax)?;
    if quote == '`' {
        return Ok(inner.replace('\r', ""));
    }
    let mut bytes = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let escape = chars.next().ok_or_else(syntax)?;
        match escape {
            'a' => bytes.push(7),
            'b' => bytes.push(8),
            'f' => bytes.push(12),
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            't' => bytes.push(b'\t'),
            'v' => bytes.push(11),
            '\\' => bytes.push(b'\\'),
            '\'' | '"' if escape == quote => bytes.push(escape as u8),
            'x' => {
                let code = code_point(&mut chars, 2, 16).and_then(|c| u8::try_from(c).ok());
                bytes.push(code.ok_or_else(syntax)?);
            }
            '0'..='7' => {
                let first = escape.to_digit(8).ok_or_else(syntax)?;
                let rest = code_point(&mut chars, 2, 8).ok_or_else(syntax)?;
                bytes.push(u8::try_from(first * 64 + rest).map_err(|_| syntax())?);
            }
            'u' | 'U' => {
                let digits = if escape == 'u' { 4 } else { 8 };
                let c = code_point(&mut chars, digits, 16)
                    .and_then(char::from_u32)
                    .ok_or_else(syntax)?;
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => return Err(syntax()),
        }
    }
    // Go strings are bytes. Here they are text, so that invalid UTF-8 becomes the replacement
    // character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn code_point(chars: &mut std::str::Chars<'_>, digits: usize, radix: u32) -> Option<u32> {
    let mut value = 0u32;
    for _ in 0..digits {
        value = value.checked_mul(radix)?.checked_add(chars.next()?.to_digit(radix)?)?;
    }
    Some(value)
}
