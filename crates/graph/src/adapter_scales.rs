//! Scales of the adapters of a sequence.

use std::sync::Arc;

use crate::backend::StepInput;
use crate::values::Rows;

/// Scale of each adapter, in the order of the adapters; 1 for missing entries. Equal scales compare
/// equal, so this is a key of the prefix tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AdapterScales(Arc<[u32]>);

impl AdapterScales {
    /// AdapterScales of these factors, of which those at the end may be left out where they are
    /// one.
    pub fn new(factors: &[f32]) -> Self {
        let named = factors.iter().rposition(|&factor| factor != 1.0).map_or(0, |last| last + 1);
        // -0 and 0 are the same scale.
        Self(
            factors[..named]
                .iter()
                .map(|&factor| if factor == 0.0 { 0 } else { factor.to_bits() })
                .collect(),
        )
    }

    /// The scale of an adapter.
    pub fn of(&self, adapter: usize) -> f32 {
        self.0.get(adapter).map_or(1.0, |&bits| f32::from_bits(bits))
    }
}

impl StepInput {
    /// The adapter scale of the sequence that `row` belongs to.
    pub fn adapter_scale(&self, adapter: usize, rows: Rows, row: usize) -> f32 {
        let row = if rows == Rows::Outputs { self.outputs[row] as usize } else { row };
        let behind = self.segments.partition_point(|segment| segment.first_row <= row);
        let adapter_scales = behind.checked_sub(1).and_then(|at| self.adapter_scales.get(at));
        adapter_scales.map_or(1.0, |adapter_scales| adapter_scales.of(adapter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    #[test]
    fn equivalent_adapter_scales_are_equal() {
        assert_eq!(AdapterScales::new(&[1.0, 1.0]), AdapterScales::default());
        assert_eq!(AdapterScales::new(&[0.5, 1.0]), AdapterScales::new(&[0.5]));
        assert_eq!(AdapterScales::new(&[-0.0]), AdapterScales::new(&[0.0]));
        assert_ne!(AdapterScales::new(&[1.0, 0.0]), AdapterScales::new(&[0.0]));
        let adapter_scales = AdapterScales::new(&[0.0, 1.0, -2.5]);
        assert_eq!([0, 1, 2, 3].map(|adapter| adapter_scales.of(adapter)), [0.0, 1.0, -2.5, 1.0]);
    }

    #[test]
    fn each_row_has_the_adapter_scale_of_its_sequence() {
        let segment =
            |first_row, rows| Segment { first_row, rows, cached_tokens: 0, ..Segment::default() };
        let mut input = StepInput {
            tokens: vec![0; 3],
            segments: vec![segment(0, 2), segment(2, 1)],
            adapter_scales: vec![AdapterScales::new(&[0.5]), AdapterScales::new(&[3.0])],
            outputs: vec![1, 2],
            ..StepInput::default()
        };
        let tokens = [0, 1, 2].map(|row| input.adapter_scale(0, Rows::Tokens, row));
        assert_eq!(tokens, [0.5, 0.5, 3.0]);
        assert_eq!([0, 1].map(|row| input.adapter_scale(0, Rows::Outputs, row)), [0.5, 3.0]);
        assert_eq!(input.adapter_scale(1, Rows::Tokens, 2), 1.0);
        input.adapter_scales.clear();
        assert_eq!(input.adapter_scale(0, Rows::Tokens, 2), 1.0);
    }
}
