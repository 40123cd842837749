//! Keys and tables with invalid numbers: the error names the number in printable form.

use puna_gguf::Metadata;
use puna_quant::TensorType;

use super::files::{Tensor, loaded, refused, source, tensors, with};

#[test]
fn names_of_any_length_and_content_are_printed_safely() {
    let name = format!("\x1b[2J{}", "y".repeat(100_000));
    for (of, key) in [
        ("llama", "general.architecture"),
        ("llama", "llama.rope.scaling.type"),
        ("modern-bert", "modern-bert.hidden_activation"),
    ] {
        let text = refused(of, with(key, name.as_str()), "");
        assert!(text.contains("`\\u{1b}[2Jyyy"), "{text:.200}");
        assert!(text.len() < 4000, "{key}: {}", text.len());
    }
}

#[test]
fn nan_and_infinity_are_named_with_their_key() {
    for (name, key) in [
        ("llama", "attention.scale"),
        ("command-r", "logit_scale"),
        ("granite", "attention.scale"),
        ("gemma2", "final_logit_softcapping"),
        ("llama-rope-yarn", "rope.scaling.yarn_beta_fast"),
        ("llama-rope-yarn", "rope.scaling.attn_factor"),
        ("grovemoe", "expert_group_scale"),
        ("minimax-01", "residual_scale"),
        ("deepseek3", "attention.temperature_scale"),
    ] {
        let source = source(name);
        let key = format!("{}.{key}", source.metadata().architecture().unwrap());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let text = refused(name, with(&key, value), "");
            assert_eq!(text, format!("key `{key}` is {value}: must be a finite number"));
        }
    }
    let text = refused("step35", with("step35.swiglu_clamp_exp", vec![f32::NAN; 8]), "");
    assert_eq!(text, "key `step35.swiglu_clamp_exp` is NaN in layer 0: must be a finite number");
}

#[test]
fn the_invalid_key_is_named_instead_of_a_consequence() {
    for (name, key) in [
        ("llama", "rope.freq_base"),
        ("gemma3", "rope.freq_base_swa"),
        ("deepseek4", "attention.compress_rope_freq_base"),
    ] {
        let key = format!("{name}.{key}");
        for value in [0.0f32, -1.0] {
            let text = refused(name, with(&key, value), "");
            assert_eq!(text, format!("key `{key}` is {value}: must be positive"));
        }
    }
    // The file has no key for the head size.
    let text = refused("gpt2", with("gpt2.attention.head_count", 255u32), "");
    assert!(
        text.starts_with(
            "key `gpt2.attention.head_count` is 255: must be at most embedding_length"
        ),
        "{text}"
    );
    let text = refused("afmoe", with("afmoe.attention.value_length", 65_537u32), "");
    assert!(text.starts_with("key `afmoe.attention.value_length` is 65537: "), "{text}");
    let text = refused("granitehybrid", with("granitehybrid.attention.head_count", 1u32), "");
    assert!(
        text.ends_with("`attention.head_count` must be a multiple of `attention.head_count_kv`"),
        "{text}"
    );
    for (name, up) in [("llama", "ffn_up"), ("gptneox", "ffn_up")] {
        let key = format!("{name}.feed_forward_length");
        let text = refused(name, |meta| drop(meta.remove(&key)), "");
        let file = format!("key `{key}` is absent or 0, and the file has `blk.0.{up}.weight`");
        assert!(text.starts_with(&file), "{text}");
    }
    let key = "llama-moe";
    let keep = |_: &mut Metadata| {};
    assert_eq!(
        refused("llama", keep, "blk.1.ffn_gate.weight"),
        "tensor `blk.1.ffn_gate.weight` is missing"
    );
    let text = refused(key, |meta| drop(meta.remove("llama.feed_forward_length")), "");
    assert!(text.ends_with(": one of them is absent or zero"), "{text}");
}

#[test]
fn an_invalid_rotary_table_is_named() {
    const TABLE: &str = "rope_freqs.weight";
    let with_table = |ty: TensorType, bytes: &[u8], len: u64| {
        let source = source("llama");
        let mut tensors = tensors(&source);
        tensors.push(Tensor { name: TABLE.to_owned(), ty, shape: vec![len], data: bytes.to_vec() });
        loaded(source.metadata(), &tensors).map_err(|error| error.to_string())
    };
    let of = |factors: &[f32]| {
        let bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
        with_table(TensorType::F32, &bytes, factors.len() as u64)
    };
    // Heads of 12 dimensions.
    assert_eq!(of(&[1.0; 6]), Ok(()));
    for wrong in [1, 5, 7, 12] {
        let text = of(&vec![1.0; wrong]).unwrap_err();
        assert_eq!(
            text,
            format!("tensor `{TABLE}` has shape [{wrong}], but the keys of the file require [6]")
        );
    }
    for factor in [0.0, f32::NAN] {
        let text = of(&[1.0, 1.0, factor, 1.0, 1.0, 1.0]).unwrap_err();
        let want = format!(
            "factor {factor} of `{TABLE}` is not supported: it must be a number other than 0"
        );
        assert_eq!(text, want);
    }
    // Any float type is accepted, other types are not.
    assert_eq!(with_table(TensorType::F16, &[0, 0x3c].repeat(6), 6), Ok(()));
    let text = with_table(TensorType::I32, &[1; 24], 6).unwrap_err();
    assert!(text.starts_with(&format!("tensor `{TABLE}` has type I32")), "{text}");
}
