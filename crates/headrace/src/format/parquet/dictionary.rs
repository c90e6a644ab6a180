//! A chunk's dictionary, as a table that is fast to look up.

use super::cpu::{Cpu, Kernel};
use super::flaw::{Checked, flaw};
use super::values::{Domain, Plain, Token, ValueFault, stored};

/// Indices that are checked and looked up at a time: what is read twice is still in the first cache.
const BLOCK: usize = 2048;

/// Entries from which on a table has a place for every 16-bit index, so that none needs a check of its own.
const MANY: usize = 4096;

/// The entries of a chunk's dictionary.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    /// How many there are.
    len: usize,
    /// Entries of a narrow chunk, or else all others; then zeros up to a power of two, so that an index is brought
    /// into bounds by a mask.
    narrow: Vec<u16>,
    wide: Vec<i32>,
    /// What is stored, kept instead of both if some of it is no token: that matters only where it is used.
    stored: Vec<i64>,
    domain: Domain,
}

/// An index as it lies in a page, or unpacked.
pub(super) trait Index: Copy {
    /// The index.
    fn get(self) -> usize;
}

impl Index for u32 {
    #[inline(always)]
    fn get(self) -> usize {
        self as usize
    }
}

impl Index for [u8; 1] {
    #[inline(always)]
    fn get(self) -> usize {
        usize::from(self[0])
    }
}

impl Index for [u8; 2] {
    #[inline(always)]
    fn get(self) -> usize {
        usize::from(u16::from_le_bytes(self))
    }
}

impl Dictionary {
    /// Forgets the entries.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.narrow.clear();
        self.wide.clear();
        self.stored.clear();
    }

    /// Reads a dictionary page.
    pub(super) fn load(&mut self, data: &[u8], entries: u64, domain: Domain, narrow: bool, cpu: Cpu) -> Checked<()> {
        self.clear();
        self.domain = domain;
        let bytes = domain.bytes();
        if entries.checked_mul(u64::from(bytes)) != Some(data.len() as u64) {
            let found = data.len();
            return Err(flaw!("expected {entries} dictionary entries of {bytes} bytes, found {found} bytes"));
        }
        self.len = entries as usize;
        let padded = match self.len {
            MANY..=0x1_0000 if narrow => 0x1_0000,
            len => len.next_power_of_two(),
        };
        let mut plain = Plain { data, bytes, domain, cpu };
        let read = if narrow {
            self.narrow.reserve_exact(padded);
            self.narrow.resize(padded, 0);
            plain.read(&mut self.narrow[..self.len])
        } else {
            self.wide.reserve_exact(padded);
            self.wide.resize(padded, 0);
            plain.read(&mut self.wide[..self.len])
        };
        match read {
            Ok(()) => Ok(()),
            Err(ValueFault::Flaw(flaw)) => Err(flaw),
            Err(ValueFault::Range { .. }) => {
                (self.narrow, self.wide) = (Vec::new(), Vec::new());
                self.stored.extend(stored(data, bytes));
                Ok(())
            }
        }
    }

    /// Puts down the entries that `indices` name, which are as many as `out` holds.
    pub(super) fn gather<I: Index, T: Token>(&self, cpu: Cpu, indices: &[I], out: &mut [T]) -> Result<(), ValueFault> {
        let mut done = 0;
        for (indices, out) in indices.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            let largest = cpu.run(Largest { indices });
            if largest >= self.len {
                return Err(flaw!("expected a dictionary index below {}, found {largest}", self.len).into());
            }
            if !self.narrow.is_empty() {
                cpu.run(Gather { table: &self.narrow, indices, out, token: T::of_narrow });
            } else if !self.wide.is_empty() {
                cpu.run(Gather { table: &self.wide, indices, out, token: T::of_wide });
            } else {
                let values = indices.iter().map(|index| self.stored.get(index.get()).copied().unwrap_or_default());
                self.domain.put(out, values).map_err(|fault| fault.behind(done))?;
            }
            done += out.len();
        }
        Ok(())
    }

    /// Fills `out` with one entry.
    pub(super) fn repeat<T: Token>(&self, index: u32, out: &mut [T]) -> Result<(), ValueFault> {
        let mut token = [T::default()];
        self.gather(Cpu::Portable, &[index], &mut token)?;
        out.fill(token[0]);
        Ok(())
    }
}

/// The largest of some indices.
struct Largest<'a, I> {
    indices: &'a [I],
}

impl<I: Index> Kernel for Largest<'_, I> {
    type Out = usize;

    #[inline(always)]
    fn run(self) -> usize {
        self.indices.iter().fold(0, |largest, index| largest.max(index.get() as u32)) as usize
    }
}

/// Looks up indices, all of which are below the length of a table that is as long as a power of two.
struct Gather<'a, E, I, T, F> {
    table: &'a [E],
    indices: &'a [I],
    out: &'a mut [T],
    token: F,
}

impl<E: Copy, I: Index, T, F: Fn(E) -> T> Kernel for Gather<'_, E, I, T, F> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { table, indices, out, token } = self;
        let pairs = out.iter_mut().zip(indices);
        if size_of::<I>() <= 2
            && let Some(table) = table.first_chunk::<0x1_0000>()
        {
            pairs.for_each(|(out, index)| *out = token(table[index.get() & 0xffff]));
        } else if let Some(last) = table.len().checked_sub(1) {
            pairs.for_each(|(out, index)| *out = token(table[index.get() & last]));
        }
    }
}
