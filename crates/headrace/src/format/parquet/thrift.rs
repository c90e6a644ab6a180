//! Compact Thrift: just enough to walk over a struct without building one.
//!
//! Used for page headers, and to see that a footer's lists and nesting are no larger than its bytes before a general
//! parser, which allocates by what lists declare and recurses by what schemas declare, is let loose on it.

use super::flaw::{Checked, Flaw, flaw};

/// How deep fields that are skipped may nest.
const MAX_DEPTH: u32 = 16;

/// How deep a schema may nest.
const MAX_SCHEMA_DEPTH: usize = 200;

/// Why reading stopped.
pub(super) enum Stop {
    /// The input ended.
    Short,
    /// The input is not what it should be.
    Bad(Flaw),
}

impl From<Flaw> for Stop {
    fn from(flaw: Flaw) -> Self {
        Self::Bad(flaw)
    }
}

/// The result of reading.
pub(super) type Read<T> = Result<T, Stop>;

/// Thrift's compact type numbers.
pub(super) mod kind {
    pub(crate) const TRUE: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const I16: u8 = 4;
    pub(crate) const I32: u8 = 5;
    pub(crate) const I64: u8 = 6;
    pub(crate) const DOUBLE: u8 = 7;
    pub(crate) const BINARY: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const SET: u8 = 10;
    pub(crate) const MAP: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const UUID: u8 = 13;
}

/// Reads a struct from its beginning.
pub(super) struct Reader<'a> {
    input: &'a [u8],
    at: usize,
    /// The longest string that is taken for one.
    max_string: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `input`.
    pub(super) fn new(input: &'a [u8], max_string: usize) -> Self {
        Self { input, at: 0, max_string }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Read<u8> {
        let byte = *self.input.get(self.at).ok_or(Stop::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn bytes(&mut self, count: u64) -> Read<()> {
        let left = self.input.len() - self.at;
        if count > self.max_string as u64 {
            return Err(flaw!("expected Thrift, found a field of {count} bytes").into());
        }
        if count as usize > left {
            return Err(Stop::Short);
        }
        self.at += count as usize;
        Ok(())
    }

    /// A variable-length number.
    pub(super) fn varint(&mut self) -> Read<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(flaw!("expected Thrift, found a number of more than 64 bits").into())
    }

    /// A signed number.
    pub(super) fn zigzag(&mut self) -> Read<i64> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// The next field's number and type, or `None` at the end of the struct.
    pub(super) fn field(&mut self, last: i16) -> Read<Option<(i16, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let field = match byte >> 4 {
            0 => self.zigzag()? as i16,
            step => last.wrapping_add(i16::from(step)),
        };
        Ok(Some((field, byte & 0x0f)))
    }

    /// Passes over a field's value.
    pub(super) fn skip(&mut self, kind: u8, depth: u32) -> Read<()> {
        if depth > MAX_DEPTH {
            return Err(flaw!("expected Thrift, found fields nested more than {MAX_DEPTH} deep").into());
        }
        match kind {
            kind::TRUE | kind::FALSE => Ok(()),
            kind::BYTE => self.bytes(1),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.bytes(8),
            kind::UUID => self.bytes(16),
            kind::BINARY => {
                let count = self.varint()?;
                self.bytes(count)
            }
            kind::LIST | kind::SET => {
                let (count, kind) = self.list()?;
                for _ in 0..count {
                    self.element(kind, depth)?;
                }
                Ok(())
            }
            kind::MAP => {
                let count = self.varint()?;
                if count > 0 {
                    let kinds = self.byte()?;
                    for _ in 0..count {
                        self.element(kinds >> 4, depth)?;
                        self.element(kinds & 0x0f, depth)?;
                    }
                }
                Ok(())
            }
            kind::STRUCT => {
                let mut last = 0;
                while let Some((field, kind)) = self.field(last)? {
                    last = field;
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            other => Err(flaw!("expected Thrift, found a field of unknown type {other}").into()),
        }
    }

    /// An element of a list, set or map, where a boolean takes a byte (so that every element takes at least one).
    fn element(&mut self, kind: u8, depth: u32) -> Read<()> {
        match kind {
            kind::TRUE | kind::FALSE => self.bytes(1),
            _ => self.skip(kind, depth + 1),
        }
    }

    /// The head of a list: how many elements of which type follow.
    pub(super) fn list(&mut self) -> Read<(u64, u8)> {
        let byte = self.byte()?;
        let count = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        Ok((count, byte & 0x0f))
    }
}

/// Checks that a footer is whole, and that its schema nests no deeper than a parser can recurse.
pub(super) fn check_footer(input: &[u8]) -> Checked<()> {
    let mut reader = Reader::new(input, input.len());
    match walk_footer(&mut reader) {
        Ok(()) => Ok(()),
        Err(Stop::Short) => Err(flaw!("expected a footer of more than {} bytes, found its end", input.len())),
        Err(Stop::Bad(flaw)) => Err(flaw),
    }
}

fn walk_footer(reader: &mut Reader<'_>) -> Read<()> {
    let mut last = 0;
    while let Some((field, kind)) = reader.field(last)? {
        last = field;
        match (field, kind) {
            (2, kind::LIST) => walk_schema(reader)?,
            // The footer may be in the clear while columns are not.
            (8, _) => return Err(flaw!("expected a file that is not encrypted, found encrypted columns").into()),
            _ => reader.skip(kind, 0)?,
        }
    }
    Ok(())
}

/// Walks the schema's elements, which lie in depth-first order, each with the number of its children.
fn walk_schema(reader: &mut Reader<'_>) -> Read<()> {
    let (count, element) = reader.list()?;
    // Children still to come, of each group that the walk is in.
    let mut open: Vec<i64> = Vec::new();
    for _ in 0..count {
        if element != kind::STRUCT {
            return Err(flaw!("expected schema elements, found Thrift type {element}").into());
        }
        let mut children = 0;
        let mut last = 0;
        while let Some((field, kind)) = reader.field(last)? {
            last = field;
            match (field, kind) {
                (5, kind::I32) => children = reader.zigzag()?,
                _ => reader.skip(kind, 0)?,
            }
        }
        while open.pop_if(|left| *left == 0).is_some() {}
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Err(flaw!("expected a schema at most {MAX_SCHEMA_DEPTH} groups deep, found a deeper one").into());
        }
    }
    Ok(())
}
