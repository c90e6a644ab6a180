//! Levels: Parquet's hybrid of runs and bit-packed groups, read as runs of equal values.
//!
//! A document of a thousand tokens costs a run or two, not a thousand levels. Equal neighbours in bit-packed groups
//! are joined within a 64-bit word.

use super::flaw::{Checked, flaw};

/// Reads hybrid-encoded levels. [`Runs::peek`] shows the current run, [`Runs::take`] uses some of it up.
#[derive(Debug)]
pub(super) struct Runs<'a> {
    data: &'a [u8],
    /// Where the next run header stands; past the bytes of the current packed run.
    next: usize,
    /// Bits of one level.
    width: u32,
    /// A one at every multiple of `width` bits: times a value, that value repeated.
    ones: u64,
    /// Levels not yet handed out, the current run's included.
    left: u64,
    /// The current run.
    value: u32,
    run: u64,
    /// What follows the current run in its packed group: the bit at which it begins, and how many levels.
    bit: usize,
    packed: u64,
}

impl<'a> Runs<'a> {
    /// A reader of `levels` levels of `width` bits (at most 16).
    pub(super) fn new(data: &'a [u8], width: u32, levels: u64) -> Self {
        let ones = match width {
            0 => 0,
            _ => (0..64 / width).fold(0, |ones, i| ones | 1 << (i * width)),
        };
        Self { data, next: 0, width, ones, left: levels, value: 0, run: 0, bit: 0, packed: 0 }
    }

    /// The value of the next level, and how many like it follow at least (0 only if no levels are left).
    #[inline]
    pub(super) fn peek(&mut self) -> Checked<(u32, u64)> {
        while self.run == 0 && self.left > 0 {
            if self.packed > 0 { self.next_of_packed() } else { self.next_run()? }
        }
        Ok((self.value, self.run))
    }

    /// Uses up `count` levels of the current run.
    #[inline]
    pub(super) fn take(&mut self, count: u64) {
        debug_assert!(count <= self.run);
        self.run -= count;
        self.left -= count;
    }

    /// Once all levels are taken: whether there is nothing left behind them.
    pub(super) fn finish(&self) -> Checked<()> {
        let rest = self.data.len() - self.next;
        if rest > 0 { Err(flaw!("expected the levels to end, found {rest} more bytes of them")) } else { Ok(()) }
    }

    fn next_run(&mut self) -> Checked<()> {
        let (header, after) = varint(self.data, self.next)
            .ok_or_else(|| flaw!("expected {} more levels, found the end of the levels", self.left))?;
        let count = header >> 1;
        if header & 1 == 0 {
            let bytes = self.width.div_ceil(8) as usize;
            let Some(raw) = self.data.get(after..after + bytes) else {
                return Err(flaw!("expected {} more levels, found the end of the levels", self.left));
            };
            let value = raw.iter().rev().fold(0_u32, |value, byte| value << 8 | u32::from(*byte));
            if value >> self.width != 0 {
                return Err(flaw!("expected levels of {} bits, found {value}", self.width));
            }
            if count > self.left {
                return Err(flaw!("expected {} more levels, found a run of {count}", self.left));
            }
            self.next = after + bytes;
            self.value = value;
            self.run = count;
        } else {
            let bytes = (count * u64::from(self.width)).min((self.data.len() - after) as u64) as usize;
            // The last group is padded to 8 levels, and some writers leave out bytes that hold only padding.
            let levels = (count * 8).min(self.left);
            if bytes as u64 * 8 < levels * u64::from(self.width) {
                return Err(flaw!("expected {levels} packed levels, found {bytes} bytes"));
            }
            self.next = after + bytes;
            self.bit = after * 8;
            self.packed = levels;
        }
        Ok(())
    }

    /// Makes the levels at the front of the packed group that are equal the current run.
    fn next_of_packed(&mut self) {
        if self.width == 0 {
            (self.value, self.run, self.packed) = (0, self.packed, 0);
            return;
        }
        let word = word_at(self.data, self.bit / 8) >> (self.bit % 8);
        let whole = (64 - (self.bit % 8) as u32) / self.width;
        let value = word & ((1 << self.width) - 1);
        let equal = (word ^ value.wrapping_mul(self.ones)).trailing_zeros() / self.width;
        let run = u64::from(equal.min(whole).max(1)).min(self.packed);
        self.value = value as u32;
        self.run = run;
        self.packed -= run;
        self.bit += run as usize * self.width as usize;
    }
}

/// Turns levels that are bit-packed the old way (from each byte's highest bit on, without runs) into one packed run.
///
/// `None` if `data` does not hold `count` of them; else they take `count * width` bits of it, rounded up to bytes.
pub(super) fn from_bit_packed(data: &[u8], width: u32, count: u64) -> Option<(Vec<u8>, usize)> {
    let bits = usize::try_from(count.checked_mul(u64::from(width))?).ok()?;
    let data = data.get(..bits.div_ceil(8))?;
    let mut run = Vec::with_capacity(data.len() + 8);
    let mut header = count.div_ceil(8) << 1 | 1;
    while header >= 0x80 {
        run.push(header as u8 | 0x80);
        header >>= 7;
    }
    run.push(header as u8);
    let start = run.len();
    run.resize(start + data.len(), 0);
    // The bits of a level change order, so that the lowest comes first; their places do not.
    for bit in 0..bits {
        let (level, digit) = (bit / width as usize, bit % width as usize);
        let from = level * width as usize + (width as usize - 1 - digit);
        let value = data[from / 8] >> (7 - from % 8) & 1;
        run[start + bit / 8] |= value << (bit % 8);
    }
    Some((run, data.len()))
}

