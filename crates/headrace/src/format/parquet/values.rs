//! Values: the tokens of a data page, in each encoding that integers come in, read a batch at a time.

use super::TokenChunk;
use super::cpu::{Cpu, Kernel};
use super::delta::Delta;
use super::dictionary::Dictionary;
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
    /// A value that is no token, and its place among those that were to be read.
    Range { index: usize, raw: i64 },
}

impl ValueFault {
    /// The same fault, in values of which `before` were read already.
    pub(super) fn behind(self, before: usize) -> Self {
        match self {
            Self::Range { index, raw } => Self::Range { index: index + before, raw },
            flaw => flaw,
        }
    }
}

impl From<Flaw> for ValueFault {
    fn from(flaw: Flaw) -> Self {
        Self::Flaw(flaw)
    }
}

/// How a token is kept.
///
/// Conversions cut off what does not fit: it is checked elsewhere that it does.
pub(super) trait Token: Copy + Default {
    fn of(raw: i64) -> Self;
    fn of_wide(raw: i32) -> Self;
    fn of_narrow(raw: u16) -> Self;
}

impl Token for i32 {
    #[inline(always)]
    fn of(raw: i64) -> Self {
        raw as i32
    }

    #[inline(always)]
    fn of_wide(raw: i32) -> Self {
        raw
    }

    #[inline(always)]
    fn of_narrow(raw: u16) -> Self {
        i32::from(raw)
    }
}

impl Token for u16 {
    #[inline(always)]
    fn of(raw: i64) -> Self {
        raw as u16
    }

    #[inline(always)]
    fn of_wide(raw: i32) -> Self {
        raw as u16
    }

    #[inline(always)]
    fn of_narrow(raw: u16) -> Self {
        raw
    }
}

/// Which stored values are tokens: those of the logical type that fit in an `i32`, or in a `u16` if the footer says
/// so of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Domain {
    low: i64,
    high: i64,
    /// The bounds of the type, where the footer's are closer.
    of_type: Option<(i64, i64)>,
    /// Whether what is stored is to be shown as unsigned, and of how many bytes it is.
    signed: bool,
    bytes: u8,
}

impl Domain {
    /// The tokens of a chunk.
    pub(super) fn of(chunk: &TokenChunk) -> Self {
        let shape = &chunk.shape;
        let bits = u32::from(shape.bits.clamp(1, 32));
        let (low, high) = match shape.signed {
            true => (-(1_i64 << (bits - 1)), (1_i64 << (bits - 1)) - 1),
            false => (0, ((1_i64 << bits) - 1).min(i64::from(i32::MAX))),
        };
        let (least, most) = if chunk.narrow { (0, i64::from(u16::MAX)) } else { (low, high) };
        let of_type = (low < least || most < high).then_some((low, high));
        Self { low: low.max(least), high: high.min(most), of_type, signed: shape.signed, bytes: shape.value_bytes }
    }

    /// Whether a stored value is a token.
    #[inline]
    pub(super) fn has(self, raw: i64) -> bool {
        self.low <= raw && raw <= self.high
    }

    /// Bytes of a stored value.
    pub(super) fn bytes(self) -> u8 {
        self.bytes
    }

    /// The message for a stored value that is no token.
    pub(super) fn refusal(self, raw: i64) -> String {
        let (low, high, says) = match self.of_type {
            Some((low, high)) if raw < low || high < raw => (low, high, ""),
            Some(_) => (self.low, self.high, ", as the statistics in the footer say"),
            None => (self.low, self.high, ""),
        };
        match (self.signed, self.bytes) {
            (true, _) => format!("expected tokens in {low}..={high}{says}, found {raw}"),
            (false, 4) => format!("expected tokens in {low}..={high}{says}, found {}", raw as u32),
            (false, _) => format!("expected tokens in {low}..={high}{says}, found {}", raw as u64),
        }
    }

    /// Puts values down as tokens, as many as `out` holds, or says which is none.
    #[inline(always)]
    pub(super) fn put<T: Token, V: Stored>(
        self,
        out: &mut [T],
        values: impl Iterator<Item = V> + Clone,
    ) -> Result<(), ValueFault> {
        let (low, span) = (V::cut(self.low), V::cut(self.high.wrapping_sub(self.low)));
        let mut outside = false;
        for (token, value) in out.iter_mut().zip(values.clone()) {
            outside |= value.is_beyond(low, span);
            *token = T::of(value.widen());
        }
        if outside { self.refuse(values.take(out.len()).map(V::widen)) } else { Ok(()) }
    }

