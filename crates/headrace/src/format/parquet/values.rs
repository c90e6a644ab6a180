//! Values: the tokens of a data page, in each encoding that integers come in, read a batch at a time.

use super::TokenShape;
use super::delta::Delta;
use super::flaw::{Checked, Flaw, flaw};
use super::indices::Indices;

/// Parquet's numbers of encodings.
pub(super) mod number {
    pub(crate) const PLAIN: i32 = 0;
    pub(crate) const PLAIN_DICTIONARY: i32 = 2;
    pub(crate) const RLE: i32 = 3;
    pub(crate) const BIT_PACKED: i32 = 4;
    pub(crate) const DELTA_BINARY_PACKED: i32 = 5;
    pub(crate) const RLE_DICTIONARY: i32 = 8;
    pub(crate) const BYTE_STREAM_SPLIT: i32 = 9;
}

/// Why values could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ValueFault {
    /// The bytes are not what they should be.
    Flaw(Flaw),
    /// A value that is no token, and its place in the batch.
    Range { index: usize, raw: i64 },
}

impl From<Flaw> for ValueFault {
    fn from(flaw: Flaw) -> Self {
        Self::Flaw(flaw)
    }
}

/// Which stored values are tokens: those of the logical type that fit in an `i32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Domain {
    low: i64,
    high: i64,
    /// Whether what is stored is to be shown as unsigned, and of how many bytes it is.
    signed: bool,
    bytes: u8,
}

impl Domain {
    /// The tokens of a column.
    pub(super) fn of(shape: &TokenShape) -> Self {
        let bits = u32::from(shape.bits.clamp(1, 32));
        let (low, high) = match shape.signed {
            true => (-(1_i64 << (bits - 1)), (1_i64 << (bits - 1)) - 1),
            false => (0, ((1_i64 << bits) - 1).min(i64::from(i32::MAX))),
        };
        Self { low, high, signed: shape.signed, bytes: shape.value_bytes }
    }

    /// Whether a stored value is a token.
    #[inline]
    pub(super) fn has(self, raw: i64) -> bool {
        self.low <= raw && raw <= self.high
    }

    /// Whether every stored 32-bit value is a token.
    fn has_all_of_32_bits(self) -> bool {
        self.low == i64::from(i32::MIN) && self.high == i64::from(i32::MAX)
    }

    /// The message for a stored value that is no token.
    pub(super) fn refusal(self, raw: i64) -> String {
        let Self { low, high, .. } = self;
        match (self.signed, self.bytes) {
            (true, _) => format!("expected tokens in {low}..={high}, found {raw}"),
            (false, 4) => format!("expected tokens in {low}..={high}, found {}", raw as u32),
            (false, _) => format!("expected tokens in {low}..={high}, found {}", raw as u64),
        }
    }

    /// Appends values as tokens, or says which is none.
    fn extend(self, out: &mut Vec<i32>, values: impl Iterator<Item = i64> + Clone) -> Result<(), ValueFault> {
        let start = out.len();
        let mut outside = false;
        out.extend(values.clone().map(|value| {
            outside |= value < self.low || value > self.high;
            value as i32
        }));
        if !outside {
            return Ok(());
        }
        match values.enumerate().find(|(_, value)| !self.has(*value)) {
            Some((at, raw)) => Err(ValueFault::Range { index: start + at, raw }),
            None => Ok(()),
        }
    }
}

/// A chunk's dictionary.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    tokens: Vec<i32>,
    /// What is stored, kept only if some of it is no token: that matters only where it is used.
    stored: Vec<i64>,
    domain: Domain,
}

impl Dictionary {
    /// Forgets the entries.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.stored.clear();
    }

    /// Reads a dictionary page.
    pub(super) fn load(&mut self, data: &[u8], entries: u64, shape: &TokenShape) -> Checked<()> {
        self.clear();
        self.domain = Domain::of(shape);
        if entries.checked_mul(u64::from(shape.value_bytes)) != Some(data.len() as u64) {
            let found = data.len();
            return Err(flaw!(
                "expected {entries} dictionary entries of {} bytes, found {found} bytes",
                shape.value_bytes
            ));
        }
        let mut plain = Plain { data, bytes: shape.value_bytes, domain: self.domain };
        match plain.read(entries as usize, &mut self.tokens) {
            Ok(()) => Ok(()),
            Err(ValueFault::Flaw(flaw)) => Err(flaw),
            Err(ValueFault::Range { .. }) => {
                self.tokens.clear();
                self.stored.extend(stored(data, shape.value_bytes));
                self.tokens.extend(self.stored.iter().map(|value| *value as i32));
                Ok(())
            }
        }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Appends the entries that `indices` name, all of which must be below [`Dictionary::len`].
    #[inline]
    pub(super) fn gather(&self, indices: &[u32], out: &mut Vec<i32>) -> Result<(), ValueFault> {
        if !self.stored.is_empty() {
            let values = indices.iter().map(|index| self.stored.get(*index as usize).copied().unwrap_or_default());
            return self.domain.extend(out, values);
        }
        let tokens = self.tokens.as_slice();
        out.extend(indices.iter().map(|index| tokens.get(*index as usize).copied().unwrap_or_default()));
        Ok(())
    }

    /// Appends one entry `count` times.
    pub(super) fn repeat(&self, index: u32, count: usize, out: &mut Vec<i32>) -> Result<(), ValueFault> {
        let start = out.len();
        self.gather(&[index], out)?;
        let token = out.last().copied().unwrap_or_default();
        out.resize(start + count, token);
        Ok(())
    }
}

