//! Tags of the TIFF structure, in which TIFF files and EXIF data store numbers.

use super::orientation::Orientation;

/// Tag of the orientation, 1 to 8.
const ORIENTATION: u16 = 274;
/// Most values of a tag that are summed up: strips or tiles of a large picture.
const MAX_VALUES: u32 = 1 << 20;

/// The first directory of a TIFF file or of EXIF data.
pub(crate) struct TagDirectory<'a> {
    data: &'a [u8],
    big_endian: bool,
    /// Offset of the first entry.
    entries: usize,
    count: usize,
}

/// The entry of a tag: its type, the number of its values, and the place of the first.
struct Entry {
    kind: u16,
    count: u32,
    values: usize,
}

impl<'a> TagDirectory<'a> {
    /// Finds the first directory; `None` if `data` has another structure or ends before it.
    pub fn first(data: &'a [u8]) -> Option<Self> {
        let big_endian = match data.get(..4)? {
            b"II*\0" => false,
            b"MM\0*" => true,
            _ => return None,
        };
        let mut directory = Self { data, big_endian, entries: 0, count: 0 };
        let start = directory.u32_at(4)? as usize;
        directory.count = directory.u16_at(start)?.into();
        directory.entries = start.checked_add(2)?;
        Some(directory)
    }

    /// The first value of a tag.
    pub fn value(&self, tag: u16) -> Option<u32> {
        let entry = self.entry(tag)?;
        self.value_of(&entry, 0)
    }

    /// Whether the directory has a tag.
    pub fn contains(&self, tag: u16) -> bool {
        self.entry(tag).is_some()
    }

    /// The sum of the values of a tag; `None` if a value is missing.
    pub fn sum(&self, tag: u16) -> Option<u64> {
        let entry = self.entry(tag)?;
        let count = (entry.count <= MAX_VALUES).then_some(entry.count)?;
        (0..count).try_fold(0, |sum: u64, at| Some(sum + u64::from(self.value_of(&entry, at)?)))
    }

    /// The largest value of a tag; `None` if a value is missing.
    pub fn max(&self, tag: u16) -> Option<u32> {
        let entry = self.entry(tag)?;
        let count = (entry.count <= MAX_VALUES).then_some(entry.count)?;
        (0..count).try_fold(0, |max: u32, at| Some(max.max(self.value_of(&entry, at)?)))
    }

    /// The orientation that the directory states; upright if it states none.
    pub fn orientation(&self) -> Orientation {
        Orientation::from_exif(self.value(ORIENTATION).unwrap_or_default())
    }

    fn entry(&self, tag: u16) -> Option<Entry> {
        let places = (0..self.count).map(|index| self.entries + 12 * index);
        let mut places = places.take_while(|&at| at + 12 <= self.data.len());
        let at = places.find(|&at| self.u16_at(at) == Some(tag))?;
        let (kind, count) = (self.u16_at(at + 2)?, self.u32_at(at + 4)?);
        // Values that fit into four bytes stand in the entry itself.
        let inline = u64::from(count) * value_bytes(kind)? as u64 <= 4;
        let values = if inline { at + 8 } else { self.u32_at(at + 8)? as usize };
        Some(Entry { kind, count, values })
    }

    fn value_of(&self, entry: &Entry, index: u32) -> Option<u32> {
        if index >= entry.count {
            return None;
        }
        let size = value_bytes(entry.kind)?;
        let at = (index as usize).checked_mul(size)?.checked_add(entry.values)?;
        match size {
            1 => self.data.get(at).copied().map(u32::from),
            2 => self.u16_at(at).map(u32::from),
            _ => self.u32_at(at),
        }
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        let bytes = self.data.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn u32_at(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }
}

/// The orientation in EXIF data, with or without the name `Exif` before it.
pub(crate) fn exif_orientation(exif: &[u8]) -> Orientation {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    TagDirectory::first(exif).map_or_else(Orientation::default, |tags| tags.orientation())
}

/// Bytes of a value of an unsigned type: BYTE, SHORT or LONG.
fn value_bytes(kind: u16) -> Option<usize> {
    match kind {
        1 => Some(1),
        3 => Some(2),
        4 => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EXIF data with one entry before the orientation.
    fn exif(big_endian: bool, kind: u16, value: u32) -> Vec<u8> {
        let u16 = |n: u16| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let u32 = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let mut data = if big_endian { b"MM\0*".to_vec() } else { b"II*\0".to_vec() };
        data.extend(u32(8));
        data.extend(u16(2));
        for (tag, kind, count, value) in [(256, 4, 3, 38), (ORIENTATION, kind, 1, value)] {
            data.extend(u16(tag));
            data.extend(u16(kind));
            data.extend(u32(count));
            match kind {
                3 => data.extend([u16(value as u16), [0; 2]].concat()),
                1 => data.extend([value as u8, 0, 0, 0]),
                _ => data.extend(u32(value)),
            }
        }
        data.extend(u32(0));
        for value in [10, 30, 20] {
            data.extend(u32(value));
        }
        data
    }

    #[test]
    fn values_of_all_unsigned_types_and_byte_orders_are_read() {
        for big_endian in [false, true] {
            for kind in [1, 3, 4] {
                let data = exif(big_endian, kind, 6);
                assert_eq!(exif_orientation(&data), Orientation::from_exif(6));
                let named = [&b"Exif\0\0"[..], &data].concat();
                assert_eq!(exif_orientation(&named), Orientation::from_exif(6));
                let tags = TagDirectory::first(&data).unwrap();
                assert_eq!(tags.value(256), Some(10));
                assert_eq!((tags.sum(256), tags.max(256)), (Some(60), Some(30)));
                assert_eq!(tags.value(257), None);
            }
        }
    }

    #[test]
    fn broken_data_means_upright() {
        let whole = exif(false, 3, 6);
        for length in 0..whole.len() {
            let cut = exif_orientation(&whole[..length]);
            assert!(cut == Orientation::from_exif(6) || cut == Orientation::default());
        }
        assert_eq!(exif_orientation(b"Exif\0\0MM\0*\xff\xff\xff\xff"), Orientation::default());
        assert_eq!(exif_orientation(&exif(false, 2, 6)), Orientation::default());
    }

    #[test]
    fn a_missing_value_has_no_sum() {
        let mut data = exif(false, 3, 1);
        data.truncate(data.len() - 1);
        let tags = TagDirectory::first(&data).unwrap();
        assert_eq!((tags.sum(256), tags.max(256)), (None, None));
        // A count of four billion values ends at the first missing value.
        data[14..18].fill(0xff);
        assert_eq!(TagDirectory::first(&data).unwrap().sum(256), None);
    }
}
