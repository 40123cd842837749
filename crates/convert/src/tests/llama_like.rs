//! Folder tensors of families that differ little from Llama.

use puna_gguf::{Gguf, TensorInfo};
use puna_quant::TensorType;

use super::fixtures::{StoredTensor, bytes, values};

/// Source names of a layer's tensors, by architecture.
pub(super) fn source_part(arch: &str, part: &str) -> String {
    let (part, end) = part.rsplit_once('.').unwrap();
    let gemma = ["gemma2", "gemma3"].contains(&arch);
    let name = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" if gemma => "pre_feedforward_layernorm",
        "ffn_norm" | "post_attention_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "attn_sinks" => return "self_attn.sinks".to_owned(),
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if arch == "phi3" => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "ffn_gate_inp" if arch == "gpt-oss" => "mlp.router",
        "ffn_gate_inp" if arch == "llama" => "block_sparse_moe.gate",
        "ffn_gate_inp" => "mlp.gate",
        "ffn_gate_shexp" => "mlp.shared_expert.gate_proj",
        "ffn_up_shexp" => "mlp.shared_expert.up_proj",
        "ffn_down_shexp" => "mlp.shared_expert.down_proj",
        "ffn_gate_inp_shexp" => "mlp.shared_expert_gate",
        other => panic!("{other}"),
    };
    format!("{name}.{end}")
}

/// Moves the interleaved rows of rotary pairs half a head apart.
pub(super) fn deinterleaved(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (columns, head) = (values.len() / rows, rows / heads);
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (start, at) = (row / head * head, row % head);
        let (half, pair) = (at / (head / 2), at % (head / 2));
        let from = (start + 2 * pair + half) * columns;
        out.extend_from_slice(&values[from..from + columns]);
    }
    out
}

/// The tensors of a zoo file as transformers stores them.
pub(super) fn llama_like_tensors(gguf: &Gguf) -> Vec<StoredTensor> {
    let arch = gguf.metadata().architecture().unwrap().to_owned();
    let number = |key: &str| gguf.metadata().u32(&format!("{arch}.{key}")).unwrap() as usize;
    let mut out: Vec<StoredTensor> = Vec::new();
    for tensor in gguf.tensors() {
        let dtype = match tensor.ty {
            TensorType::F16 => "F16",
            TensorType::BF16 => "BF16",
            _ => "F32",
        };
        let mut numbers = values(gguf, tensor);
        let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
        if arch.starts_with("gemma") && tensor.name.ends_with("norm.weight") {
            numbers.iter_mut().for_each(|x| *x -= 1.0);
        }
        let rows = shape[0] as usize;
        for (part, heads) in
            [("attn_q.", "attention.head_count"), ("attn_k.", "attention.head_count_kv")]
        {
            let pairs = ["llama", "arcee", "smollm3", "granite"].contains(&&*arch);
            if pairs && tensor.name.contains(part) {
                numbers = deinterleaved(&numbers, rows, number(heads));
            }
        }
        let name = match &*tensor.name {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            name if name.starts_with("rope_") => continue,
            name => {
                let (layer, part) = name.strip_prefix("blk.").unwrap().split_once('.').unwrap();
                if part.contains("_exps.") {
                    if arch != "gpt-oss" {
                        experts(&arch, layer, part, &shape, &numbers, &mut out);
                    }
                    continue;
                }
                format!("model.layers.{layer}.{}", source_part(&arch, part))
            }
        };
        out.push((name, dtype, shape, bytes(&numbers, dtype)));
    }
    if arch == "gpt-oss" {
        gpt_oss_experts(gguf, number("block_count"), &mut out);
    }
    out
}

pub(super) fn experts(
    arch: &str,
    layer: &str,
    part: &str,
    shape: &[u64],
    numbers: &[f32],
    out: &mut Vec<StoredTensor>,
) {
    let part = part.strip_suffix("_exps.weight").unwrap();
    let name = match (arch, part) {
        ("llama", "ffn_gate") => "w1",
        ("llama", "ffn_down") => "w2",
        ("llama", "ffn_up") => "w3",
        (_, part) => &format!("{}_proj", part.strip_prefix("ffn_").unwrap()),
    };
    let block = if arch == "llama" { "block_sparse_moe" } else { "mlp" };
    let each = numbers.len() / shape[0] as usize;
    for (i, numbers) in numbers.chunks_exact(each).enumerate() {
        let name = format!("model.layers.{layer}.{block}.experts.{i}.{name}.weight");
        out.push((name, "F32", shape[1..].to_vec(), bytes(numbers, "F32")));
    }
}

