//! How much of a model's adapters a sequence has.

use std::sync::Arc;

use crate::backend::StepInput;
use crate::values::Rows;

/// Factors of the adapters' changes, in their order; one for those that are not named. Equal factors are equal keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Doses(Arc<[u32]>);

impl Doses {
    /// Doses of these factors, of which those at the end may be left out where they are one.
    pub fn new(factors: &[f32]) -> Self {
        let named = factors.iter().rposition(|&factor| factor != 1.0).map_or(0, |last| last + 1);
        // Zero has two signs, and they mean the same here.
        Self(
            factors[..named].iter().map(|&factor| if factor == 0.0 { 0 } else { factor.to_bits() }).collect(),
        )
    }

    /// The factor of an adapter.
    pub fn of(&self, adapter: usize) -> f32 {
        self.0.get(adapter).map_or(1.0, |&bits| f32::from_bits(bits))
    }
}

impl StepInput {
    /// The dose of an adapter in a row of a value that has these rows.
    pub fn dose(&self, adapter: usize, rows: Rows, row: usize) -> f32 {
        let row = if rows == Rows::Outputs { self.outputs[row] as usize } else { row };
        let behind = self.segments.partition_point(|segment| segment.first_row <= row);
        let doses = behind.checked_sub(1).and_then(|at| self.doses.get(at));
        doses.map_or(1.0, |doses| doses.of(adapter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;

    #[test]
    fn doses_that_do_the_same_are_the_same_key() {
        assert_eq!(Doses::new(&[1.0, 1.0]), Doses::default());
        assert_eq!(Doses::new(&[0.5, 1.0]), Doses::new(&[0.5]));
        assert_eq!(Doses::new(&[-0.0]), Doses::new(&[0.0]));
        assert_ne!(Doses::new(&[1.0, 0.0]), Doses::new(&[0.0]));
        let doses = Doses::new(&[0.0, 1.0, -2.5]);
        assert_eq!([0, 1, 2, 3].map(|adapter| doses.of(adapter)), [0.0, 1.0, -2.5, 1.0]);
    }

    #[test]
    fn a_row_has_the_dose_of_its_sequence() {
        let segment = |first_row, rows| Segment { first_row, rows, past: 0, ..Segment::default() };
        let mut input = StepInput {
            tokens: vec![0; 3],
            segments: vec![segment(0, 2), segment(2, 1)],
            doses: vec![Doses::new(&[0.5]), Doses::new(&[3.0])],
            outputs: vec![1, 2],
            ..StepInput::default()
        };
        let tokens = [0, 1, 2].map(|row| input.dose(0, Rows::Tokens, row));
        assert_eq!(tokens, [0.5, 0.5, 3.0]);
        assert_eq!([0, 1].map(|row| input.dose(0, Rows::Outputs, row)), [0.5, 3.0]);
        assert_eq!(input.dose(1, Rows::Tokens, 2), 1.0);
        input.doses.clear();
        assert_eq!(input.dose(0, Rows::Tokens, 2), 1.0);
    }
}
