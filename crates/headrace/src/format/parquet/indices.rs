//! Dictionary indices: Parquet's hybrid of runs and bit-packed groups, unpacked in blocks and looked up.

use super::flaw::{Checked, flaw};
use super::levels::varint;
use super::unpack::unpack32;
use super::values::{Dictionary, Token, ValueFault};

/// Reads the dictionary indices of one page.
#[derive(Debug)]
pub(super) struct Indices<'a> {
    data: &'a [u8],
    at: usize,
    width: u32,
    /// What is left of a run, and its index.
    run: usize,
    index: u32,
    /// What is left of packed groups that is not yet in `block`.
    packed: usize,
    block: [u32; 32],
    /// The part of `block` that is still to be used.
    used: usize,
    filled: usize,
}

impl<'a> Indices<'a> {
    /// A reader of `data`, whose first byte is the indices' width.
    pub(super) fn new(data: &'a [u8]) -> Checked<Self> {
        match data.first() {
            Some(width @ 0..=32) => {
                let width = u32::from(*width);
                Ok(Self { data, at: 1, width, run: 0, index: 0, packed: 0, block: [0; 32], used: 0, filled: 0 })
            }
            Some(width) => Err(flaw!("expected dictionary indices of 0 to 32 bits, found {width}")),
            None => Err(flaw!("expected dictionary indices, found nothing")),
        }
    }

    /// Fills `out` with the next tokens.
    pub(super) fn read<T: Token>(&mut self, dictionary: &Dictionary, out: &mut [T]) -> Result<(), ValueFault> {
        let mut done = 0;
        while done < out.len() {
            let left = out.len() - done;
            let now = self.available(left)?.min(left);
            let to = &mut out[done..done + now];
            if self.used < self.filled {
                let indices = &self.block[self.used..self.used + now];
                // What lies beyond the last value is padding and may be anything, so that only what is used counts.
                let largest = indices.iter().copied().max().unwrap_or_default();
                if largest as usize >= dictionary.len() {
                    return Err(flaw!("expected a dictionary index below {}, found {largest}", dictionary.len()).into());
                }
                dictionary.gather(indices, to).map_err(|fault| fault.behind(done))?;
                self.used += now;
            } else {
                if self.index as usize >= dictionary.len() {
                    let index = self.index;
                    return Err(flaw!("expected a dictionary index below {}, found {index}", dictionary.len()).into());
                }
                dictionary.repeat(self.index, to).map_err(|fault| fault.behind(done))?;
                self.run -= now;
            }
            done += now;
        }
        Ok(())
    }

    /// Passes over the next `count` indices.
    pub(super) fn skip(&mut self, count: u64) -> Checked<()> {
        let mut left = count;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let now = self.available(most)?.min(most);
            if self.used < self.filled {
                self.used += now;
            } else {
                self.run -= now;
            }
            left -= now as u64;
        }
        Ok(())
    }

    /// Makes sure that there is something in `block` or else in `run`, and says how much.
    fn available(&mut self, wanted: usize) -> Checked<usize> {
        loop {
            if self.used < self.filled {
                return Ok(self.filled - self.used);
            }
            if self.run > 0 {
                return Ok(self.run);
            }
            if self.packed > 0 { self.next_block(wanted)? } else { self.next_run(wanted)? }
        }
    }

    fn next_block(&mut self, wanted: usize) -> Checked<()> {
        let bytes = 4 * self.width as usize;
        let rest = self.data.get(self.at..).unwrap_or_default();
        // Groups are of eight: what is there in whole values may be less where a writer left out padding.
        let there = match (rest.len() * 8).checked_div(self.width as usize) {
            Some(values) => self.packed.min(32).min(values),
            None => self.packed.min(32),
        };
        if there == 0 {
            return Err(flaw!("expected {wanted} more dictionary indices, found the end of the page"));
        }
        // A block may be followed by the header of the next run: only its own bytes may be read.
        let own = (self.packed.min(32) * self.width as usize).div_ceil(8).min(rest.len());
        unpack32(&rest[..own.min(bytes)], self.width, &mut self.block);
        self.at += own;
        self.packed -= self.packed.min(32);
        self.used = 0;
        self.filled = there;
        Ok(())
    }

    fn next_run(&mut self, wanted: usize) -> Checked<()> {
        let end = || flaw!("expected {wanted} more dictionary indices, found the end of the page");
        let (header, after) = varint(self.data, self.at).ok_or_else(end)?;
        let count = (header >> 1) as usize;
        if header & 1 == 1 {
            self.packed = count * 8;
            self.at = after;
            return Ok(());
        }
        let bytes = self.width.div_ceil(8) as usize;
        let raw = self.data.get(after..after + bytes).ok_or_else(end)?;
        let index = raw.iter().rev().fold(0_u64, |index, byte| index << 8 | u64::from(*byte));
        self.index = index as u32;
        self.run = count;
        self.at = after + bytes;
        Ok(())
    }
}
