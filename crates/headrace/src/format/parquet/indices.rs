//! Dictionary indices: Parquet's hybrid of runs and bit-packed groups, unpacked in blocks and looked up.

use super::cpu::Cpu;
use super::dictionary::Dictionary;
use super::flaw::{Checked, flaw};
use super::levels::varint;
use super::unpack::{BLOCK, unpack};
use super::values::{Token, ValueFault};

/// Reads the dictionary indices of one page.
#[derive(Debug)]
pub(super) struct Indices<'a> {
    cpu: Cpu,
    data: &'a [u8],
    /// Where the next run header stands; past the bytes of the current packed groups.
    next: usize,
    width: u32,
    /// What is left of a run, and its index.
    run: usize,
    index: u32,
    /// Packed groups: their bytes, how many values of them there are, and how many of those are done with.
    groups: &'a [u8],
    packed: usize,
    done: usize,
}

impl<'a> Indices<'a> {
    /// A reader of `data`, whose first byte is the indices' width.
    pub(super) fn new(data: &'a [u8], cpu: Cpu) -> Checked<Self> {
        match data.first() {
            Some(width @ 0..=32) => {
                let width = u32::from(*width);
                Ok(Self { cpu, data, next: 1, width, run: 0, index: 0, groups: &[], packed: 0, done: 0 })
            }
            Some(width) => Err(flaw!("expected dictionary indices of 0 to 32 bits, found {width}")),
            None => Err(flaw!("expected dictionary indices, found nothing")),
        }
    }

    /// Fills `out` with the next tokens.
    pub(super) fn read<T: Token>(&mut self, dictionary: &Dictionary, out: &mut [T]) -> Result<(), ValueFault> {
        let mut at = 0;
        while at < out.len() {
            let left = out.len() - at;
            let now = self.available(left)?.min(left);
            let to = &mut out[at..at + now];
            let done = match self.run {
                0 => self.read_packed(dictionary, to),
                _ => dictionary.repeat(self.index, to),
            };
            done.map_err(|fault| fault.behind(at))?;
            self.use_up(now);
            at += now;
        }
        Ok(())
    }

    /// Passes over the next `count` indices.
    pub(super) fn skip(&mut self, count: u64) -> Checked<()> {
        let mut left = count;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX);
            let now = self.available(most)?.min(most);
            self.use_up(now);
            left -= now as u64;
        }
        Ok(())
    }

    fn use_up(&mut self, count: usize) {
        match self.run {
            0 => self.done += count,
            _ => self.run -= count,
        }
    }

    /// How many there are in the current run, or else in the current groups: at least one.
    #[inline]
    fn available(&mut self, wanted: usize) -> Checked<usize> {
        loop {
            if self.run > 0 {
                return Ok(self.run);
            }
            if self.done < self.packed {
                return Ok(self.packed - self.done);
            }
            self.next_run(wanted)?;
        }
    }

    /// Reads from the current groups, which have as many values as `out` at least.
    ///
    /// What lies beyond the last value is padding and may be anything: only what is used is checked.
    #[inline]
    fn read_packed<T: Token>(&self, dictionary: &Dictionary, out: &mut [T]) -> Result<(), ValueFault> {
        match self.width {
            8 => {
                let (indices, _) = self.groups.get(self.done..).unwrap_or_default().as_chunks::<1>();
                return dictionary.gather(self.cpu, &indices[..out.len()], out);
            }
            16 => {
                let (indices, _) = self.groups.get(2 * self.done..).unwrap_or_default().as_chunks::<2>();
                return dictionary.gather(self.cpu, &indices[..out.len()], out);
            }
            _ => {}
        }
        let mut block = [0; BLOCK];
        // Unpacking begins with a group of eight, and so at a whole byte.
        let mut before = self.done % 8;
        let mut group = self.done / 8;
        let mut at = 0;
        while at < out.len() {
            let now = (out.len() - at).min(BLOCK - before);
            let rest = self.groups.get(group * self.width as usize..).unwrap_or_default();
            unpack(self.cpu, rest, self.width, before + now, &mut block);
            dictionary
                .gather(self.cpu, &block[before..before + now], &mut out[at..at + now])
                .map_err(|fault| fault.behind(at))?;
            at += now;
            before = 0;
            group += BLOCK / 8;
        }
        Ok(())
    }

    fn next_run(&mut self, wanted: usize) -> Checked<()> {
        let end = || flaw!("expected {wanted} more dictionary indices, found the end of the page");
        let (header, after) = varint(self.data, self.next).ok_or_else(end)?;
        let count = (header >> 1) as usize;
        if header & 1 == 1 {
            // A group is of eight; some writers leave out bytes that hold only padding.
            let rest = self.data.get(after..).unwrap_or_default();
            let bytes = count.saturating_mul(self.width as usize).min(rest.len());
            let there = (bytes * 8).checked_div(self.width as usize).unwrap_or(usize::MAX);
            self.groups = &rest[..bytes];
            self.packed = count.saturating_mul(8).min(there);
            self.done = 0;
            self.next = after + bytes;
            return if self.packed == 0 && count > 0 { Err(end()) } else { Ok(()) };
        }
        let bytes = self.width.div_ceil(8) as usize;
        let raw = self.data.get(after..after + bytes).ok_or_else(end)?;
        self.index = raw.iter().rev().fold(0, |index, byte| index << 8 | u32::from(*byte));
        self.run = count;
        self.next = after + bytes;
        Ok(())
    }
}