/// gpt-oss: plain experts with interleaved rows of gate and up and dimensions inputs, outputs; or
/// MXFP4 blocks with outputs, inputs.
pub(super) fn gpt_oss_experts(gguf: &Gguf, layers: usize, out: &mut Vec<StoredTensor>) {
    for layer in 0..layers {
        let get = |name: &str| gguf.tensor(&format!("blk.{layer}.ffn_{name}")).unwrap();
        let prefix = format!("model.layers.{layer}.mlp.experts");
        let turns = |a: Vec<f32>, b: Vec<f32>| {
            a.into_iter().zip(b).flat_map(|(a, b)| [a, b]).collect::<Vec<_>>()
        };
        let (gate, up, down) =
            (get("gate_exps.weight"), get("up_exps.weight"), get("down_exps.weight"));
        let [width, hidden, count] = gate.shape[..] else { panic!() };
        let both = turns(values(gguf, get("gate_exps.bias")), values(gguf, get("up_exps.bias")));
        out.push((
            format!("{prefix}.gate_up_proj_bias"),
            "F32",
            vec![count, 2 * hidden],
            bytes(&both, "F32"),
        ));
        let bias = values(gguf, get("down_exps.bias"));
        out.push((
            format!("{prefix}.down_proj_bias"),
            "F32",
            vec![count, width],
            bytes(&bias, "F32"),
        ));
        if gate.ty == TensorType::MXFP4 {
            let rows = |t: &TensorInfo, row: u64| {
                let size = (t.shape[0] / 32 * 17) as usize;
                gguf.data(t)[row as usize * size..][..size].to_vec()
            };
            let mixed =
                (0..count * hidden).flat_map(|row| [rows(gate, row), rows(up, row)]).collect();
            let plain = (0..count * width).map(|row| rows(down, row)).collect();
            blocks(
                &format!("{prefix}.gate_up_proj"),
                vec![count, 2 * hidden, width / 32],
                mixed,
                out,
            );
            blocks(&format!("{prefix}.down_proj"), vec![count, width, hidden / 32], plain, out);
            continue;
        }
        let (gate, up) = (values(gguf, gate), values(gguf, up));
        let mut both = Vec::new();
        for (expert, input) in (0..count).flat_map(|e| (0..width).map(move |i| (e, i))) {
            let at = |output: u64| ((expert * hidden + output) * width + input) as usize;
            both.extend((0..hidden).flat_map(|output| [gate[at(output)], up[at(output)]]));
        }
        out.push((
            format!("{prefix}.gate_up_proj"),
            "F32",
            vec![count, width, 2 * hidden],
            bytes(&both, "F32"),
        ));
        let down = values(gguf, down);
        let mut transposed = Vec::new();
        for (expert, input) in (0..count).flat_map(|e| (0..hidden).map(move |i| (e, i))) {
            transposed.extend(
                (0..width)
                    .map(|output| down[((expert * width + output) * hidden + input) as usize]),
            );
        }
        out.push((
            format!("{prefix}.down_proj"),
            "F32",
            vec![count, hidden, width],
            bytes(&transposed, "F32"),
        ));
    }
}

/// Converts GGUF's MXFP4 blocks to codes with adjacent values in a byte, and separate exponents.
pub(super) fn blocks(name: &str, shape: Vec<u64>, rows: Vec<Vec<u8>>, out: &mut Vec<StoredTensor>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in rows.concat().chunks_exact(17) {
        scales.push(block[0]);
        let number = |i: usize| block[1 + i % 16] >> (4 * (i / 16)) & 15;
        codes.extend((0..16).map(|i| number(2 * i) | number(2 * i + 1) << 4));
    }
    out.push((format!("{name}_scales"), "U8", shape.clone(), scales));
    out.push((format!("{name}_blocks"), "U8", [&shape[..], &[16]].concat(), codes));
}
