//! Chooses the type of each tensor as llama-quantize does, so that files of the same file type are
//! alike.

mod type_mix;

use puna_gguf::{Gguf, TensorInfo};
use puna_quant::TensorType::{self, *};

use super::FileType;
use type_mix::type_in_mix;

/// Name parts of tensors that keep their type.
const UNQUANTIZED_NAME_PARTS: [&str; 20] = [
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
    // Weights of hyper-connections and additions to gates are small and sensitive. The matrices of
    // gated residual streams are larger, and are quantized.
    "hc_attn_fn",
    "hc_ffn_fn",
    "output_hc_fn",
    "compressor_ape.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
];
/// Name ends of tensors that keep their type.
const UNQUANTIZED_NAME_ENDS: [&str; 3] =
    ["_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight"];

/// The type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TypeChoice {
    pub(super) ty: TensorType,
    /// The type that the file type prescribes. It differs if its blocks do not fit the rows.
    pub(super) wanted: TensorType,
}

/// Chooses the type of each tensor, in the order of the file.
pub(super) fn choose_types(gguf: &Gguf, target: FileType, has_imatrix: bool) -> Vec<TypeChoice> {
    let facts = ModelFacts::of(gguf);
    let keep = |tensor: &TensorInfo| TypeChoice { ty: tensor.ty, wanted: tensor.ty };
    let mut choices: Vec<TypeChoice> = gguf.tensors().iter().map(keep).collect();
    // Counters run over the layers in order, and over the names within a layer in order.
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by_key(|&i| {
        let name = &gguf.tensors()[i].name;
        (layer(name).map_or(-1, i64::from), name.clone())
    });
    let mut counters = Counters::default();
    for i in order {
        let tensor = &gguf.tensors()[i];
        if !is_quantized(tensor, &facts.architecture) {
            continue;
        }
        let base = target.base();
        choices[i] = if base.is_quantized() {
            let wanted = type_in_mix(tensor, target, &facts, has_imatrix, &mut counters);
            TypeChoice {
                ty: type_for_rows(tensor, wanted, base, facts.is_output(&tensor.name)),
                wanted,
            }
        } else {
            TypeChoice { ty: base, wanted: base }
        };
    }
    choices
}

/// Metadata that the rules depend on.
struct ModelFacts {
    architecture: String,
    layers: u32,
    /// Query heads for each key–value head.
    gqa: u32,
    experts: u32,
    tied: bool,
    is_70b: bool,
}

impl ModelFacts {
    fn of(gguf: &Gguf) -> Self {
        let meta = gguf.metadata();
        let architecture = meta.architecture().unwrap_or_default().to_owned();
        let number = |key: &str| {
            let key = format!("{architecture}.{key}");
            // Of a list with one value for each layer, the largest counts.
            let list = || meta.u32s(&key).ok().flatten().and_then(|list| list.into_iter().max());
            meta.opt_u32(&key).ok().flatten().or_else(list)
        };
        let heads = number("attention.head_count").unwrap_or(1).max(1);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads).max(1);
        let layers = number("block_count").unwrap_or(0);
        Self {
            layers,
            gqa: heads / kv_heads,
            experts: number("expert_count").unwrap_or(0),
            tied: gguf.tensor("output.weight").is_none(),
            is_70b: architecture == "llama" && layers == 80 && heads != kv_heads,
            architecture,
        }
    }

    /// Whether a tensor is the output layer. A model without one uses its token embeddings.
    fn is_output(&self, name: &str) -> bool {
        name == "output.weight"
            || (self.tied && matches!(name, "token_embd.weight" | "per_layer_token_embd.weight"))
    }
}

#[derive(Default)]
struct Counters {
    attn_v: u32,
    ffn_down: u32,
    ffn_gate: u32,
    ffn_up: u32,
}

