//! DELTA_BINARY_PACKED: blocks of bit-packed differences, unpacked up to 32 values at a time.

use super::cpu::{Cpu, Kernel};
use super::flaw::{Checked, flaw};
use super::levels::word_at;
use super::unpack::unpack32;

/// Reads the values of one page.
#[derive(Debug)]
pub(super) struct Delta<'a> {
    cpu: Cpu,
    data: &'a [u8],
    at: usize,
    /// Whether values are 32 bits wide: sums wrap there.
    narrow: bool,
    /// Values of one miniblock, and miniblocks of one block.
    mini_values: u64,
    minis: u64,
    /// Values not yet handed out.
    left: u64,
    /// The value before the next one.
    last: i64,
    first: bool,
    min_delta: i64,
    /// Where the widths of the current block's miniblocks stand, and the number of the next miniblock.
    widths: usize,
    mini: u64,
    /// What is left of the current miniblock and is not yet in `block`, and its width.
    mini_left: u64,
    width: u32,
    block: [i64; 32],
    used: usize,
    filled: usize,
}

impl<'a> Delta<'a> {
    /// A reader of `data`, for values of 4 or 8 bytes.
    pub(super) fn new(data: &'a [u8], bytes: u8, cpu: Cpu) -> Checked<Self> {
        let mut delta = Self {
            cpu,
            data,
            at: 0,
            narrow: bytes == 4,
            mini_values: 0,
            minis: 0,
            left: 0,
            last: 0,
            first: true,
            min_delta: 0,
            widths: 0,
            mini: 0,
            mini_left: 0,
            width: 0,
            block: [0; 32],
            used: 0,
            filled: 0,
        };
        let block_values = delta.number()?;
        delta.minis = delta.number()?;
        delta.left = delta.number()?;
        delta.last = delta.signed()?;
        delta.mini_values = block_values.checked_div(delta.minis).unwrap_or_default();
        let whole = delta.mini_values * delta.minis == block_values && delta.mini_values.is_multiple_of(32);
        if delta.mini_values == 0 || !whole || block_values > u64::from(u32::MAX) {
            let minis = delta.minis;
            return Err(flaw!(
                "expected delta blocks of miniblocks of a multiple of 32 values, found {block_values} values in {minis}"
            ));
        }
        // The first block's header is read when it is needed.
        delta.mini = delta.minis;
        Ok(delta)
    }

    /// Whether values are 32 bits wide.
    pub(super) fn is_narrow(&self) -> bool {
        self.narrow
    }

    /// Values not yet handed out.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The next values, at least one and at most `most` or 32 of them.
    pub(super) fn next_block(&mut self, most: usize) -> Checked<&[i64]> {
        if self.used == self.filled {
            self.fill(most)?;
        }
        let start = self.used;
        self.used = self.filled.min(start + most);
        self.left -= (self.used - start) as u64;
        Ok(&self.block[start..self.used])
    }

    fn fill(&mut self, most: usize) -> Checked<()> {
        self.used = 0;
        self.filled = 0;
        if self.left == 0 {
            return Err(flaw!("expected {most} more values, found the end of the delta-encoded values"));
        }
        if std::mem::take(&mut self.first) {
            self.block[0] = self.last;
            self.filled = 1;
            return Ok(());
        }
        if self.mini_left == 0 {
            self.next_mini()?;
        }
        let bytes = 4 * self.width as usize;
        let Some(packed) = self.data.get(self.at..self.at + bytes) else {
            let found = self.data.len() - self.at.min(self.data.len());
            return Err(flaw!("expected {bytes} bytes of a delta miniblock, found {found}"));
        };
        self.at += bytes;
        self.mini_left -= 32;
        if self.width <= 32 {
            let Self { cpu, width, last, min_delta, narrow, .. } = *self;
            self.last = cpu.run(Sums { packed, width, last, min_delta, narrow, out: &mut self.block });
        } else {
            for (i, value) in self.block.iter_mut().enumerate() {
                let bit = i * self.width as usize;
                let low = u128::from(word_at(packed, bit / 8)) | u128::from(word_at(packed, bit / 8 + 8)) << 64;
                let delta = (low >> (bit % 8)) as u64 & (u64::MAX >> (64 - self.width));
                self.last = self.last.wrapping_add(self.min_delta).wrapping_add(delta as i64);
                *value = if self.narrow { i64::from(self.last as i32) } else { self.last };
            }
        }
        self.filled = self.left.min(32) as usize;
        Ok(())
    }

