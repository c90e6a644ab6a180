//! The front of a page, decompressed alone: where only levels are wanted of a version 1 page, they come first.
//!
//! The page's bytes may be there in part. What this cannot do (codecs without a front, damage) is left to the
//! decompression of whole pages, which also says what is wrong.

use std::io::Read;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::codec::number;

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// The bytes are there.
    Made,
    /// More of the page's bytes are needed.
    More,
    /// The page has to be decompressed whole.
    Whole,
}

/// The decompressor that is kept between pages.
#[derive(Default)]
pub(super) struct Fronts {
    /// With the highest window that it takes, as a power of two.
    zstd: Option<(Decoder<'static>, u32)>,
}

impl Fronts {
    /// Makes the first `out.len()` of a page's `size` bytes, from `input`, which is the front of it or all.
    pub(super) fn make(&mut self, codec: u8, input: &[u8], size: usize, out: &mut [u8]) -> Front {
        match codec {
            number::NONE => match input.get(..out.len()) {
                Some(front) => {
                    out.copy_from_slice(front);
                    Front::Made
                }
                None => Front::More,
            },
            number::SNAPPY => snappy(input, size, out),
            number::GZIP if input.starts_with(&[0x1f, 0x8b]) => read(flate2::read::MultiGzDecoder::new(input), out),
            number::GZIP => read(flate2::read::ZlibDecoder::new(input), out),
            // A large window, see the decompression of whole pages.
            number::BROTLI if input.first().is_some_and(|byte| byte & 0x7f == 0x11) => Front::Whole,
            number::BROTLI => read(brotli::Decompressor::new(input, 4096), out),
            number::ZSTD => self.zstd(input, size, out),
            _ => Front::Whole,
        }
    }