    #[cold]
    fn refuse(self, values: impl Iterator<Item = i64>) -> Result<(), ValueFault> {
        match values.enumerate().find(|(_, value)| !self.has(*value)) {
            Some((index, raw)) => Err(ValueFault::Range { index, raw }),
            None => Ok(()),
        }
    }
}

/// A value as it is stored: 32 or 64 bits.
pub(super) trait Stored: Copy {
    /// A bound of the values' own width.
    fn cut(bound: i64) -> Self;
    /// Whether it lies below `low`, or more than `span` above it: one comparison of unsigned numbers.
    fn is_beyond(self, low: Self, span: Self) -> bool;
    fn widen(self) -> i64;
}

impl Stored for i32 {
    #[inline(always)]
    fn cut(bound: i64) -> Self {
        bound as i32
    }

    #[inline(always)]
    fn is_beyond(self, low: Self, span: Self) -> bool {
        self.wrapping_sub(low) as u32 > span as u32
    }

    #[inline(always)]
    fn widen(self) -> i64 {
        i64::from(self)
    }
}

impl Stored for i64 {
    #[inline(always)]
    fn cut(bound: i64) -> Self {
        bound
    }

    #[inline(always)]
    fn is_beyond(self, low: Self, span: Self) -> bool {
        self.wrapping_sub(low) as u64 > span as u64
    }

    #[inline(always)]
    fn widen(self) -> i64 {
        self
    }
}

/// [`Domain::put`], compiled for each kind of processor.
struct Put<'a, T, I> {
    domain: Domain,
    out: &'a mut [T],
    values: I,
}

impl<T: Token, V: Stored, I: Iterator<Item = V> + Clone> Kernel for Put<'_, T, I> {
    type Out = Result<(), ValueFault>;

    #[inline(always)]
    fn run(self) -> Self::Out {
        self.domain.put(self.out, self.values)
    }
}

/// Stored values as they lie in the bytes.
pub(super) fn stored(data: &[u8], bytes: u8) -> impl Iterator<Item = i64> + Clone {
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
    pub(super) data: &'a [u8],
    pub(super) bytes: u8,
    pub(super) domain: Domain,
    pub(super) cpu: Cpu,
}

impl Plain<'_> {
    fn take(&mut self, count: u64) -> Checked<&[u8]> {
        let bytes = usize::from(self.bytes);
        let size = usize::try_from(count).ok().and_then(|count| count.checked_mul(bytes));
        let Some((now, later)) = size.and_then(|size| self.data.split_at_checked(size)) else {
            return Err(flaw!("expected {count} more values of {bytes} bytes, found {} bytes", self.data.len()));
        };
        self.data = later;
        Ok(now)
    }

    pub(super) fn read<T: Token>(&mut self, out: &mut [T]) -> Result<(), ValueFault> {
        let (domain, bytes, cpu) = (self.domain, self.bytes, self.cpu);
        let now = self.take(out.len() as u64)?;
        if bytes == 8 {
            let (values, _) = now.as_chunks::<8>();
            let values = values.iter().map(|value| i64::from_le_bytes(*value));
            return cpu.run(Put { domain, out, values });
        }
        let (values, _) = now.as_chunks::<4>();
        let values = values.iter().map(|value| i32::from_le_bytes(*value));
        cpu.run(Put { domain, out, values })
    }
}

/// Values whose first bytes lie together, then their second bytes, and so on.
#[derive(Debug)]
pub(super) struct Split<'a> {
    data: &'a [u8],
    at: usize,
    bytes: u8,
    domain: Domain,
    cpu: Cpu,
}

