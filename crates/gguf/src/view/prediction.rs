//! Blocks of multi-token prediction that were published under the names of the model's first form, `mtp.`.

use puna_quant::TensorType;

use super::rules::{Draft, MAX_BLOCKS, Make};

/// What all blocks share, and what it is called in the only one.
const SHARED: [(&str, &str); 6] = [
    ("mtp.fc.weight", "eh_proj"),
    ("mtp.pre_fc_norm_embedding.weight", "enorm"),
    ("mtp.pre_fc_norm_hidden.weight", "hnorm"),
    ("mtp.embed_tokens.weight", "embed_tokens"),
    ("mtp.shared_head.head.weight", "shared_head_head"),
    ("mtp.shared_head.norm.weight", "shared_head_norm"),
];
/// The same as the last, where that is absent.
const LAST_NORM: (&str, &str) = ("mtp.norm.weight", "shared_head_norm");
const EXPERTS: [(&str, &str); 3] =
    [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];

/// The number behind `prefix` in a name, and what follows it.
pub(super) fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(u32, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

impl Draft<'_> {
    /// Gives the blocks numbers behind those of the model, which then has so many more. Their norms are stored without the one that
    /// is added to them.
    pub(super) fn name_prediction_blocks(&mut self) {
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
        let said = || self.int(&count_key).and_then(|count| u32::try_from(count).ok());
        let blocks = behind("mtp.layers.").unwrap_or(1);
        let base = behind("blk.").or_else(said).unwrap_or(0);
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

    /// Experts have a tensor each; those of a block become one, if none is missing.
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
                && entry.make.is_none()
                && puna_quant::dequantizer(entry.ty).is_some()
            {
                entry.make = Some(Make::AddOne(entry.source));
                entry.ty = TensorType::F32;
                entry.size = entry.shape.iter().product::<u64>() * 4;
            }
        }
    }
}