    /// A block is decompressed whole, of 128 KiB at most; what it refers to is kept in a window, for which memory is
    /// reserved but used only as far as blocks are decompressed.
    fn zstd(&mut self, input: &[u8], size: usize, out: &mut [u8]) -> Front {
        // Nothing but damage needs a larger window than the page, or than writers use that do not know its size.
        let window = size.max(2 << 20).next_power_of_two().ilog2().min(27);
        if self.zstd.as_ref().is_none_or(|(_, most)| *most != window) {
            self.zstd = Decoder::new().ok().and_then(|mut decoder| {
                decoder.set_parameter(DParameter::WindowLogMax(window)).ok()?;
                Some((decoder, window))
            });
        }
        let Some((decoder, _)) = &mut self.zstd else { return Front::Whole };
        if decoder.reinit().is_err() {
            return Front::Whole;
        }
        let mut input = InBuffer::around(input);
        let mut output = OutBuffer::around(out);
        loop {
            let before = (input.pos(), output.pos());
            if decoder.run(&mut input, &mut output).is_err() {
                return Front::Whole;
            }
            if output.pos() == output.capacity() {
                return Front::Made;
            }
            if before == (input.pos(), output.pos()) {
                return Front::More;
            }
        }
    }
}

/// Fills `out` from a reader of which only the front may be there: what looks like damage may be its end.
fn read(mut source: impl Read, out: &mut [u8]) -> Front {
    match source.read_exact(out) {
        Ok(()) => Front::Made,
        Err(_) => Front::More,
    }
}

/// Raw snappy: a length, then literals and copies of what was made before.
fn snappy(input: &[u8], size: usize, out: &mut [u8]) -> Front {
    let mut at = 0;
    let mut declared = 0_u64;
    loop {
        let Some(byte) = input.get(at) else { return Front::More };
        declared |= u64::from(byte & 0x7f) << (7 * at);
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if at == 5 {
            return Front::Whole;
        }
    }
    if declared != size as u64 {
        return Front::Whole;
    }
    let mut made = 0;
    while made < out.len() {
        let Some(tag) = input.get(at) else { return Front::More };
        let (kind, high) = (tag & 3, usize::from(tag >> 2));
        // Bytes that follow the tag: of a literal's length, or of a copy's distance.
        let extra = match kind {
            0 => high.saturating_sub(59),
            3 => 4,
            kind => usize::from(kind),
        };
        let Some(number) = input.get(at + 1..at + 1 + extra) else { return Front::More };
        let number = number.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte));
        at += 1 + extra;
        let room = out.len() - made;
        if kind == 0 {
            let len = if extra == 0 { high } else { number } + 1;
            let rest = &input[at..];
            let now = len.min(room).min(rest.len());
            out[made..made + now].copy_from_slice(&rest[..now]);
            made += now;
            at += now;
            if now < len && made < out.len() {
                return Front::More;
            }
            continue;
        }
        let (len, distance) = match kind {
            1 => ((high & 7) + 4, (high >> 3) << 8 | number),
            _ => (high + 1, number),
        };
        let Some(from) = made.checked_sub(distance).filter(|from| *from < made) else { return Front::Whole };
        let end = made + len.min(room);
        if distance >= len {
            out.copy_within(from..from + (end - made), made);
        } else {
            for to in made..end {
                out[to] = out[to - distance];
            }
        }
        made = end;
    }
    Front::Made
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn compressed(codec: u8, data: &[u8]) -> Vec<u8> {
        match codec {
            number::SNAPPY => snap::raw::Encoder::new().compress_vec(data).unwrap(),
            number::GZIP => {
                let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                writer.write_all(data).unwrap();
                writer.finish().unwrap()
            }
            number::BROTLI => {
                let mut out = Vec::new();
                brotli::CompressorReader::new(data, 4096, 4, 20).read_to_end(&mut out).unwrap();
                out
            }
            number::ZSTD => zstd::bulk::compress(data, 1).unwrap(),
            _ => data.to_vec(),
        }
    }

    /// Literals, copies near and far, and runs.
    fn data() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..3000),
            (any::<u8>(), 0..500_usize).prop_map(|(byte, count)| vec![byte; count]),
            (0..50_u8, 1..300_usize)
                .prop_map(|(step, count)| (0..count).map(|i| (i as u8).wrapping_mul(step)).collect()),
        ];
        prop::collection::vec(part, 1..40).prop_map(|parts| [parts.concat(), parts.concat()].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn a_front_is_the_front_of_the_whole(data in data(), wanted: prop::sample::Index, given: prop::sample::Index) {
            let mut fronts = Fronts::default();
            for codec in [0, 1, 2, 4, 6] {
                let whole = compressed(codec, &data);
                let mut out = vec![0; wanted.index(data.len() + 1)];
                prop_assert_eq!(fronts.make(codec, &whole, data.len(), &mut out), Front::Made, "codec {}", codec);
                prop_assert_eq!(&out, &data[..out.len()]);
                out.fill(0);
                if fronts.make(codec, &whole[..given.index(whole.len() + 1)], data.len(), &mut out) == Front::Made {
                    prop_assert_eq!(&out, &data[..out.len()]);
                }
            }
        }

        #[test]
        fn damage_gives_other_bytes_or_none(data in data(), at: prop::sample::Index, flip in 1..=255_u8) {
            let mut fronts = Fronts::default();
            for codec in [1, 2, 4, 6] {
                let mut whole = compressed(codec, &data);
                let at = at.index(whole.len());
                whole[at] ^= flip;
                let mut out = vec![0; data.len() / 2];
                fronts.make(codec, &whole, data.len(), &mut out);
            }
        }
    }

    #[test]
    fn snappy_of_each_kind() {
        // "abcd", a copy of 2 bytes' distance, one of 4 bytes', a literal with its length in one byte.
        let input = [14, 3 << 2, b'a', b'b', b'c', b'd', 2 << 2 | 2, 4, 0, 3 << 2 | 3, 2, 0, 0, 0, 60 << 2, 2, 1, 2, 3];
        let mut out = [0; 14];
        assert_eq!(snappy(&input, 14, &mut out), Front::Made);
        assert_eq!(&out, b"abcdabcbcbc\x01\x02\x03");
        assert_eq!(snap::raw::Decoder::new().decompress_vec(&input).unwrap(), out);
        for end in 0..input.len() {
            assert_eq!(snappy(&input[..end], 14, &mut out), Front::More);
        }
        assert_eq!(snappy(&input, 15, &mut out), Front::Whole, "another length");
        assert_eq!(snappy(&[4, 1, 1], 4, &mut out[..4]), Front::Whole, "a copy of nothing");
    }
}
