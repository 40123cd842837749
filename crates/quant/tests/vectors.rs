//! Reference vectors: blocks and the exact bits of their values.

use puna_quant::{TensorType, dequantize, float};
use serde_json::Value;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/quant-vectors.json");
    serde_json::from_slice(
        &std::fs::read(path).expect("the reference vectors are in the repository"),
    )
    .expect("JSON")
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().expect("a hex string");
    (0..hex.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex digits"))
        .collect()
}

/// f32 bit patterns, most significant digit first.
fn words(hex: &Value) -> Vec<u32> {
    bytes(hex).chunks_exact(4).map(|b| u32::from_be_bytes(b.try_into().expect("4 bytes"))).collect()
}

#[test]
fn every_reference_block_dequantizes_to_the_exact_bits() {
    let vectors = vectors();
    let types = vectors["types"].as_object().expect("types");
    let (mut blocks_seen, mut types_seen) = (0, 0);
    for (name, entry) in types {
        let ty = TensorType::from_name(name).unwrap_or_else(|| panic!("unknown type {name}"));
        assert_eq!(u64::from(ty.id()), entry["id"].as_u64().expect("id"), "{name}");
        assert_eq!(ty.block_values() as u64, entry["block"].as_u64().expect("block"), "{name}");
        assert_eq!(ty.block_bytes() as u64, entry["bytes"].as_u64().expect("bytes"), "{name}");
        for block in entry["blocks"].as_array().expect("blocks") {
            let (src, expected) = (bytes(&block["hex"]), words(&block["f32"]));
            let mut values = vec![0.0; expected.len()];
            dequantize(ty, &src, &mut values)
                .unwrap_or_else(|e| panic!("{name} {}: {e}", block["kind"]));
            for (i, (&want, got)) in expected.iter().zip(&values).enumerate() {
                let both_nan = got.is_nan() && f32::from_bits(want).is_nan();
                assert!(
                    both_nan || got.to_bits() == want,
                    "{name} {} value {i}: {got}",
                    block["kind"]
                );
            }
            blocks_seen += 1;
        }
        types_seen += 1;
    }
    assert!(types_seen >= 28 && blocks_seen >= 300, "{types_seen} types, {blocks_seen} blocks");
}

#[test]
fn floats_round_to_16_bits_as_in_the_reference() {
    let vectors = vectors();
    for (name, round) in
        [("F16", float::f32_to_f16 as fn(f32) -> u16), ("BF16", float::f32_to_bf16)]
    {
        let case = &vectors["types"][name]["from_f32"];
        let expected = bytes(&case["hex"]);
        let rounded: Vec<u8> = words(&case["f32"])
            .into_iter()
            .flat_map(|w| round(f32::from_bits(w)).to_le_bytes())
            .collect();
        assert_eq!(rounded, expected, "{name}");
    }
}

#[test]
fn codebooks_match_the_published_ones() {
    use puna_quant::tables::*;
    let vectors = vectors();
    let expand = |name: &str, expanded: Vec<u8>| {
        let book = &vectors["codebooks"][name];
        let number = |key: &str| book[key].as_u64().expect("a number") as usize;
        let levels: Vec<u8> = book["levels"]
            .as_array()
            .expect("levels")
            .iter()
            .map(|l| l.as_i64().expect("level") as u8)
            .collect();
        let bits = number("bits_per_value");
        let published: Vec<u8> = bytes(&book["u16le_hex"])
            .chunks_exact(2)
            .flat_map(|b| {
                let row = usize::from(u16::from_le_bytes([b[0], b[1]]));
                let levels = &levels;
                (0..number("values_per_entry"))
                    .map(move |j| levels[row >> (bits * j) & ((1 << bits) - 1)])
            })
            .collect();
        assert_eq!(expanded.len(), number("entries") * number("values_per_entry"), "{name}");
        assert_eq!(expanded, published, "{name}");
    };
    let eights = |grid: &[u64]| grid.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<_>>();
    let fours = |grid: &[u32]| grid.iter().flat_map(|row| row.to_le_bytes()).collect::<Vec<_>>();
    expand("IQ2_XXS grid", eights(&IQ2XXS_GRID));
    expand("IQ2_XS grid", eights(&IQ2XS_GRID));
    expand("IQ2_S grid", eights(&IQ2S_GRID));
    expand("IQ1_S grid", eights(&IQ1S_GRID));
    expand("IQ3_XXS grid", fours(&IQ3XXS_GRID));
    expand("IQ3_S grid", fours(&IQ3S_GRID));
}
