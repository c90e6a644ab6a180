//! Whole files and parts of files that are compressed as such: shards, archives, text.
//!
//! Pages of Parquet are not read here: their sizes are declared, and their codecs differ in details.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use crate::error::{Error, Place, Result};

/// What a fault was, in words, before it is known of which bytes.
type Made<T> = std::result::Result<T, String>;

/// Bytes that are made at a time where it is not known how many there are.
const BLOCK: usize = 256 << 10;

/// The codecs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Zstandard: one frame or several.
    Zstd,
    /// Gzip: one member or several, zeros at the end allowed.
    Gzip,
    /// Snappy's bare format, which declares its size.
    Snappy,
    /// Snappy's framed format.
    SnappyFramed,
    /// Brotli.
    Brotli,
}

impl Codec {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Zstd, Self::Gzip, Self::Snappy, Self::SnappyFramed, Self::Brotli];

    /// The name by which it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::SnappyFramed => "snappy-framed",
            Self::Brotli => "brotli",
        }
    }

    /// The codec of that name.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|codec| codec.name()).collect();
            Error::Argument(format!("expected a codec ({}), got {name:?}", names.join(", ")))
        })
    }

    /// How many bytes the codec can make of `bytes` at most; some have no such bound.
    fn most_made(self, bytes: usize) -> u64 {
        let factor = match self {
            Self::Gzip => 1040,
            Self::Snappy | Self::SnappyFramed => 32,
            Self::Zstd | Self::Brotli => return u64::MAX,
        };
        (bytes as u64).saturating_mul(factor)
    }
}

/// Decompresses all of `data`, to exactly `size` bytes if that is given, and never to more than `most`.
///
/// # Errors
/// [`Error::Data`] at `place` that says what was expected and what was found.
pub fn decompress(codec: Codec, data: &[u8], size: Option<u64>, most: u64, place: &Place) -> Result<Vec<u8>> {
    let name = codec.name();
    let fail = |what: String| Error::data(place.clone(), what);
    if let Some(size) = size.filter(|&size| size > most) {
        return Err(fail(format!("expected at most {most} bytes once decompressed, found a declared size of {size}")));
    }
    let expected = match size {
        Some(size) => format!("{size} bytes of {name} data once decompressed"),
        None => format!("{name} data of at most {most} bytes once decompressed"),
    };
    let limit = size.unwrap_or(most);
    let made = match codec {
        Codec::Zstd => zstd_whole(data, size, limit),
        Codec::Gzip => gzip_whole(data, reserve(size, codec.most_made(data.len())), limit),
        Codec::Snappy => snappy_whole(data, limit),
        Codec::SnappyFramed => {
            let start = reserve(size, codec.most_made(data.len()));
            fill(snap::read::FrameDecoder::new(data), start, limit)
        }
        // The mark of a window of up to 1 GiB, which would be allocated.
        Codec::Brotli if data.first().is_some_and(|byte| byte & 0x7f == 0x11) => {
            Err("a large window, which no known writer asks for".to_owned())
        }
        Codec::Brotli => fill(brotli::Decompressor::new(data, BLOCK), reserve(size, u64::MAX), limit),
    };
    match made {
        Ok(bytes) if size.is_none_or(|size| size == bytes.len() as u64) => Ok(bytes),
        Ok(bytes) => Err(fail(format!("expected {expected}, found {}", bytes.len()))),
        Err(what) => Err(fail(format!("expected {expected}, found {what}"))),
    }
}

/// Empty memory for a declared size, or for a block. What is declared is believed as far as it can be true: the system
/// gives pages only as they are written.
fn reserve(size: Option<u64>, possible: u64) -> Vec<u8> {
    let wanted = size.unwrap_or(BLOCK as u64).min(possible);
    let mut bytes = Vec::new();
    // What cannot be had now is asked for piece by piece.
    let _ = usize::try_from(wanted).map(|wanted| bytes.try_reserve_exact(wanted));
    bytes
}

/// Makes room for another block, twice as much each time, but not far beyond `limit`.
fn grow(bytes: &mut Vec<u8>, limit: u64) -> Made<()> {
    if bytes.len() as u64 > limit {
        return Err("more".to_owned());
    }
    if bytes.len() == bytes.capacity() {
        // One byte more than the limit, which shows that there are more.
        let left = usize::try_from(limit - bytes.len() as u64).unwrap_or(usize::MAX).saturating_add(1);
        let more = bytes.len().max(BLOCK).min(left);
        bytes.try_reserve_exact(more).map_err(|_| format!("no memory for {} bytes", bytes.len() + more))?;
    }
    Ok(())
}

