//! Tensor rules: how a tensor of a Hugging Face folder is called in a GGUF file, and how its rows
//! are split or reordered. A family has lists of rules; the first rule that matches a name applies.

use crate::output::RowMapping;

/// One rule. Names are module names: a suffix `.weight` or `.bias` behind them stays. A tensor with
/// neither suffix gets `.weight` in the GGUF file.
#[derive(Clone, Copy)]
pub(crate) struct TensorRule {
    /// Name in the folder, without the layer's prefix; `{}` is the number of an expert or head.
    pub(crate) source: &'static str,
    /// Name in the GGUF file. A name with a dot is complete and gets no suffix; a final dot is
    /// removed. An empty name means that the tensor is not converted.
    pub(crate) target: &'static str,
    /// Names in the GGUF file if the tensor becomes several; `target` is empty then.
    pub(crate) targets: &'static [&'static str],
    pub(crate) split: RowSplit,
    pub(crate) layout: SourceLayout,
}

/// How the rows of a tensor are split into parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowSplit {
    /// One part in its own order.
    Unsplit,
    /// Consecutive parts of equal size, one for each target.
    EqualParts,
    /// Row `i` belongs to target `i % targets`.
    Interleaved,
    /// All queries, all keys, all values.
    Qkv,
    /// All gates (as many rows as queries), all queries, all keys, all values.
    GatedQkv,
    /// For each KV head: its query heads, its key, its value.
    QkvPerKvHead,
    /// Query heads interleaved by KV head: the first of each KV head, then the second of each.
    InterleavedQueryHeads,
}

/// How the values of a tensor are laid out in the folder, relative to rows of outputs by columns of
/// inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SourceLayout {
    Plain,
    /// Dimensions are inputs, outputs.
    Transposed,
    /// The split applies to columns instead of rows.
    ColumnWise,
    /// The matrices of all experts are one matrix, stacked by rows.
    StackedExperts,
    /// The matrices of all experts are one matrix, each with dimensions inputs, outputs.
    StackedExpertsTransposed,
    /// Dimensions of size one are removed.
    Squeezed,
    /// Dimensions of size one are removed, then `[rows, columns]` becomes `[1, rows, 1, columns]`.
    SqueezedToRank4,
    /// A vector becomes a matrix of one column.
    ColumnVector,
    /// A vector becomes a matrix of one row a group.
    GroupRows,
    /// All values become one vector.
    Flattened,
}

/// Dimensions of a model that tensors are checked against and split by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dimensions {
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    /// Values of an attention head.
    pub(crate) head_dim: u32,
    /// Groups of a state-space layer (`mamba_n_groups`).
    pub(crate) groups: u32,
    pub(crate) experts: u32,
}

/// A tensor that only gets another name.
pub(crate) const fn rename(source: &'static str, target: &'static str) -> TensorRule {
    TensorRule {
        source,
        target,
        targets: &[],
        split: RowSplit::Unsplit,
        layout: SourceLayout::Plain,
    }
}

/// A tensor that becomes several.
pub(crate) const fn split(
    source: &'static str,
    split: RowSplit,
    targets: &'static [&'static str],
) -> TensorRule {
    TensorRule { source, target: "", targets, split, layout: SourceLayout::Plain }
}

/// A tensor whose parts are concatenated in the order of `split` in one target.
pub(crate) const fn reorder(
    source: &'static str,
    split: RowSplit,
    target: &'static str,
) -> TensorRule {
    TensorRule { source, target, targets: &[], split, layout: SourceLayout::Plain }
}

/// A tensor that is not converted.
pub(crate) const fn ignore(source: &'static str) -> TensorRule {
    rename(source, "")
}

/// Some rows of a tensor.
pub(crate) struct RowSlice {
    /// Number of rows.
    pub(crate) rows: u64,
    pub(crate) mapping: RowMapping,
}

impl TensorRule {
    pub(crate) const fn with_layout(self, layout: SourceLayout) -> Self {
        Self { layout, ..self }
    }

    /// Whether the rule matches many tensors that differ by a number.
    pub(crate) fn is_numbered(&self) -> bool {
        self.source.contains("{}")
    }

