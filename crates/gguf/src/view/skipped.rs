//! Blocks that a text does not pass.

use super::prediction::numbered;
use super::rules::{Draft, MAX_BLOCKS};
use crate::value::{Array, Value};

impl Draft<'_> {
    /// Takes the blocks with the numbers of a list away; the others get the numbers that close the gaps. So do the entries of lists
    /// that have one for each block.
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

    /// Leaves in lists with an entry for each block those of blocks that stay. `list` is the list of blocks that do not.
    fn shorten_lists(&mut self, prefix: &str, list: &str, keeps: &[bool]) {
        let ours = self.metadata.iter().filter(|(key, _)| key.starts_with(prefix) && *key != list);
        let shorter =
            ours.filter_map(|(key, value)| Some((key.to_owned(), value.as_array()?.kept(keeps)?)));
        for (key, list) in shorter.collect::<Vec<_>>() {
            self.metadata.set(&key, Value::Array(list));
        }
    }
}