/// Reads to the end of `source`.
fn fill(mut source: impl Read, mut bytes: Vec<u8>, limit: u64) -> Made<Vec<u8>> {
    loop {
        grow(&mut bytes, limit)?;
        let room = bytes.capacity() - bytes.len();
        let count = source.by_ref().take(room as u64).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if count < room {
            // What came last may have gone beyond.
            return if bytes.len() as u64 > limit { Err("more".to_owned()) } else { Ok(bytes) };
        }
    }
}

fn snappy_whole(data: &[u8], limit: u64) -> Made<Vec<u8>> {
    let len = snap::raw::decompress_len(data).map_err(|error| error.to_string())?;
    if len as u64 > limit {
        return Err(format!("a declared size of {len}"));
    }
    if len as u64 > Codec::Snappy.most_made(data.len()) {
        return Err(format!("a declared size of {len} for {} compressed bytes", data.len()));
    }
    snap::raw::Decoder::new().decompress_vec(data).map_err(|error| error.to_string())
}

fn zstd_whole(data: &[u8], size: Option<u64>, limit: u64) -> Made<Vec<u8>> {
    // Most data is one frame that declares its size.
    let declared = size.or_else(|| zstd::zstd_safe::get_frame_content_size(data).ok().flatten());
    let mut bytes = reserve(declared.filter(|&declared| declared <= limit), u64::MAX);
    let mut stream = ZstdStream::new()?;
    stream.run(data, &mut bytes, limit)?;
    stream.finish()?;
    Ok(bytes)
}

fn gzip_whole(data: &[u8], mut bytes: Vec<u8>, limit: u64) -> Made<Vec<u8>> {
    let mut stream = GzipStream::new();
    stream.run(data, &mut bytes, limit)?;
    stream.finish()?;
    Ok(bytes)
}

/// Decompresses data that comes piece by piece: zstd or gzip.
pub struct Decompressor {
    stream: Stream,
    codec: Codec,
    place: Place,
    /// Bytes taken in and given out before, for messages.
    taken: u64,
    failed: bool,
}

enum Stream {
    Zstd(ZstdStream),
    Gzip(GzipStream),
}

impl Decompressor {
    /// At the start of data.
    pub fn new(codec: Codec, place: Place) -> Result<Self> {
        let stream = match codec {
            Codec::Zstd => Stream::Zstd(ZstdStream::new().map_err(Error::Internal)?),
            Codec::Gzip => Stream::Gzip(GzipStream::new()),
            other => {
                let name = other.name();
                return Err(Error::Argument(format!(
                    "expected a codec that can be streamed (zstd, gzip), got {name:?}"
                )));
            }
        };
        Ok(Self { stream, codec, place, taken: 0, failed: false })
    }

    /// What the next bytes make, which may be nothing yet.
    pub fn feed(&mut self, data: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.check()?;
        let made = match &mut self.stream {
            Stream::Zstd(stream) => stream.run(data, &mut bytes, u64::MAX),
            Stream::Gzip(stream) => stream.run(data, &mut bytes, u64::MAX),
        };
        made.map_err(|what| self.fail(what))?;
        self.taken += data.len() as u64;
        Ok(bytes)
    }

    /// Says that there are no more bytes.
    ///
    /// # Errors
    /// [`Error::Data`] if the data ends before its end.
    pub fn finish(&mut self) -> Result<()> {
        self.check()?;
        let made = match &self.stream {
            Stream::Zstd(stream) => stream.finish(),
            Stream::Gzip(stream) => stream.finish(),
        };
        made.map_err(|what| self.fail(what))
    }

    fn check(&self) -> Result<()> {
        if self.failed { Err(Error::Argument("a decompressor that failed cannot go on".to_owned())) } else { Ok(()) }
    }

    fn fail(&mut self, what: String) -> Error {
        self.failed = true;
        let what = format!("expected {} data, found {what}, after {} bytes of it", self.codec.name(), self.taken);
        Error::data(self.place.clone(), what)
    }
}

struct ZstdStream {
    decoder: Decoder<'static>,
    /// Whether a frame has begun and not ended.
    inside: bool,
}

impl ZstdStream {
    fn new() -> Made<Self> {
        let decoder = Decoder::new().map_err(|error| error.to_string())?;
        Ok(Self { decoder, inside: false })
    }