    /// The suffix (`.weight` or `.bias`) of a source name that the rule matches.
    pub(crate) fn suffix<'n>(&self, name: &'n str) -> Option<&'n str> {
        match name.strip_prefix(self.source)? {
            "" => Some(".weight"),
            suffix @ (".weight" | ".bias") => Some(suffix),
            _ => None,
        }
    }

    /// The names in the GGUF file of a source tensor with a suffix.
    pub(crate) fn target_names(&self, suffix: &str) -> Vec<String> {
        let single = std::slice::from_ref(&self.target);
        let names = if self.targets.is_empty() { single } else { self.targets };
        let full = |name: &&str| match name.strip_suffix('.') {
            Some(name) => name.to_owned(),
            None if name.contains('.') => (*name).to_owned(),
            None => format!("{name}{suffix}"),
        };
        names.iter().filter(|name| !name.is_empty()).map(full).collect()
    }

    /// Splits a matrix of `rows` rows. Returns `None` if the split does not cover the rows exactly.
    pub(crate) fn row_slices(&self, rows: u64, dims: &Dimensions) -> Option<Vec<RowSlice>> {
        let window =
            |period: u64, offset: u64, count: u64| RowMapping::Window { period, offset, count };
        let head_dim = u64::from(dims.head_dim);
        let (queries, keys) =
            (u64::from(dims.heads) * head_dim, u64::from(dims.kv_heads) * head_dim);
        let slices: Vec<RowSlice> = match self.split {
            RowSplit::Unsplit => {
                return Some(vec![RowSlice { rows, mapping: RowMapping::Identity }]);
            }
            RowSplit::EqualParts => {
                let count = rows / self.targets.len().max(1) as u64;
                let part = |i| RowSlice { rows: count, mapping: window(rows, i * count, count) };
                (0..self.targets.len() as u64).map(part).collect()
            }
            RowSplit::Interleaved => {
                let step = self.targets.len().max(1) as u64;
                let part = |first| RowSlice {
                    rows: rows / step,
                    mapping: RowMapping::Strided { step, first },
                };
                (0..step).map(part).collect()
            }
            RowSplit::Qkv => [(0, queries), (queries, keys), (queries + keys, keys)]
                .map(|(offset, count)| RowSlice {
                    rows: count,
                    mapping: window(rows, offset, count),
                })
                .into(),
            RowSplit::GatedQkv => {
                let counts = [queries, queries, keys, keys];
                let offset = |at: usize| counts[..at].iter().sum::<u64>();
                (0..4)
                    .map(|at| RowSlice {
                        rows: counts[at],
                        mapping: window(rows, offset(at), counts[at]),
                    })
                    .collect()
            }
            RowSplit::InterleavedQueryHeads => {
                let groups = u64::from(dims.kv_heads);
                let heads_per_group = u64::from(dims.heads) / groups.max(1);
                let fits = queries == rows && groups * heads_per_group == u64::from(dims.heads);
                let mapping = RowMapping::GroupHeads { groups, heads_per_group, head_dim };
                return fits.then(|| vec![RowSlice { rows, mapping }]).filter(|_| rows > 0);
            }
            RowSplit::QkvPerKvHead => {
                if dims.kv_heads == 0 || !dims.heads.is_multiple_of(dims.kv_heads) {
                    return None;
                }
                let group_queries = queries / u64::from(dims.kv_heads);
                let period = group_queries + 2 * head_dim;
                [
                    (0, group_queries, queries),
                    (group_queries, head_dim, keys),
                    (group_queries + head_dim, head_dim, keys),
                ]
                .map(|(offset, count, rows)| RowSlice {
                    rows,
                    mapping: window(period, offset, count),
                })
                .into()
            }
        };
        let covers_rows = slices.iter().map(|slice| slice.rows).sum::<u64>() == rows;
        (covers_rows && slices.iter().all(|slice| slice.rows > 0)).then_some(slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_tensors_keep_their_suffixes() {
        let rule = rename("attn.q", "attn_q");
        assert_eq!(rule.suffix("attn.q.bias"), Some(".bias"));
        assert_eq!(rule.suffix("attn.q"), Some(".weight"));
        assert_eq!((rule.suffix("attn.q_norm.weight"), rule.suffix("attn.q.scales")), (None, None));
        assert_eq!(rule.target_names(".bias"), ["attn_q.bias"]);
        assert_eq!(
            rename("gate.expert_bias", "exp_probs_b.bias").target_names(".weight"),
            ["exp_probs_b.bias"]
        );
        assert_eq!(rename("bias", "exp_probs_b.").target_names(".weight"), ["exp_probs_b"]);
        assert_eq!(
            split("up", RowSplit::EqualParts, &["a", "b"]).target_names(".weight"),
            ["a.weight", "b.weight"]
        );
        assert!(ignore("x").target_names(".weight").is_empty());
    }

    #[test]
    fn splits_cover_all_rows_or_are_rejected() {
        let dims = Dimensions { heads: 4, kv_heads: 2, head_dim: 8, ..Dimensions::default() };
        let split_rows = |kind, rows| {
            let slices = split("x", kind, &["q", "k", "v"]).row_slices(rows, &dims)?;
            Some(slices.iter().map(|slice| (slice.rows, slice.mapping)).collect::<Vec<_>>())
        };
        let window = |period, offset, count| RowMapping::Window { period, offset, count };
        let qkv = vec![(32, window(64, 0, 32)), (16, window(64, 32, 16)), (16, window(64, 48, 16))];
        assert_eq!(split_rows(RowSplit::Qkv, 64), Some(qkv));
        let grouped =
            vec![(32, window(32, 0, 16)), (16, window(32, 16, 8)), (16, window(32, 24, 8))];
        assert_eq!(split_rows(RowSplit::QkvPerKvHead, 64), Some(grouped));
        let slices =
            split("x", RowSplit::GatedQkv, &["g", "q", "k", "v"]).row_slices(96, &dims).unwrap();
        let gated: Vec<_> = slices.iter().map(|slice| (slice.rows, slice.mapping)).collect();
        let parts = [(0, 32), (32, 32), (64, 16), (80, 16)];
        assert_eq!(gated, parts.map(|(offset, count)| (count, window(96, offset, count))));
        let uneven = Dimensions { heads: 1, kv_heads: 2, head_dim: 1, ..Dimensions::default() };
        assert!(reorder("x", RowSplit::QkvPerKvHead, "y").row_slices(5, &uneven).is_none());
        assert_eq!(
            (
                split_rows(RowSplit::QkvPerKvHead, 60),
                split_rows(RowSplit::EqualParts, 64),
                split_rows(RowSplit::Qkv, 0)
            ),
            (None, None, None)
        );
        assert_eq!(
            split_rows(RowSplit::Interleaved, 6).unwrap()[1],
            (2, RowMapping::Strided { step: 3, first: 1 })
        );
    }
}