    fn next_mini(&mut self) -> Checked<()> {
        if self.mini == self.minis {
            self.min_delta = self.signed()?;
            self.widths = self.at;
            self.mini = 0;
            let minis = self.minis;
            if self.minis > (self.data.len() - self.at) as u64 {
                return Err(flaw!("expected the widths of {minis} delta miniblocks, found the end of the page"));
            }
            self.at += self.minis as usize;
        }
        self.width = match self.data.get(self.widths + self.mini as usize) {
            Some(width @ 0..=64) => u32::from(*width),
            Some(width) => return Err(flaw!("expected delta miniblocks of 0 to 64 bits, found {width}")),
            None => return Err(flaw!("expected the width of a delta miniblock, found the end of the page")),
        };
        self.mini += 1;
        self.mini_left = self.mini_values;
        Ok(())
    }

    fn number(&mut self) -> Checked<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.data.get(self.at) else {
                return Err(flaw!(
                    "expected a number in the header of delta-encoded values, found the end of the page"
                ));
            };
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(flaw!("expected a number in the header of delta-encoded values, found more than 64 bits"))
    }

    fn signed(&mut self) -> Checked<i64> {
        let raw = self.number()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }
}

/// Unpacks 32 differences and sums them up: the last sum.
struct Sums<'a> {
    packed: &'a [u8],
    width: u32,
    last: i64,
    min_delta: i64,
    narrow: bool,
    out: &'a mut [i64; 32],
}

impl Kernel for Sums<'_> {
    type Out = i64;

    #[inline(always)]
    fn run(self) -> i64 {
        let Self { packed, width, last, min_delta, narrow, out } = self;
        let mut deltas = [0; 32];
        unpack32(packed, width, &mut deltas);
        if narrow {
            let (mut last, least) = (last as i32, min_delta as i32);
            for (value, delta) in out.iter_mut().zip(deltas) {
                last = last.wrapping_add(least.wrapping_add(delta as i32));
                *value = i64::from(last);
            }
            return i64::from(last);
        }
        let mut last = last;
        for (value, delta) in out.iter_mut().zip(deltas) {
            last = last.wrapping_add(min_delta.wrapping_add(i64::from(delta)));
            *value = last;
        }
        last
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    fn all(data: &[u8], bytes: u8) -> Checked<Vec<i64>> {
        let mut delta = Delta::new(data, bytes, Cpu::detect())?;
        let mut values = Vec::new();
        while delta.left() > 0 {
            values.extend_from_slice(delta.next_block(5)?);
        }
        Ok(values)
    }

    #[test]
    fn golden_blocks() {
        // The format's own examples: 1 to 5, and 7 5 3 1 2 3 4 5 (blocks of 128 values in 4 miniblocks).
        assert_eq!(all(&[0x80, 0x01, 4, 5, 2, 2, 0, 0, 0, 0], 4).unwrap(), [1, 2, 3, 4, 5]);
        let mut data = vec![0x80, 0x01, 4, 8, 14, 3, 2, 0, 0, 0, 0b1100_0000, 0b0011_1111];
        data.extend([0; 6]);
        assert_eq!(all(&data, 8).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert_eq!(all(&data[..17], 8).unwrap_err().0, "expected 8 bytes of a delta miniblock, found 7");
        assert!(all(&[0x80, 0x01, 3, 5, 2, 2, 0, 0, 0, 0], 4).is_err(), "miniblocks of a third of a block");
        assert!(all(&[0x80, 0x01, 0, 5, 2, 2, 0, 0, 0, 0], 4).is_err(), "no miniblocks");
        assert!(all(&[0x80, 0x01, 4, 5, 2, 2, 65, 0, 0, 0], 4).is_err(), "65 bits");
    }
}
