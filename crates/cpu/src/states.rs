//! Memory of recurrent states. A slot holds all recurrent states of one sequence or checkpoint, one
//! after the other.

use puna_graph::{BackendError, StateSpec};

use crate::memory::SharedBuffer;

/// The states of all slots.
pub struct States {
    spec: StateSpec,
    /// Offset of each state in a slot, in f32.
    starts: Vec<usize>,
    /// Length of a slot in f32.
    slot: usize,
    values: SharedBuffer<f32>,
}

impl States {
    /// Makes slots of zeros. The system provides their memory at the first write.
    pub fn new(spec: StateSpec) -> Result<Self, BackendError> {
        let mut slot = 0usize;
        let mut starts = Vec::with_capacity(spec.states.len());
        for &values in &spec.states {
            starts.push(slot);
            slot = slot.saturating_add(values);
        }
        let values = SharedBuffer::zeroed(spec.slots.saturating_mul(slot), "recurrent states")?;
        Ok(Self { spec, starts, slot, values })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.spec.slots
    }

    /// Values `start .. start + len` of a state in a slot.
    ///
    /// # Safety
    /// No other thread reads or writes them while the slice lives.
    #[allow(clippy::mut_from_ref)] // as for [`SharedBuffer::slice_mut`]
    pub unsafe fn part(&self, slot: u32, state: usize, start: usize, len: usize) -> &mut [f32] {
        assert!((slot as usize) < self.spec.slots);
        assert!(start.checked_add(len).is_some_and(|end| end <= self.spec.states[state]));
        // SAFETY: the caller keeps the same contract.
        unsafe {
            self.values.slice_mut(slot as usize * self.slot + self.starts[state] + start, len)
        }
    }

    /// Copies slot `from` to slot `to`.
    pub fn copy(&mut self, from: u32, to: u32) {
        let [from, to] = [from, to].map(|slot| slot as usize * self.slot);
        self.values.get_mut().copy_within(from..from + self.slot, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copying_a_slot_copies_all_its_states_and_changes_no_other_slot() {
        let mut states = States::new(StateSpec { states: vec![3, 2], slots: 3 }).unwrap();
        let part = |states: &States, slot, state, len| {
            // SAFETY: this is the only thread, and the slice is dropped before the next one is
            // made.
            unsafe { states.part(slot, state, 0, len).to_vec() }
        };
        for slot in 0..3 {
            // SAFETY: as above.
            unsafe {
                states.part(slot, 0, 0, 3).fill(slot as f32 + 1.0);
                states.part(slot, 1, 1, 1).fill(slot as f32 + 0.5);
            }
        }
        states.copy(1, 2);
        assert_eq!(
            (part(&states, 0, 0, 3), part(&states, 0, 1, 2)),
            (vec![1.0; 3], vec![0.0, 0.5])
        );
        for slot in [1, 2] {
            assert_eq!(
                (part(&states, slot, 0, 3), part(&states, slot, 1, 2)),
                (vec![2.0; 3], vec![0.0, 1.5])
            );
        }
    }

    #[test]
    fn too_many_slots_for_the_memory_are_an_error() {
        for slots in [1 << 40, usize::MAX] {
            let error =
                States::new(StateSpec { states: vec![1 << 20], slots }).map(drop).unwrap_err();
            assert!(error.to_string().ends_with("bytes for recurrent states"), "{error}");
        }
    }
}
