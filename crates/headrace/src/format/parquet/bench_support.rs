//! A door for `benches/kernels.rs`: the decoder's inner loops, one at a time. No interface to build upon.

use super::cpu::Cpu;
use super::dictionary::Dictionary;
use super::documents::{Batch, Counts, Levels};
use super::levels::{Runs, level_width};
use super::sink::TokensMut;
use super::unpack::{BLOCK, unpack};
use super::values::{Domain, ValueFault, Values};
use super::{TokenChunk, TokenShape};
use crate::error::{Error, Result};

/// Lists of 32-bit numbers that may be null, as most writers have them.
const SHAPE: TokenShape = TokenShape { value_bytes: 4, bits: 32, signed: true, max_def: 3, list_def: 2 };

fn chunk(narrow: bool) -> TokenChunk {
    TokenChunk { shape: SHAPE, codec: 0, encodings: 0, start: 0, len: 0, levels: 0, rows: 0, narrow }
}

fn fault(fault: ValueFault) -> Error {
    Error::Internal(format!("{fault:?}"))
}

/// A dictionary that was loaded.
pub struct Table(Dictionary);

impl Table {
    /// Of these entries.
    pub fn new(cpu: Cpu, entries: &[i32], narrow: bool) -> Result<Self> {
        let data: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let mut dictionary = Dictionary::default();
        let loaded = dictionary.load(&data, entries.len() as u64, Domain::of(&chunk(narrow)), narrow, cpu);
        loaded.map_err(|flaw| Error::Internal(flaw.0))?;
        Ok(Self(dictionary))
    }

    /// Looks up 16-bit indices.
    pub fn gather16(&self, cpu: Cpu, indices: &[[u8; 2]], out: TokensMut<'_>) -> Result<()> {
        let done = match out {
            TokensMut::I32(out) => self.0.gather(cpu, indices, out),
            TokensMut::U16(out) => self.0.gather(cpu, indices, out),
        };
        done.map_err(fault)
    }

    /// Looks up unpacked indices.
    pub fn gather32(&self, cpu: Cpu, indices: &[u32], out: TokensMut<'_>) -> Result<()> {
        let done = match out {
            TokensMut::I32(out) => self.0.gather(cpu, indices, out),
            TokensMut::U16(out) => self.0.gather(cpu, indices, out),
        };
        done.map_err(fault)
    }
}

/// Unpacks as many values as `out` holds, a multiple of 256.
pub fn unpack_all(cpu: Cpu, data: &[u8], width: u32, out: &mut [u32]) {
    let (blocks, _) = out.as_chunks_mut::<BLOCK>();
    for (block, data) in blocks.iter_mut().zip(data.chunks(BLOCK / 8 * width as usize)) {
        unpack(cpu, data, width, BLOCK, block);
    }
}

/// Reads the values of one page, in one of Parquet's encodings.
pub fn values(cpu: Cpu, data: &[u8], encoding: i32, table: Option<&Table>, out: TokensMut<'_>) -> Result<()> {
    let chunk = chunk(matches!(out, TokensMut::U16(_)));
    let none = Dictionary::default();
    let dictionary = table.map_or(&none, |table| &table.0);
    let mut values = Values::new(data, encoding, &chunk, cpu).map_err(|flaw| Error::Internal(flaw.0))?;
    let done = match out {
        TokensMut::I32(out) => values.read(dictionary, out),
        TokensMut::U16(out) => values.read(dictionary, out),
    };
    done.map_err(fault)
}

/// Reads the levels of one page: documents and tokens.
pub fn levels(rep: &[u8], def: &[u8], count: u64) -> Result<(u64, u64)> {
    let (rep, def) = (Runs::new(rep, 1, count), Runs::new(def, level_width(SHAPE.max_def), count));
    let mut levels = Levels::new(rep, def, count, &SHAPE, count);
    let (mut counts, mut batch) = (Counts::default(), Batch::default());
    while !levels.is_empty() {
        levels.next_batch(&mut counts, &mut batch).map_err(|fault| Error::Internal(fault.flaw.0))?;
    }
    Ok((counts.rows, counts.tokens))
}
