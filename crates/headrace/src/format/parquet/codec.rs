//! Decompression of pages, into a buffer of exactly the declared size.
//!
//! The caller has checked that size against its limit; here it is checked against what the codec can make of the
//! bytes that are there, so that a small damaged page does not cost a large buffer.

use std::io::Read;

use super::flaw::{Checked, flaw};

/// Parquet's numbers of codecs.
pub(super) mod number {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const SNAPPY: u8 = 1;
    pub(crate) const GZIP: u8 = 2;
    pub(crate) const BROTLI: u8 = 4;
    pub(crate) const LZ4: u8 = 5;
    pub(crate) const ZSTD: u8 = 6;
    pub(crate) const LZ4_RAW: u8 = 7;
}

/// The magic number of an lz4 frame.
const LZ4_FRAME: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Decompressors that are kept between pages.
#[derive(Default)]
pub(super) struct Codecs {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    snappy: snap::raw::Decoder,
}

/// The codec's name, or `None` for a codec that is not known here.
pub(super) fn name(codec: u8) -> Option<&'static str> {
    Some(match codec {
        number::NONE => "none",
        number::SNAPPY => "snappy",
        number::GZIP => "gzip",
        number::BROTLI => "brotli",
        number::LZ4 => "lz4",
        number::ZSTD => "zstd",
        number::LZ4_RAW => "lz4 raw",
        _ => return None,
    })
}

/// How many bytes a codec can make of `bytes` at most; brotli and zstd have no such bound.
pub(super) fn most_made(codec: u8, bytes: usize) -> usize {
    bytes.saturating_mul(match codec {
        number::NONE => 1,
        number::SNAPPY => 32,
        number::GZIP => 1040,
        number::LZ4 | number::LZ4_RAW => 256,
        _ => usize::MAX,
    })
}

impl Codecs {
    /// Decompresses `input` to exactly `size` bytes at the front of `out`, which grows as needed and never shrinks.
    pub(super) fn decompress<'a>(
        &mut self,
        codec: u8,
        input: &[u8],
        size: usize,
        out: &'a mut Vec<u8>,
    ) -> Checked<&'a [u8]> {
        let name = name(codec).ok_or_else(|| flaw!("expected a known codec, found number {codec}"))?;
        if size > most_made(codec, input.len()) {
            return Err(flaw!(
                "expected {size} bytes of {name} data once decompressed, found only {} compressed bytes",
                input.len()
            ));
        }
        if out.len() < size {
            out.resize(size, 0);
        }
        let target = &mut out[..size];
        let made = match codec {
            number::NONE => {
                if input.len() != size {
                    return Err(flaw!("expected {size} bytes, found {}", input.len()));
                }
                target.copy_from_slice(input);
                Ok(size)
            }
            number::SNAPPY => match snap::raw::decompress_len(input) {
                Ok(len) if len == size => self.snappy.decompress(input, target).map_err(|error| error.to_string()),
                Ok(len) => Ok(len),
                Err(error) => Err(error.to_string()),
            },
            number::GZIP if input.starts_with(&[0x1f, 0x8b]) => fill(flate2::read::MultiGzDecoder::new(input), target),
            number::GZIP => fill(flate2::read::ZlibDecoder::new(input), target),
            // The mark of a window of up to 1 GiB, which the format does not allow and which would be allocated.
            number::BROTLI if input.first().is_some_and(|byte| byte & 0x7f == 0x11) => {
                Err("a large window, which brotli in Parquet does not have".to_owned())
            }
            number::BROTLI => fill(brotli::Decompressor::new(input, 4096), target),
            number::ZSTD => {
                let decompressor = match &mut self.zstd {
                    Some(decompressor) => decompressor,
                    none => match zstd::bulk::Decompressor::new() {
                        Ok(decompressor) => none.insert(decompressor),
                        Err(error) => return Err(flaw!("expected a zstd context, found {error}")),
                    },
                };
                decompressor.decompress_to_buffer(input, target).map_err(|error| error.to_string())
            }
            number::LZ4_RAW => lz4_flex::block::decompress_into(input, target).map_err(|error| error.to_string()),
            number::LZ4 => lz4(input, target),
            _ => Err("nothing that can be read".to_owned()),
        };
        match made {
            Ok(made) if made == size => Ok(&out[..size]),
            Ok(made) => Err(flaw!("expected {size} bytes of {name} data once decompressed, found {made}")),
            Err(what) => Err(flaw!("expected {size} bytes of {name} data once decompressed, found {what}")),
        }
    }
}