/// Stored values as they lie in the bytes.
fn stored(data: &[u8], bytes: u8) -> impl Iterator<Item = i64> + Clone {
    data.chunks_exact(usize::from(bytes.max(1))).map(|value| {
        match (value.first_chunk::<8>(), value.first_chunk::<4>()) {
            (Some(value), _) => i64::from_le_bytes(*value),
            (None, Some(value)) => i64::from(i32::from_le_bytes(*value)),
            (None, None) => 0,
        }
    })
}

/// Values one after another.
#[derive(Debug)]
pub(super) struct Plain<'a> {
    data: &'a [u8],
    bytes: u8,
    domain: Domain,
}

impl Plain<'_> {
    fn read(&mut self, count: usize, out: &mut Vec<i32>) -> Result<(), ValueFault> {
        let bytes = usize::from(self.bytes);
        let Some((now, later)) = count.checked_mul(bytes).and_then(|size| self.data.split_at_checked(size)) else {
            return Err(flaw!("expected {count} more values of {bytes} bytes, found {} bytes", self.data.len()).into());
        };
        self.data = later;
        if self.bytes == 8 {
            let (values, _) = now.as_chunks::<8>();
            self.domain.extend(out, values.iter().map(|value| i64::from_le_bytes(*value)))
        } else {
            let (values, _) = now.as_chunks::<4>();
            let values = values.iter().map(|value| i32::from_le_bytes(*value));
            if self.domain.has_all_of_32_bits() {
                out.extend(values);
                return Ok(());
            }
            self.domain.extend(out, values.map(i64::from))
        }
    }
}

/// Values whose first bytes lie together, then their second bytes, and so on.
#[derive(Debug)]
pub(super) struct Split<'a> {
    data: &'a [u8],
    at: usize,
    bytes: u8,
    domain: Domain,
}

impl Split<'_> {
    fn stride(&self) -> usize {
        self.data.len() / usize::from(self.bytes.max(1))
    }

    fn read(&mut self, count: usize, out: &mut Vec<i32>) -> Result<(), ValueFault> {
        let left = self.stride() - self.at;
        if count > left {
            return Err(flaw!("expected {count} more values, found {left}").into());
        }
        let (data, start, stride) = (self.data, self.at, self.stride());
        let stream = |i: usize| &data[i * stride + start..][..count];
        self.at += count;
        if self.bytes == 8 {
            let streams: [&[u8]; 8] = std::array::from_fn(stream);
            let value = move |i: usize| i64::from_le_bytes(std::array::from_fn(|byte| streams[byte][i]));
            self.domain.extend(out, (0..count).map(value))
        } else {
            let streams: [&[u8]; 4] = std::array::from_fn(stream);
            let value = move |i: usize| i64::from(i32::from_le_bytes(std::array::from_fn(|byte| streams[byte][i])));
            self.domain.extend(out, (0..count).map(value))
        }
    }
}

/// The values of one data page.
#[derive(Debug)]
pub(super) enum Values<'a> {
    /// One after another.
    Plain(Plain<'a>),
    /// Byte by byte.
    Split(Split<'a>),
    /// Differences.
    Delta(Box<Delta<'a>>, Domain),
    /// Places in the dictionary.
    Indices(Box<Indices<'a>>),
}

impl<'a> Values<'a> {
    /// Whether an encoding is known here.
    pub(super) fn knows(encoding: i32) -> bool {
        matches!(
            encoding,
            number::PLAIN
                | number::PLAIN_DICTIONARY
                | number::RLE_DICTIONARY
                | number::DELTA_BINARY_PACKED
                | number::BYTE_STREAM_SPLIT
        )
    }

    /// A reader of the values in `data`, of which there is at least one.
    pub(super) fn new(data: &'a [u8], encoding: i32, shape: &TokenShape) -> Checked<Self> {
        let domain = Domain::of(shape);
        let bytes = shape.value_bytes;
        Ok(match encoding {
            number::PLAIN => Self::Plain(Plain { data, bytes, domain }),
            number::BYTE_STREAM_SPLIT => {
                if !data.len().is_multiple_of(usize::from(bytes.max(1))) {
                    return Err(flaw!("expected values of {bytes} bytes, found {} bytes", data.len()));
                }
                Self::Split(Split { data, at: 0, bytes, domain })
            }
            number::DELTA_BINARY_PACKED => Self::Delta(Box::new(Delta::new(data, bytes)?), domain),
            number::PLAIN_DICTIONARY | number::RLE_DICTIONARY => Self::Indices(Box::new(Indices::new(data)?)),
            other => return Err(flaw!("expected a known encoding, found number {other}")),
        })
    }

    /// Appends the next `count` values to `out`, which may have been empty before.
    pub(super) fn read(&mut self, count: usize, dictionary: &Dictionary, out: &mut Vec<i32>) -> Result<(), ValueFault> {
        match self {
            Self::Plain(plain) => plain.read(count, out),
            Self::Split(split) => split.read(count, out),
            Self::Delta(delta, domain) => {
                let mut left = count;
                while left > 0 {
                    let block = delta.next_block(left)?;
                    left -= block.len();
                    domain.extend(out, block.iter().copied())?;
                }
                Ok(())
            }
            Self::Indices(indices) => indices.read(count, dictionary, out),
        }
    }

    /// Checks that no values are left once all levels were read.
    pub(super) fn finish(&self) -> Checked<()> {
        let left = match self {
            Self::Plain(plain) => plain.data.len().div_ceil(usize::from(plain.bytes.max(1))) as u64,
            Self::Split(split) => (split.stride() - split.at) as u64,
            Self::Delta(delta, _) => delta.left(),
            Self::Indices(_) => 0,
        };
        match left {
            0 => Ok(()),
            _ => Err(flaw!("expected as many values as the levels say, found {left} more")),
        }
    }
}
