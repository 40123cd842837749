//! `puna debug dequantize` and `quantize-error`: test single block formats.

use anyhow::Result;
use puna_quant::TensorType;
use serde_json::{Value, json};

use crate::{out, usage};

pub fn dequantize(ty: &str, hex: &str, as_json: bool) -> Result<()> {
    let ty = tensor_type(ty)?;
    let bytes = parse_hex(hex)?;
    let size = ty.block_bytes();
    if bytes.is_empty() || !bytes.len().is_multiple_of(size) {
        let text =
            format!("{} bytes are not a multiple of the {ty} block size, {size}", bytes.len());
        return Err(usage::error(text));
    }
    let mut values = vec![0.0f32; bytes.len() / size * ty.block_values()];
    puna_quant::dequantize(ty, &bytes, &mut values)?;
    if as_json {
        // JSON cannot represent infinities and NaN as numbers.
        let number = |x: &f32| if x.is_finite() { json!(x) } else { Value::String(x.to_string()) };
        return out::json(&json!({"values": values.iter().map(number).collect::<Vec<_>>()}));
    }
    let lines = values
        .chunks(8)
        .map(|row| row.iter().map(|x| format!("{x:>12} ")).collect::<String>() + "\n");
    out::text(&lines.collect::<String>())
}

pub fn quantize_error(ty: &str, as_json: bool) -> Result<()> {
    let ty = tensor_type(ty)?;
    let error = puna_quant::quantize_error(ty)?;
    if as_json {
        return out::json(&json!({"rmse": error.rmse, "max": error.max}));
    }
    out::line(&format!("{ty}: root mean square error {:.6}, largest {:.6}", error.rmse, error.max))
}

fn tensor_type(name: &str) -> Result<TensorType> {
    TensorType::from_name(name).ok_or_else(|| {
        let known: Vec<_> = TensorType::all().map(TensorType::name).collect();
        usage::error(format!("unknown tensor type `{name}`: use one of {}", known.join(", ")))
    })
}

fn parse_hex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| {
            c.to_digit(16).ok_or_else(|| usage::error(format!("`{c}` is not a hexadecimal digit")))
        })
        .collect::<Result<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return Err(usage::error(format!("{} hexadecimal digits are an odd number", digits.len())));
    }
    Ok(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}
