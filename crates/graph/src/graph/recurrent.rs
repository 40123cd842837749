//! Operations of recurrent layers.

use super::Graph;
use crate::ops::Op;
use crate::recurrent::Recurrence;
use crate::values::{Rows, ValueId};

impl Graph {
    /// An operation with a state.
    pub fn recur(&mut self, name: &'static str, recurrence: Recurrence) -> ValueId {
        let cols = recurrence.cols(|id| self.value(id).cols);
        assert!(recurrence.inputs().iter().all(|&x| self.value(x).rows == Rows::Tokens));
        self.push(name, Op::Recur(Box::new(recurrence)), Rows::Tokens, cols)
    }
}
