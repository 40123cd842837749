//! Removes blocks that text does not pass, such as cross-attention layers for images.

use super::mtp_blocks::numbered;
use super::rules::{MAX_BLOCKS, ViewBuilder};
use crate::value::{Array, Value};

impl ViewBuilder<'_> {
    /// Removes the blocks in a list, renumbers the others, and shortens lists with one element per
    /// block.
    pub(super) fn skip_blocks(&mut self, list: &str) {
        let arch = self.metadata.architecture().unwrap_or_default().to_owned();
        let count_key = format!("{arch}.block_count");
        let count =
            self.metadata.opt_u32(&count_key).ok().flatten().filter(|&count| count <= MAX_BLOCKS);
        let (Some(count), Some(skipped)) = (count, self.list(list).and_then(Array::ints)) else {
            return;
        };
        let mut keeps = vec![true; count as usize];
        for number in skipped {
            if let Some(keeps) =
                usize::try_from(number).ok().and_then(|number| keeps.get_mut(number))
            {
                *keeps = false;
            }
        }
        let new_number = |number: u32| {
            let before = keeps.get(..number as usize)?.iter().filter(|&&keeps| keeps).count();
            keeps.get(number as usize)?.then_some(before)
        };
        self.shorten_lists(&format!("{arch}."), list, &keeps);
        self.metadata.set(&count_key, keeps.iter().filter(|&&keeps| keeps).count() as u32);
        self.entries.retain_mut(|entry| {
            let Some((number, rest)) = numbered(&entry.name, "blk.") else { return true };
            let Some(new) = new_number(number) else { return false };
            entry.name = format!("blk.{new}.{rest}").into();
            true
        });
    }

    /// Removes the elements of removed blocks from lists with one element per block. `list` is the
    /// key of the removed blocks.
    fn shorten_lists(&mut self, prefix: &str, list: &str, keeps: &[bool]) {
        let ours = self.metadata.iter().filter(|(key, _)| key.starts_with(prefix) && *key != list);
        let shorter = ours
            .filter_map(|(key, value)| Some((key.to_owned(), value.as_array()?.filtered(keeps)?)));
        for (key, list) in shorter.collect::<Vec<_>>() {
            self.metadata.set(&key, Value::Array(list));
        }
    }
}