/// The layer number in `blk.<number>.…`.
fn layer(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Whether a tensor is quantized at all.
fn is_quantized(tensor: &TensorInfo, architecture: &str) -> bool {
    let name = &*tensor.name;
    let time_mix = name.contains("time_mix_") && {
        let kept = [
            "first",
            "w0",
            "w1",
            "w2",
            "v0",
            "v1",
            "v2",
            "a0",
            "a1",
            "a2",
            "g1",
            "g2",
            "decay_w1",
            "decay_w2",
            "lerp_fused",
        ];
        kept.iter().any(|part| name.contains(&format!("time_mix_{part}.weight")))
    };
    // Projectors and encoders keep their type.
    let beside = ["v.", "a.", "mm.", "s.", "mtp."].iter().any(|prefix| name.starts_with(prefix));
    tensor.shape.len() >= 2
        && name.ends_with("weight")
        && !UNQUANTIZED_NAME_ENDS.iter().any(|end| name.ends_with(end))
        && !UNQUANTIZED_NAME_PARTS.iter().any(|part| name.contains(part))
        && !matches!(name, "position_embd.weight" | "token_types.weight")
        && !time_mix
        && !(beside && architecture != "clip")
        && !matches!(tensor.ty, I8 | I16 | I32 | I64 | F64)
}

/// A type whose blocks fit the rows. The output layer gets at least Q8_0 if the base type does not
/// fit.
fn type_for_rows(
    tensor: &TensorInfo,
    wanted: TensorType,
    base: TensorType,
    is_output: bool,
) -> TensorType {
    let row = tensor.shape.first().copied().unwrap_or(0);
    let fits = |ty: TensorType| row.is_multiple_of(ty.block_values() as u64);
    let wanted = if is_output && !fits(base) { Q8_0 } else { wanted };
    if fits(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q2_0 | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        Q6_K => Q8_0,
        _ => F16,
    };
    if fits(smaller) { smaller } else { F16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf_info::file_type_name;
    use std::path::{Path, PathBuf};

    /// The rules need only names and shapes: for a file of llama-quantize, they must yield its
    /// types.
    fn check(path: &Path) {
        let gguf = Gguf::open(path).unwrap();
        let id = gguf.metadata().u32("general.file_type").unwrap();
        let target = FileType::from_name(file_type_name(id)).unwrap();
        for (tensor, chosen) in gguf.tensors().iter().zip(choose_types(&gguf, target, false)) {
            assert_eq!(
                chosen.ty,
                tensor.ty,
                "{} of {} ({})",
                tensor.name,
                path.display(),
                target.name()
            );
        }
    }

    #[test]
    fn hyper_connection_weights_keep_their_type_and_gates_do_not() {
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
        for (name, part, stays) in [
            ("hy_v4", "hc_attn_fn.weight", true),
            ("hy_v4", "hc_ffn_fn.weight", true),
            ("hy_v4", "output_hc_fn.weight", true),
            ("qwen4exp", "hc_attn_down.weight", false),
            ("qwen4exp", "hc_ffn_up.weight", false),
            ("qwen4exp", "output_hc_up.weight", false),
            ("qwen4exp", "indexer.q_proj.weight", true),
        ] {
            let gguf = Gguf::open(&zoo.join(format!("{name}.gguf"))).unwrap();
            let chosen = choose_types(&gguf, FileType::from_name("q8_0").unwrap(), false);
            let mut types =
                gguf.tensors().iter().zip(chosen).filter(|(tensor, _)| tensor.name.ends_with(part));
            let (tensor, choice) = types.next().unwrap();
            assert_eq!(
                choice.ty == tensor.ty,
                stays,
                "{} of {name} becomes {}",
                tensor.name,
                choice.ty
            );
        }
    }

    #[test]
    fn types_match_those_of_llama_quantize() {
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
        for name in ["q2_k", "q3_k_m", "q4_0", "q4_k_m", "q6_k", "q8_0", "iq4_xs"] {
            check(&zoo.join(format!("llama-{name}.gguf")));
        }
        check(&zoo.join("qwen3-q4_k_m.gguf"));
    }

    /// llama-quantize chooses these types for a file of these shapes.
    #[test]
    fn eight_experts_change_the_types_of_attention_tensors() {
        let mut writer = puna_gguf::Writer::new();
        writer.set("general.architecture", "llama").set("llama.block_count", 1u32);
        writer.set("llama.expert_count", 8u32).set("llama.attention.head_count", 4u32);
        writer.tensor("blk.0.attn_output.weight", F16, &[256, 1]).unwrap();
        let gguf = Gguf::from_bytes(writer.to_vec([&[0u8; 512][..]]).unwrap()).unwrap();
        for (name, want) in
            [("Q3_K_L", Q3_K), ("Q3_K_M", Q5_K), ("Q4_K_M", Q5_K), ("Q5_K_M", Q5_K), ("Q6_K", Q6_K)]
        {
            let chosen = choose_types(&gguf, FileType::from_name(name).unwrap(), false);
            assert_eq!(chosen, [TypeChoice { ty: want, wanted: want }], "{name}");
        }
    }

    #[test]
    fn only_experts_become_mxfp4() {
        let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
        let gguf = Gguf::open(&zoo.join("gpt-oss.gguf")).unwrap();
        let types = choose_types(&gguf, FileType::from_name("MXFP4").unwrap(), false);
        let of =
            |name: &str| types[gguf.tensors().iter().position(|t| &*t.name == name).unwrap()].ty;
        assert_eq!(of("blk.0.ffn_up_exps.weight"), MXFP4);
        assert_eq!(of("blk.0.attn_q.weight"), Q8_0);
        assert_eq!(of("blk.0.ffn_gate_inp.weight"), F32);
    }

    #[test]
    fn types_of_real_models_are_reproduced() {
        let models = std::env::var_os("PUNA_TEST_MODELS").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models"),
            PathBuf::from,
        );
        for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
            match models.join(name) {
                path if path.exists() => check(&path),
                path => eprintln!("SKIPPED: {} is not there", path.display()),
            }
        }
    }

    #[test]
    fn file_type_names_are_parsed_in_any_case() {
        let of = |name: &str| FileType::from_name(name).map(FileType::name);
        assert_eq!(of("q4_k"), Some("Q4_K_M"));
        assert_eq!(of("q4_K_S"), Some("Q4_K_S"));
        assert_eq!(of("bf16"), Some("BF16"));
        assert_eq!(of("mxfp4"), Some("MXFP4_MOE"));
        assert_eq!(of("Q9"), None);
        assert!(FileType::names().contains(&"IQ3_M"));
    }
}
