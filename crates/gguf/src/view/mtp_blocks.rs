//! Renames multi-token prediction blocks that were published under their original names, `mtp.`.

use puna_quant::TensorType;

use super::rules::{DerivedData, MAX_BLOCKS, ViewBuilder};

/// Tensors that all blocks share, with their names in the only block.
const SHARED: [(&str, &str); 6] = [
    ("mtp.fc.weight", "eh_proj"),
    ("mtp.pre_fc_norm_embedding.weight", "enorm"),
    ("mtp.pre_fc_norm_hidden.weight", "hnorm"),
    ("mtp.embed_tokens.weight", "embed_tokens"),
    ("mtp.shared_head.head.weight", "shared_head_head"),
    ("mtp.shared_head.norm.weight", "shared_head_norm"),
];
/// Alternative of the last one, if that is absent.
const LAST_NORM: (&str, &str) = ("mtp.norm.weight", "shared_head_norm");
const EXPERTS: [(&str, &str); 3] =
    [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

/// Number after `prefix` in a name, and the rest of the name.
pub(super) fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(u32, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

impl ViewBuilder<'_> {
    /// Numbers the prediction blocks after the model's blocks, and increases the block count. Adds
    /// one to their norm weights, which are stored without it.
    pub(super) fn rename_mtp_blocks(&mut self) {
        let is_named = self.has(|name| name.starts_with("blk.") && name.contains(".nextn."));
        if is_named || !self.has(|name| name.starts_with("mtp.")) {
            return;
        }
        let arch = self.metadata.architecture().unwrap_or_default().to_owned();
        let behind = |prefix: &str| {
            let numbers = self.entries.iter().filter_map(|entry| numbered(&entry.name, prefix));
            numbers.map(|(number, _)| number.saturating_add(1)).max()
        };
        let count_key = format!("{arch}.block_count");
        let declared = || self.int(&count_key).and_then(|count| u32::try_from(count).ok());
        let blocks = behind("mtp.layers.").unwrap_or(1);
        let base = behind("blk.").or_else(declared).unwrap_or(0);
        if blocks > MAX_BLOCKS || base > MAX_BLOCKS {
            return;
        }
        self.metadata.set(&format!("{arch}.nextn_predict_layers"), blocks);
        self.metadata.set(&count_key, base + blocks);
        self.stack_experts(base, blocks);
        let shared = |(from, to): (&str, &str), name: &str| {
            (blocks == 1 && name == from).then(|| format!("blk.{base}.nextn.{to}.weight"))
        };
        self.rename(|name| {
            let own = numbered(name, "mtp.layers.")
                .filter(|(block, rest)| *block < blocks && !rest.starts_with("mlp.experts."));
            let own = own.map(|(block, rest)| format!("blk.{}.{rest}", base + block));
            own.or_else(|| SHARED.iter().find_map(|&pair| shared(pair, name)))
        });
        self.rename(|name| shared(LAST_NORM, name));
        self.complete_norms();
    }

    /// Stacks the experts' tensors of each block to one, if none is missing.
    fn stack_experts(&mut self, base: u32, blocks: u32) {
        for (block, (from, to)) in (0..blocks).flat_map(|block| EXPERTS.map(|pair| (block, pair))) {
            let prefix = format!("mtp.layers.{block}.mlp.experts.");
            let tail = format!("{from}.weight");
            let experts = self.entries.iter().filter_map(|entry| numbered(&entry.name, &prefix));
            let experts: Vec<u32> =
                experts.filter(|(_, rest)| *rest == tail).map(|(expert, _)| expert).collect();
            let all = 0..experts.len() as u32;
            if !experts.is_empty() && all.clone().all(|expert| experts.contains(&expert)) {
                let sources: Vec<String> =
                    all.map(|expert| format!("{prefix}{expert}.{tail}")).collect();
                self.stack(&format!("blk.{}.{to}.weight", base + block), &sources);
            }
        }
    }

    fn complete_norms(&mut self) {
        let tensors = self.gguf.tensors();
        for entry in &mut self.entries {
            let name = &*entry.name;
            let is_norm = name.ends_with("_norm.weight") && !name.ends_with(".ssm_norm.weight")
                || name.ends_with(".nextn.enorm.weight")
                || name.ends_with(".nextn.hnorm.weight");
            let source = &tensors[entry.source];
            let is_moved = source.name.starts_with("mtp.") && name.starts_with("blk.");
            if is_norm
                && is_moved
                && entry.derived.is_none()
                && puna_quant::dequantizer(entry.ty).is_some()
            {
                entry.derived = Some(DerivedData::AddOne(entry.source));
                entry.ty = TensorType::F32;
                entry.size = entry.shape.iter().product::<u64>() * 4;
            }
        }
    }
}
