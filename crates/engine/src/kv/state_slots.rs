//! Slots of recurrent states.

use super::lru_list::LruList;
use super::node::NodeId;

/// State slots: free, with a checkpoint of the tree, or of a running sequence.
#[derive(Debug, Default)]
pub(super) struct StateSlots {
    pub free: Vec<u32>,
    pub total: usize,
    /// Slots of checkpoints.
    pub checkpoints: LruList,
    /// Node of each slot with a checkpoint, by slot.
    pub nodes: Vec<NodeId>,
}

impl StateSlots {
    pub fn new(total: usize) -> Self {
        let free = (0..total as u32).rev().collect();
        Self { free, total, checkpoints: LruList::default(), nodes: vec![NodeId(0); total] }
    }

    /// Releases a slot, which can hold a checkpoint.
    pub fn release(&mut self, slot: u32) {
        self.checkpoints.remove(slot as usize);
        self.free.push(slot);
    }
}
