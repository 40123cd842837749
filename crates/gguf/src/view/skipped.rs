//! Blocks that a text does not pass.

use super::prediction::numbered;
use super::rules::{Draft, MAX_BLOCKS};
use crate::value::Array;

impl Draft<'_> {
    /// Takes the blocks with the numbers of a list away; the others get the numbers that close the gaps.
    pub(super) fn skip_blocks(&mut self, list: &str) {
        let count_key = format!("{}.block_count", self.metadata.architecture().unwrap_or_default());
        let count = self.metadata.opt_u32(&count_key).ok().flatten().filter(|&count| count <= MAX_BLOCKS);
        let (Some(count), Some(skipped)) = (count, self.list(list).and_then(Array::ints)) else { return };
        let mut skips = vec![false; count as usize];
        for number in skipped {
            if let Some(skips) = usize::try_from(number).ok().and_then(|number| skips.get_mut(number)) {
                *skips = true;
            }
        }
        let new_number = |number: u32| {
            let before = skips.get(..number as usize)?.iter().filter(|&&skips| !skips).count();
            (!skips.get(number as usize)?).then_some(before)
        };
        self.metadata.set(&count_key, skips.iter().filter(|&&skips| !skips).count() as u32);
        self.entries.retain_mut(|entry| {
            let Some((number, rest)) = numbered(&entry.name, "blk.") else { return true };
            let Some(new) = new_number(number) else { return false };
            entry.name = format!("blk.{new}.{rest}").into();
            true
        });
    }
}