    fn run(&mut self, data: &[u8], bytes: &mut Vec<u8>, limit: u64) -> Made<()> {
        let mut input = InBuffer::around(data);
        loop {
            let at_end = input.pos() == data.len();
            if at_end && !self.inside {
                break;
            }
            grow(bytes, limit)?;
            let (room, before, from) = (bytes.capacity() - bytes.len(), bytes.len(), input.pos());
            let mut output = OutBuffer::around_pos(bytes, before);
            let hint = self.decoder.run(&mut input, &mut output).map_err(|error| error.to_string())?;
            let made = output.pos() - before;
            self.inside = hint != 0;
            if input.pos() == data.len() && made < room {
                break;
            }
            if made == 0 && input.pos() == from && made < room {
                return Err("data that leads nowhere".to_owned());
            }
        }
        if bytes.len() as u64 > limit { Err("more".to_owned()) } else { Ok(()) }
    }

    fn finish(&self) -> Made<()> {
        if self.inside { Err("its end inside a frame".to_owned()) } else { Ok(()) }
    }
}

struct GzipStream {
    decoder: Decompress,
    state: Member,
}

/// Where in a file of members a stream is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    /// Nothing has come yet.
    First,
    Inside,
    /// After one: another may begin, or zeros may follow.
    Between,
    /// Zeros came.
    Padding,
}

/// 15 bits of window, as all gzip data has.
const GZIP_WINDOW: u8 = 15;

impl GzipStream {
    fn new() -> Self {
        Self { decoder: Decompress::new_gzip(GZIP_WINDOW), state: Member::First }
    }

    fn run(&mut self, mut data: &[u8], bytes: &mut Vec<u8>, limit: u64) -> Made<()> {
        loop {
            if matches!(self.state, Member::Between | Member::Padding) {
                let zeros = data.iter().take_while(|byte| **byte == 0).count();
                data = &data[zeros..];
                if zeros > 0 {
                    self.state = Member::Padding;
                }
                match (data.first(), self.state) {
                    (None, _) => break,
                    (Some(_), Member::Padding) => return Err("other bytes after zeros behind its end".to_owned()),
                    (Some(_), _) => self.decoder = Decompress::new_gzip(GZIP_WINDOW),
                }
                self.state = Member::Inside;
            }
            if data.is_empty() && self.state == Member::First {
                break;
            }
            self.state = Member::Inside;
            grow(bytes, limit)?;
            let (taken, room) = (self.decoder.total_in(), bytes.capacity() - bytes.len());
            let before = bytes.len();
            let status = self.decoder.decompress_vec(data, bytes, FlushDecompress::None);
            let status = status.map_err(|error| error.to_string())?;
            let taken = (self.decoder.total_in() - taken) as usize;
            let made = bytes.len() - before;
            data = &data[taken..];
            match status {
                Status::StreamEnd => self.state = Member::Between,
                _ if data.is_empty() && made < room => break,
                _ if taken == 0 && made == 0 => return Err("data that leads nowhere".to_owned()),
                _ => {}
            }
        }
        if bytes.len() as u64 > limit { Err("more".to_owned()) } else { Ok(()) }
    }

