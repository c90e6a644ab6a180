//! One range of one object on disk: how it is named, written and checked.
//!
//! A file holds, little-endian: the magic bytes, the key (16 bytes), the length of the content (8), the xxh3-64 of
//! the content (8), and the content.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::store::{Object, Store, Version};

const MAGIC: &[u8; 8] = b"HRCACHE1";
/// Bytes before the content.
pub(super) const HEADER: u64 = 40;

/// What tells one range of one content from any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u128);

impl Key {
    /// The key of a range; `None` if nothing tells this content of the object from another. A time in whole seconds, as
    /// web servers tell it, does not: what is replaced within a second would be taken for what was there before.
    pub(super) fn new(store: &dyn Store, object: &Object, range: &Range<u64>) -> Option<Self> {
        match object.version {
            Version::ETag(_) => {}
            Version::Modified(time) if !store.is_remote() || time % 1_000_000_000 != 0 => {}
            Version::Modified(_) | Version::Unknown => return None,
        }
        let (version, size) = (object.version.token(), object.size);
        let (endpoint, uri) = (store.endpoint().unwrap_or_default(), store.uri(&object.path));
        let text = format!("{endpoint}\0{uri}\0{version}\0{size}\0{}\0{}", range.start, range.end);
        Some(Self(xxh3_128(text.as_bytes())))
    }

    /// In hex, of 32 digits.
    pub(super) fn name(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// The bytes before some content.
fn header(key: Key, content: &[u8]) -> [u8; HEADER as usize] {
    let mut header = [0; HEADER as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..24].copy_from_slice(&key.0.to_le_bytes());
    header[24..32].copy_from_slice(&(content.len() as u64).to_le_bytes());
    header[32..].copy_from_slice(&xxh3_64(content).to_le_bytes());
    header
}

/// Writes an entry to an empty file. Nothing is synced: what a crash leaves half-written does not pass its check.
pub(super) fn write(file: &File, key: Key, content: &[u8]) -> io::Result<()> {
    file.write_all_at(&header(key, content), 0)?;
    file.write_all_at(content, HEADER)
}

/// Appends the content of an entry to `buffer`, if it is whole; on error `buffer` is as it was.
pub(super) fn read(file: &File, key: Key, len: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    if file.metadata()?.len() != HEADER + len {
        return Err(damaged("its size is wrong"));
    }
    let mut found = [0; HEADER as usize];
    file.read_exact_at(&mut found, 0)?;
    let begin = buffer.len();
    let missing = || io::Error::new(io::ErrorKind::OutOfMemory, "there is no memory for it");
    let end = usize::try_from(len).ok().and_then(|len| begin.checked_add(len)).ok_or_else(missing)?;
    buffer.try_reserve(end - begin).map_err(|_| missing())?;
    buffer.resize(end, 0);
    let outcome = file.read_exact_at(&mut buffer[begin..], HEADER).and_then(|()| {
        let is_whole = header(key, &buffer[begin..]) == found;
        if is_whole { Ok(()) } else { Err(damaged("its checksum does not match")) }
    });
    if outcome.is_err() {
        buffer.truncate(begin);
    }
    outcome
}

/// Whether a file begins as entries do: nothing else is ever deleted.
pub(super) fn is_entry(file: &File) -> bool {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == *MAGIC
}