/// Reads to the end of `source`: how many bytes came, counting one more than `target` holds.
fn fill(mut source: impl Read, target: &mut [u8]) -> Result<usize, String> {
    let mut at = 0;
    while at < target.len() {
        match source.read(&mut target[at..]) {
            Ok(0) => return Ok(at),
            Ok(count) => at += count,
            Err(error) => return Err(error.to_string()),
        }
    }
    match source.read(&mut [0]) {
        Ok(more) => Ok(at + more),
        Err(error) => Err(error.to_string()),
    }
}

/// Parquet's deprecated lz4: blocks framed as in Hadoop; older writers made lz4 frames or bare blocks.
fn lz4(input: &[u8], target: &mut [u8]) -> Result<usize, String> {
    if let Some(made) = lz4_hadoop(input, target) {
        return Ok(made);
    }
    if input.starts_with(&LZ4_FRAME) {
        return fill(lz4_flex::frame::FrameDecoder::new(input), target);
    }
    lz4_flex::block::decompress_into(input, target).map_err(|error| error.to_string())
}

/// Blocks that each follow their decompressed and compressed size; `None` if the sizes do not add up.
fn lz4_hadoop(mut input: &[u8], target: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    while !input.is_empty() {
        let (made, rest) = input.split_first_chunk::<4>()?;
        let (taken, rest) = rest.split_first_chunk::<4>()?;
        let made = u32::from_be_bytes(*made) as usize;
        let block = rest.get(..u32::from_be_bytes(*taken) as usize)?;
        let part = target.get_mut(at..)?.get_mut(..made)?;
        if lz4_flex::block::decompress_into(block, part).ok()? != made {
            return None;
        }
        at += made;
        input = &rest[block.len()..];
    }
    (at == target.len()).then_some(at)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    fn compressed(codec: u8, data: &[u8]) -> Vec<u8> {
        use std::io::Write;
        match codec {
            number::NONE => data.to_vec(),
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
            number::LZ4_RAW => lz4_flex::block::compress(data),
            number::LZ4 => {
                let mut out = Vec::new();
                for part in data.chunks(1000) {
                    let block = lz4_flex::block::compress(part);
                    out.extend((part.len() as u32).to_be_bytes());
                    out.extend((block.len() as u32).to_be_bytes());
                    out.extend(block);
                }
                out
            }
            _ => unreachable!(),
        }
    }

    #[test]
    fn every_codec_gives_exactly_the_declared_size() {
        let data: Vec<u8> = (0..5000_u32).flat_map(|i| (i * i % 700).to_le_bytes()).collect();
        let mut codecs = Codecs::default();
        let mut out = Vec::new();
        for codec in [0, 1, 2, 4, 5, 6, 7] {
            let input = compressed(codec, &data);
            assert_eq!(codecs.decompress(codec, &input, data.len(), &mut out).unwrap(), data, "codec {codec}");
            for size in [data.len() - 1, data.len() + 1, 0] {
                assert!(codecs.decompress(codec, &input, size, &mut out).is_err(), "codec {codec}, size {size}");
            }
            assert!(codecs.decompress(codec, &input[..input.len() / 2], data.len(), &mut out).is_err());
        }
        assert!(codecs.decompress(3, &data, data.len(), &mut out).is_err(), "lzo is not known");
    }

    #[test]
    fn lz4_of_older_writers() {
        use std::io::Write;
        let data = b"the quick brown fox jumps over the lazy dog, the quick brown fox".as_slice();
        let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
        frame.write_all(data).unwrap();
        let mut out = Vec::new();
        for input in [frame.finish().unwrap(), lz4_flex::block::compress(data)] {
            assert_eq!(Codecs::default().decompress(number::LZ4, &input, data.len(), &mut out).unwrap(), data);
        }
    }

    #[test]
    fn a_declared_size_alone_allocates_nothing() {
        let mut out = Vec::new();
        for codec in [0, 1, 2, 5, 7] {
            assert!(Codecs::default().decompress(codec, &[1, 2, 3], 1 << 30, &mut out).is_err());
            assert_eq!(out.capacity(), 0, "codec {codec}");
        }
    }
}