/// Bits that a level from 0 to `max` takes.
pub(super) fn level_width(max: i16) -> u32 {
    16 - max.max(0).leading_zeros()
}

/// The eight bytes at `at`, zeros beyond the end.
#[inline]
pub(super) fn word_at(data: &[u8], at: usize) -> u64 {
    let rest = data.get(at..).unwrap_or_default();
    if let Some(whole) = rest.first_chunk::<8>() {
        return u64::from_le_bytes(*whole);
    }
    let mut bytes = [0; 8];
    bytes[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(bytes)
}

/// The variable-length number at `at` and where it ends; `None` if the data ends first or it has more than 32 bits.
#[inline]
pub(super) fn varint(data: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for i in 0..5 {
        let byte = *data.get(at + i)?;
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return (value <= u64::from(u32::MAX)).then_some((value, at + i + 1));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    /// All runs, neighbours of equal value joined.
    fn runs(data: &[u8], width: u32, levels: u64) -> Checked<Vec<(u32, u64)>> {
        let mut reader = Runs::new(data, width, levels);
        let mut all: Vec<(u32, u64)> = Vec::new();
        loop {
            let (value, count) = reader.peek()?;
            if count == 0 {
                return Ok(all);
            }
            reader.take(count);
            match all.last_mut() {
                Some((last, sum)) if *last == value => *sum += count,
                _ => all.push((value, count)),
            }
        }
    }

    #[test]
    fn golden_runs() {
        // 1000 ones: header 2000 as a varint, then the value.
        assert_eq!(runs(&[0xd0, 0x0f, 0x01], 1, 1000).unwrap(), [(1, 1000)]);
        // One group of 8 packed: 0 1 1 1 1 1 1 1; then 92 ones.
        assert_eq!(runs(&[0x03, 0xfe, 0xb8, 0x01, 0x01], 1, 100).unwrap(), [(0, 1), (1, 99)]);
        // The values 0 to 7 of the format's own description, 3 bits each.
        assert_eq!(
            runs(&[0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010], 3, 8).unwrap(),
            (0..8).map(|v| (v, 1)).collect::<Vec<_>>()
        );
        // Two groups of 2 bits whose padding is not looked at.
        assert_eq!(runs(&[0x05, 0xff, 0xff, 0xff, 0x02], 2, 13).unwrap(), [(3, 12), (2, 1)]);
        // The same, with the bytes of padding left out.
        assert_eq!(runs(&[0x05, 0xff, 0xff, 0xff], 2, 12).unwrap(), [(3, 12)]);
        // A run of nothing, and levels of no bits.
        assert_eq!(runs(&[0x00, 0x01, 0x06, 0x01], 1, 3).unwrap(), [(1, 3)]);
        assert_eq!(runs(&[0x06, 0x03], 0, 11).unwrap(), [(0, 11)]);
        // Two bytes of value.
        assert_eq!(runs(&[0x06, 0x2c, 0x01], 9, 3).unwrap(), [(300, 3)]);
    }

    #[test]
    fn every_width_packs_and_unpacks() {
        for width in 1..=16_u32 {
            let levels: Vec<u32> = (0..400_u32).map(|i| (i / 7 * 2_654_435) % (1 << width)).collect();
            let mut data = vec![(50 << 1 | 1) as u8];
            let mut bits: Vec<bool> = Vec::new();
            for level in &levels {
                bits.extend((0..width).map(|bit| level >> bit & 1 == 1));
            }
            data.extend(bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | u8::from(*bit))));
            let read: Vec<u32> =
                runs(&data, width, 400).unwrap().iter().flat_map(|(v, n)| vec![*v; *n as usize]).collect();
            assert_eq!(read, levels, "{width} bits");
        }
    }

    #[test]
    fn refuses_counts_that_do_not_fit() {
        assert!(runs(&[0xd0, 0x0f, 0x01], 1, 999).is_err(), "a run that is too long");
        assert!(runs(&[0xd0, 0x0f, 0x01], 1, 1001).is_err(), "too few levels");
        assert!(runs(&[0xd0, 0x0f], 1, 1000).is_err(), "no value");
        assert!(runs(&[0x06, 0x02], 1, 3).is_err(), "a level of two bits");
        assert!(runs(&[0x05, 0xff, 0xff], 2, 13).is_err(), "packed levels that are not there");
        assert!(runs(&[0xff, 0xff, 0xff, 0xff, 0xff], 1, 1).is_err(), "a number that is too long");
    }

    #[test]
    fn levels_packed_the_old_way() {
        // The values 0 to 7 of the format's own description, and what is not theirs.
        let (run, len) = from_bit_packed(&[0b0000_0101, 0b0011_1001, 0b0111_0111, 0xff], 3, 8).unwrap();
        assert_eq!((run, len), (vec![0x03, 0b1000_1000, 0b1100_0110, 0b1111_1010], 3));
        let (run, len) = from_bit_packed(&[0b1100_0000, 0xff], 1, 3).unwrap();
        assert_eq!((runs(&run, 1, 3).unwrap(), len), (vec![(1, 2), (0, 1)], 1));
        assert_eq!(from_bit_packed(&[0; 2], 3, 6), None);
    }

    #[test]
    fn widths() {
        assert_eq!([0, 1, 2, 3, 4, 7, 8, 255, i16::MAX].map(level_width), [0, 1, 2, 2, 3, 3, 4, 8, 15]);
    }
}
