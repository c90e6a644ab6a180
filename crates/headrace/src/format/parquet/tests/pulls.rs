//! Sinks that take some tokens and leave others: what they get is what lies there, whatever the way to it.

use proptest::prelude::*;

use super::build::{Builder, SHAPE, levels, runs};
use super::files::{cases, footer};
use super::*;
use crate::format::parquet::TokenShape;
use crate::format::parquet::cpu::Cpu;

/// Wants a range of a chunk's tokens, and of those takes stretches: so many skipped, so many read, over and over.
#[derive(Debug, Clone)]
pub(super) struct Stretches {
    pub(super) wanted: Range<u64>,
    pub(super) plan: Vec<(usize, usize)>,
    pub(super) as_u16: bool,
    step: usize,
    at: u64,
    lengths: Vec<u64>,
    /// Tokens, each with its number in the chunk.
    found: Vec<(u64, i32)>,
}

impl Stretches {
    pub(super) fn new(wanted: Range<u64>, plan: &[(usize, usize)], as_u16: bool) -> Self {
        Self { wanted, plan: plan.to_vec(), as_u16, step: 0, at: 0, lengths: Vec::new(), found: Vec::new() }
    }

    /// Whether everything that it took is what these documents have there.
    #[track_caller]
    pub(super) fn check(&self, all: &Collected) {
        assert_eq!(self.lengths, all.lengths);
        for (at, token) in &self.found {
            assert_eq!(*token, all.values[*at as usize], "token {at}");
        }
    }
}