impl Split<'_> {
    fn stride(&self) -> usize {
        self.data.len() / usize::from(self.bytes.max(1))
    }

    fn take(&mut self, count: u64) -> Checked<usize> {
        let left = self.stride() - self.at;
        if count > left as u64 {
            return Err(flaw!("expected {count} more values, found {left}"));
        }
        let start = self.at;
        self.at += count as usize;
        Ok(start)
    }

    fn read<T: Token>(&mut self, out: &mut [T]) -> Result<(), ValueFault> {
        let count = out.len();
        let start = self.take(count as u64)?;
        let (data, stride) = (self.data, self.stride());
        let stream = |i: usize| &data[i * stride + start..][..count];
        if self.bytes == 8 {
            let streams: [&[u8]; 8] = std::array::from_fn(stream);
            let value = move |i: usize| i64::from_le_bytes(std::array::from_fn(|byte| streams[byte][i]));
            self.cpu.run(Put { domain: self.domain, out, values: (0..count).map(value) })
        } else {
            let streams: [&[u8]; 4] = std::array::from_fn(stream);
            let value = move |i: usize| i32::from_le_bytes(std::array::from_fn(|byte| streams[byte][i]));
            self.cpu.run(Put { domain: self.domain, out, values: (0..count).map(value) })
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
    Delta(Box<Delta<'a>>, Domain, Cpu),
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
    pub(super) fn new(data: &'a [u8], encoding: i32, chunk: &TokenChunk, cpu: Cpu) -> Checked<Self> {
        let domain = Domain::of(chunk);
        let bytes = chunk.shape.value_bytes;
        Ok(match encoding {
            number::PLAIN => Self::Plain(Plain { data, bytes, domain, cpu }),
            number::BYTE_STREAM_SPLIT => {
                if !data.len().is_multiple_of(usize::from(bytes.max(1))) {
                    return Err(flaw!("expected values of {bytes} bytes, found {} bytes", data.len()));
                }
                Self::Split(Split { data, at: 0, bytes, domain, cpu })
            }
            number::DELTA_BINARY_PACKED => Self::Delta(Box::new(Delta::new(data, bytes, cpu)?), domain, cpu),
            number::PLAIN_DICTIONARY | number::RLE_DICTIONARY => Self::Indices(Box::new(Indices::new(data, cpu)?)),
            other => return Err(flaw!("expected a known encoding, found number {other}")),
        })
    }

    /// Fills `out` with the next values.
    pub(super) fn read<T: Token>(&mut self, dictionary: &Dictionary, out: &mut [T]) -> Result<(), ValueFault> {
        match self {
            Self::Plain(plain) => plain.read(out),
            Self::Split(split) => split.read(out),
            Self::Delta(delta, domain, cpu) => {
                let (domain, narrow) = (*domain, delta.is_narrow());
                let mut done = 0;
                while done < out.len() {
                    let block = delta.next_block(out.len() - done)?;
                    let end = done + block.len();
                    let out = &mut out[done..end];
                    let put = match narrow {
                        true => cpu.run(Put { domain, out, values: block.iter().map(|value| *value as i32) }),
                        false => cpu.run(Put { domain, out, values: block.iter().copied() }),
                    };
                    put.map_err(|fault| fault.behind(done))?;
                    done = end;
                }
                Ok(())
            }
            Self::Indices(indices) => indices.read(dictionary, out),
        }
    }

    /// Passes over the next `count` values, which are not checked.
    pub(super) fn skip(&mut self, count: u64) -> Checked<()> {
        match self {
            Self::Plain(plain) => plain.take(count).map(drop),
            Self::Split(split) => split.take(count).map(drop),
            Self::Delta(delta, ..) => {
                let mut left = count;
                while left > 0 {
                    left -= delta.next_block(usize::try_from(left).unwrap_or(usize::MAX))?.len() as u64;
                }
                Ok(())
            }
            Self::Indices(indices) => indices.skip(count),
        }
    }

    /// Checks that no values are left once all levels were read, of which the last `skipped` were not read here.
    pub(super) fn finish(&self, skipped: u64) -> Checked<()> {
        let left = match self {
            Self::Plain(plain) => plain.data.len().div_ceil(usize::from(plain.bytes.max(1))) as u64,
            Self::Split(split) => (split.stride() - split.at) as u64,
            Self::Delta(delta, ..) => delta.left(),
            // They may be padded, and those that are not read are not counted.
            Self::Indices(_) => return Ok(()),
        };
        match left.checked_sub(skipped) {
            Some(0) => Ok(()),
            Some(more) => Err(flaw!("expected as many values as the levels say, found {more} more")),
            None => Err(flaw!("expected {skipped} more values, found {left}")),
        }
    }
}