    fn finish(&self) -> Made<()> {
        match self.state {
            Member::First => Err("nothing".to_owned()),
            Member::Inside => Err("its end inside a member".to_owned()),
            Member::Between | Member::Padding => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn compressed(codec: Codec, data: &[u8]) -> Vec<u8> {
        match codec {
            Codec::Zstd => zstd::bulk::compress(data, 1).unwrap(),
            Codec::Gzip => {
                let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                writer.write_all(data).unwrap();
                writer.finish().unwrap()
            }
            Codec::Snappy => snap::raw::Encoder::new().compress_vec(data).unwrap(),
            Codec::SnappyFramed => {
                let mut out = Vec::new();
                snap::read::FrameEncoder::new(data).read_to_end(&mut out).unwrap();
                out
            }
            Codec::Brotli => {
                let mut out = Vec::new();
                brotli::CompressorReader::new(data, 4096, 4, 20).read_to_end(&mut out).unwrap();
                out
            }
        }
    }

    fn sample(len: u32) -> Vec<u8> {
        (0..len).flat_map(|i| (i.wrapping_mul(i) % 700).to_le_bytes()).collect()
    }

    fn place() -> Place {
        Place::file("x")
    }

    #[test]
    fn every_codec_gives_exactly_what_was_compressed() {
        for len in [0, 1, 5_000, 400_000] {
            let data = sample(len);
            let size = data.len() as u64;
            for codec in Codec::ALL {
                let input = compressed(codec, &data);
                let open = |size, most| decompress(codec, &input, size, most, &place());
                assert!(open(Some(size), size).unwrap() == data, "{codec:?}");
                assert!(open(None, size).unwrap() == data, "{codec:?}");
                assert!(open(None, u64::MAX).unwrap() == data, "{codec:?}");
                assert!(open(Some(size + 1), u64::MAX).is_err(), "{codec:?}");
                if size > 0 {
                    assert!(open(Some(size - 1), u64::MAX).is_err(), "{codec:?}");
                    assert!(open(None, size - 1).is_err(), "{codec:?}");
                    assert!(open(Some(size), size - 1).is_err(), "{codec:?}");
                    let short = decompress(codec, &input[..input.len() - 1], Some(size), size, &place());
                    assert!(short.is_err(), "{codec:?} of {len}");
                }
                assert_eq!(Codec::named(codec.name()).unwrap(), codec);
            }
        }
    }

    #[test]
    fn frames_and_members_may_follow_each_other() {
        let (a, b) = (sample(70_000), sample(9));
        let whole = [a.as_slice(), &b, &a].concat();
        for codec in [Codec::Zstd, Codec::Gzip, Codec::SnappyFramed] {
            let parts: Vec<u8> = [&a, &b, &a].iter().flat_map(|part| compressed(codec, part)).collect();
            assert!(decompress(codec, &parts, None, 1 << 30, &place()).unwrap() == whole, "{codec:?}");
            let size = whole.len() as u64;
            assert!(decompress(codec, &parts, Some(size), size, &place()).unwrap() == whole, "{codec:?}");
        }
        let padded = [compressed(Codec::Gzip, &a), vec![0; 9000]].concat();
        assert!(decompress(Codec::Gzip, &padded, None, 1 << 30, &place()).unwrap() == a);
        let followed = [padded, vec![1]].concat();
        assert!(decompress(Codec::Gzip, &followed, None, 1 << 30, &place()).is_err());
    }

    #[test]
    fn messages_say_what_was_wanted_and_found() {
        let input = compressed(Codec::Zstd, &sample(100));
        let message = decompress(Codec::Zstd, &input, Some(9), 100, &place()).unwrap_err().to_string();
        assert_eq!(message, "x: expected 9 bytes of zstd data once decompressed, found more");
        let message = decompress(Codec::Zstd, &input, Some(500), 999, &place()).unwrap_err().to_string();
        assert_eq!(message, "x: expected 500 bytes of zstd data once decompressed, found 400");
        let message = decompress(Codec::Snappy, b"\xff\xff\xff\xff\x0f", None, 99, &place()).unwrap_err().to_string();
        assert_eq!(
            message,
            "x: expected snappy data of at most 99 bytes once decompressed, found a declared size of 4294967295"
        );
    }

    proptest! {
        #[test]
        fn streams_do_not_care_where_pieces_end(
            lens in prop::collection::vec(0_u32..3000, 1..4), piece in 1_usize..5000, gzip: bool,
        ) {
            let codec = if gzip { Codec::Gzip } else { Codec::Zstd };
            let whole: Vec<u8> = lens.iter().flat_map(|len| sample(*len)).collect();
            let input: Vec<u8> = lens.iter().flat_map(|len| compressed(codec, &sample(*len))).collect();
            let mut stream = Decompressor::new(codec, place()).unwrap();
            let mut out = Vec::new();
            for part in input.chunks(piece) {
                out.extend(stream.feed(part).unwrap());
            }
            stream.finish().unwrap();
            prop_assert!(out == whole);
            let mut stream = Decompressor::new(codec, place()).unwrap();
            let cut = stream.feed(&input[..input.len() - 1]).and_then(|_| stream.finish());
            prop_assert!(cut.is_err());
            prop_assert!(stream.feed(&[]).is_err(), "it failed before");
        }

        #[test]
        fn damaged_data_is_an_error_or_other_data(
            bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..400, len in 1_u32..100,
        ) {
            for codec in Codec::ALL {
                let _ = decompress(codec, &bytes, None, 1 << 20, &place());
                let mut input = compressed(codec, &sample(len));
                let at = at % input.len();
                input[at] ^= 0x55;
                if let Ok(made) = decompress(codec, &input, Some(u64::from(len) * 4), 1 << 20, &place()) {
                    prop_assert_eq!(made.len(), len as usize * 4);
                }
            }
        }
    }
}