impl TokenSink for Stretches {
    fn wants(&mut self, tokens: Range<u64>) -> bool {
        tokens.start < self.wanted.end && self.wanted.start < tokens.end
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        let (here, there) = (self.at, self.at + values.left());
        self.at = there;
        let mut at = self.wanted.start.clamp(here, there);
        let end = self.wanted.end.clamp(at, there);
        values.skip((at - here) as usize)?;
        while at < end {
            let (skip, read) = self.plan[self.step % self.plan.len()];
            self.step += 1;
            let skip = skip.min((end - at) as usize);
            values.skip(skip)?;
            at += skip as u64;
            let read = read.min((end - at) as usize);
            let (mut wide, mut narrow) = (vec![0; read], vec![0; read]);
            if self.as_u16 {
                values.read(TokensMut::U16(&mut narrow))?;
                wide.iter_mut().zip(narrow).for_each(|(wide, narrow)| *wide = i32::from(narrow));
            } else {
                values.read(TokensMut::I32(&mut wide))?;
            }
            self.found.extend((at..).zip(wide));
            at += read as u64;
        }
        assert_eq!(values.left(), there - end);
        let mut lengths = lengths;
        if continued {
            let (first, rest) = lengths.split_first().unwrap();
            *self.lengths.last_mut().expect("a document to go on with") += first;
            lengths = rest;
        }
        self.lengths.extend_from_slice(lengths);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_stretch_may_be_pulled(
        case in cases(2, 60),
        steps in prop::collection::vec(0..300_usize, 1..8),
        plan in prop::collection::vec((0..400_usize, 1..700_usize), 1..5),
        bounds: [prop::sample::Index; 2],
    ) {
        let file = case.write();
        let footer = footer(&file).unwrap();
        for (group, documents) in footer.columns[0].chunks.iter().zip(&case.documents()) {
            let chunk = group.chunk;
            let all = Collected::of(documents);
            let count = all.values.len();
            let fits = all.values.iter().all(|token| (0..=65535).contains(token));
            let of_type = !case.signed && case.bits <= 16;
            prop_assert_eq!(chunk.narrow, chunk.levels == 0 || of_type || case.statistics > 0 && count > 0 && fits);
            let bytes = &file[chunk.start as usize..(chunk.start + chunk.len) as usize];
            let mut wanted = bounds.map(|bound| bound.index(count + 1) as u64);
            wanted.sort_unstable();
            for wanted in [wanted[0]..wanted[1], 0..u64::MAX, 0..0] {
                for as_u16 in [false, true] {
                    let sink = Stretches::new(wanted.clone(), &plan, as_u16 && chunk.narrow);
                    for cpu in [Cpu::Portable, Cpu::detect()] {
                        let mut sink = sink.clone();
                        prop_assert_eq!(decode_on(cpu, &chunk, bytes, &steps, &mut sink).unwrap(), None);
                        sink.check(&all);
                    }
                    let mut sink = sink.clone();
                    let (none, bytes) = (Delivered::default(), bytes.to_vec().into());
                    fallback::decode(&chunk, &place(), bytes, none, LIMITS, &mut sink).unwrap();
                    sink.check(&all);
                }
            }
        }
    }
}

/// A chunk of three documents with a value that does not fit, in each encoding: the value's row is 2, its number 3.
fn lying(shape: TokenShape, bad: i64) -> Vec<Builder> {
    let values = [5, 6, 7, bad, 8];
    let bytes = usize::from(shape.value_bytes);
    let plain = values.map(|value| value.to_le_bytes()[..bytes].to_vec()).concat();
    let (rep, def) = levels(&[vec![0; 2], vec![], vec![0; 3]], false);
    let split: Vec<u8> = (0..bytes).flat_map(|byte| values.map(|value| value.to_le_bytes()[byte])).collect();
    // Blocks of 128 values in 4 miniblocks; the first block's differences from the least of them, 32 bits each.
    let differences = [1, 1, bad - 7, 8 - bad];
    let least = *differences.iter().min().unwrap();
    let mut delta = vec![0x80, 1, 4, 5, 10];
    super::build::varint(&mut delta, ((least << 1) ^ (least >> 63)) as u64);
    delta.extend([32, 0, 0, 0]);
    for difference in differences.map(|difference| (difference - least) as u32).into_iter().chain([0; 28]) {
        delta.extend(difference.to_le_bytes());
    }
    let page = |encoding: i64, data: &[u8]| {
        let mut builder = Builder::new();
        builder.chunk.shape = shape;
        builder.chunk.narrow = true;
        builder.count(&rep);
        builder.v1(6, &runs(&rep), &runs(&def), data, [encoding, 3, 3]);
        builder
    };
    vec![page(0, &plain), page(9, &split), page(5, &delta)]
}

#[test]
fn statistics_that_lie_are_an_error() {
    let shape = |value_bytes, bits, signed| TokenShape { value_bytes, bits, signed, ..SHAPE };
    let cases = [
        (shape(4, 32, true), 70_000, "expected tokens in 0..=65535, as the statistics in the footer say, found 70000"),
        (shape(4, 32, true), -1, "expected tokens in 0..=65535, as the statistics in the footer say, found -1"),
        (shape(4, 32, false), 65_536, "expected tokens in 0..=65535, as the statistics in the footer say, found 65536"),
        (shape(4, 8, true), -1, "expected tokens in 0..=127, as the statistics in the footer say, found -1"),
        (shape(4, 8, true), 128, "expected tokens in -128..=127, found 128"),
        (shape(8, 64, true), 1 << 20, "as the statistics in the footer say, found 1048576"),
        (shape(8, 64, true), -5, "as the statistics in the footer say, found -5"),
    ];
    for (shape, bad, wanted) in cases {
        let mut builders = lying(shape, bad);
        if shape.value_bytes == 4 {
            let mut builder = Builder::new();
            builder.dictionary(&[5, 6, 7, bad as i32, 8]);
            builder.chunk.shape = shape;
            builder.chunk.narrow = true;
            let (rep, def) = levels(&[vec![0; 2], vec![], vec![0; 3]], false);
            builder.count(&rep);
            builder.v1(6, &runs(&rep), &runs(&def), &[3, 3, 0b1000_1000, 0b1100_0110, 0], [8, 3, 3]);
            builders.push(builder);
        }
        for Builder { chunk, bytes, .. } in builders {
            for as_u16 in [false, true] {
                for cpu in [Cpu::Portable, Cpu::detect()] {
                    let mut sink = Stretches::new(0..9, &[(0, 2)], as_u16);
                    let error = decode_on(cpu, &chunk, &bytes, &[0], &mut sink).unwrap_err().to_string();
                    assert!(error.contains(wanted) && error.contains("row 2: page at byte"), "{error}");
                    // It matters only to those who read it.
                    let mut sink = Stretches::new(0..9, &[(0, 3), (1, 1)], as_u16);
                    decode_on(cpu, &chunk, &bytes, &[0], &mut sink).unwrap();
                    assert_eq!(sink.found, [(0, 5), (1, 6), (2, 7), (4, 8)]);
                }
                let mut sink = Stretches::new(0..9, &[(0, 2)], as_u16);
                let error =
                    fallback::decode(&chunk, &place(), bytes.clone().into(), Delivered::default(), LIMITS, &mut sink);
                let error = error.unwrap_err().to_string();
                assert!(error.contains(wanted) && error.contains("row 2"), "{error}");
            }
        }
    }
}

#[test]
fn what_was_not_wanted_cannot_be_read() {
    /// Says one thing and does another.
    struct Liar(bool, u64);
    impl TokenSink for Liar {
        fn wants(&mut self, _: Range<u64>) -> bool {
            self.0
        }
        fn documents(&mut self, _: bool, _: &[u64], values: &mut PageValues<'_>) -> Result<()> {
            // An error that a sink drops is not forgotten.
            let _ = values.read(TokensMut::I32(&mut vec![0; self.1 as usize]));
            Ok(())
        }
    }
    let mut builder = Builder::new();
    builder.documents(&[vec![1, 2, 3]], false);
    let Builder { chunk, bytes, .. } = builder;
    assert!(decode_to(&chunk, &bytes, &[0], &mut Liar(true, 3)).is_ok());
    let error = decode_to(&chunk, &bytes, &[0], &mut Liar(false, 3)).unwrap_err();
    assert!(matches!(error, Error::Internal(_)), "{error}");
    let error = decode_to(&chunk, &bytes, &[0], &mut Stretches::new(0..3, &[(0, 3)], true)).unwrap_err();
    assert!(matches!(error, Error::Internal(_)), "16 bits of a chunk that is not narrow: {error}");
}

#[test]
fn what_is_not_wanted_is_not_read() {
    let documents: Vec<Vec<i32>> = (0..40).map(|i| vec![i; 5000]).collect();
    for v2 in [false, true] {
        let mut builder = Builder::new();
        builder.dictionary(&(0..5000).collect::<Vec<i32>>());
        for part in documents.chunks(10) {
            match v2 {
                false => builder.documents(part, false),
                true => builder.documents_v2(part, false, 10),
            }
        }
        let Builder { chunk, bytes, .. } = builder;
        let mut decoder = ChunkDecoder::new(LIMITS);
        let mut buffer = Vec::new();
        let (mut at, mut read) = (0, 0);
        let mut fill = |buffer: &mut Vec<u8>, skip: usize, want: usize| {
            assert!(skip == 0 || buffer.is_empty());
            at += skip;
            let more = want - buffer.len();
            buffer.extend_from_slice(&bytes[at..at + more]);
            at += more;
            read += more;
            Ok(())
        };
        let mut sink = Collected { lengths_only: true, ..Collected::default() };
        let done = super::super::decode_stream(&mut decoder, &chunk, place(), &mut fill, &mut buffer, &mut sink);
        assert_eq!(done.unwrap(), super::super::Outcome::Complete);
        assert_eq!(sink, Collected::lengths_of(&documents));
        assert!(read < if v2 { 1500 } else { 70_000 } && bytes.len() > 800_000, "{read} of {}", bytes.len());
        // A document in the middle: its page alone.
        let mut sink = Stretches::new(60_000..65_000, &[(0, 5000)], false);
        decode_to(&chunk, &bytes, &[0], &mut sink).unwrap();
        sink.check(&Collected::of(&documents));
        assert_eq!(sink.found.len(), 5000);
    }
}
