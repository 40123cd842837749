//! Orders of rows: which row of the source becomes which row of the GGUF file.

/// Maps a row of the output to a row of the source, by two mappings in sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowOrder {
    first: RowMapping,
    second: RowMapping,
}

/// Maps a row of the output to a row of the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowMapping {
    Identity,
    /// Interleaves the two halves of each head, so that the two rows of a rotary pair are adjacent.
    InterleaveHalves {
        head_dim: u64,
    },
    /// Skips the first `rows` rows.
    Offset {
        rows: u64,
    },
    /// Every `step`-th row, beginning at `first`.
    Strided {
        step: u64,
        first: u64,
    },
    /// Of each `period` rows, `count` rows beginning at `offset`.
    Window {
        period: u64,
        offset: u64,
        count: u64,
    },
    /// Makes the heads of a group adjacent; in the source, heads of the `groups` groups alternate.
    GroupHeads {
        groups: u64,
        heads_per_group: u64,
        head_dim: u64,
    },
    /// Swaps two blocks of `block_rows` rows, given by their numbers.
    SwapBlocks {
        block_rows: u64,
        first: u64,
        second: u64,
    },
}

impl RowMapping {
    /// The source row of an output row.
    fn source_row(self, row: u64) -> u64 {
        match self {
            RowMapping::Identity => row,
            RowMapping::Offset { rows } => row + rows,
            RowMapping::InterleaveHalves { head_dim } => {
                let (start, at) = (row / head_dim * head_dim, row % head_dim);
                start + at % 2 * (head_dim / 2) + at / 2
            }
            RowMapping::Strided { step, first } => row * step + first,
            RowMapping::Window { period, offset, count } => {
                row / count * period + offset + row % count
            }
            RowMapping::GroupHeads { groups, heads_per_group, head_dim } => {
                let all = groups * heads_per_group * head_dim;
                let (start, at) = (row - row % all, row % all);
                let (group, head) =
                    (at / (heads_per_group * head_dim), at / head_dim % heads_per_group);
                start + (head * groups + group) * head_dim + at % head_dim
            }
            RowMapping::SwapBlocks { block_rows, first, second } => {
                let block = match row / block_rows {
                    block if block == first => second,
                    block if block == second => first,
                    block => block,
                };
                block * block_rows + row % block_rows
            }
        }
    }
}

impl RowOrder {
    pub(crate) const SAME: Self = Self::of(RowMapping::Identity);

    pub(crate) const fn of(mapping: RowMapping) -> Self {
        Self { first: mapping, second: RowMapping::Identity }
    }

    /// Adds a mapping that is applied to output rows before this order. An order holds at most two
    /// mappings.
    pub(crate) fn preceded_by(self, mapping: RowMapping) -> Self {
        match self.first {
            RowMapping::Identity => Self { first: mapping, ..self },
            first => Self { first: mapping, second: first },
        }
    }

    pub(super) fn source_row(self, row: u64) -> u64 {
        self.second.source_row(self.first.source_row(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_orders_map_output_rows_to_source_rows() {
        let source_rows =
            |order: RowOrder, rows| (0..rows).map(|row| order.source_row(row)).collect::<Vec<_>>();
        assert_eq!(
            source_rows(RowOrder::of(RowMapping::InterleaveHalves { head_dim: 4 }), 8),
            [0, 2, 1, 3, 4, 6, 5, 7]
        );
        assert_eq!(
            source_rows(RowOrder::of(RowMapping::Strided { step: 2, first: 1 }), 3),
            [1, 3, 5]
        );
        let window = RowOrder::of(RowMapping::Window { period: 6, offset: 2, count: 4 });
        assert_eq!(source_rows(window, 6), [2, 3, 4, 5, 8, 9]);
        assert_eq!(
            source_rows(window.preceded_by(RowMapping::InterleaveHalves { head_dim: 4 }), 6),
            [2, 4, 3, 5, 8, 10]
        );
        let grouped =
            RowOrder::of(RowMapping::GroupHeads { groups: 2, heads_per_group: 3, head_dim: 1 });
        assert_eq!(source_rows(grouped, 8), [0, 2, 4, 1, 3, 5, 6, 8]);
        assert_eq!(
            source_rows(RowOrder::SAME.preceded_by(RowMapping::Offset { rows: 3 }), 2),
            [3, 4]
        );
        let swapped = RowOrder::of(RowMapping::SwapBlocks { block_rows: 2, first: 0, second: 2 });
        assert_eq!(source_rows(swapped, 8), [4, 5, 2, 3, 0, 1, 6, 7]);
    }
}
