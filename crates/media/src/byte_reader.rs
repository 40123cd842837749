//! Reads numbers from a byte slice without panics.
//!
//! The header readers of all formats use it. Every method returns `None` at the end of the data.

/// A position in a byte slice.
#[derive(Clone)]
pub(crate) struct ByteReader<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> ByteReader<'a> {
    /// Starts at the first byte.
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, position: 0 }
    }

    /// The offset of the next byte.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(count)?;
        let bytes = self.data.get(self.position..end)?;
        self.position = end;
        Some(bytes)
    }

    /// Reads a fixed number of bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads a big-endian number of 2 bytes.
    pub fn u16_be(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a big-endian number of 4 bytes.
    pub fn u32_be(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads a little-endian number of 2 bytes.
    pub fn u16_le(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads a little-endian number of 3 bytes.
    pub fn u24_le(&mut self) -> Option<u32> {
        self.array().map(|[low, middle, high]| u32::from_le_bytes([low, middle, high, 0]))
    }

    /// Reads a little-endian number of 4 bytes.
    pub fn u32_le(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_both_byte_orders() {
        let mut reader = ByteReader::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(reader.u8(), Some(1));
        assert_eq!(reader.u16_be(), Some(0x0203));
        assert_eq!(reader.u16_le(), Some(0x0504));
        assert_eq!(reader.u24_le(), Some(0x0008_0706));
        assert_eq!(reader.u32_be(), Some(0x090a_0b0c));
        assert_eq!(reader.u32_le(), Some(0x100f_0e0d));
        assert_eq!(reader.position(), 16);
    }

    #[test]
    fn the_end_of_the_data_moves_nothing() {
        let mut reader = ByteReader::new(&[1, 2, 3]);
        assert_eq!(reader.u32_be(), None);
        assert_eq!(reader.take(usize::MAX), None);
        assert_eq!(reader.take(3), Some(&[1, 2, 3][..]));
        assert_eq!(reader.u8(), None);
    }
}
