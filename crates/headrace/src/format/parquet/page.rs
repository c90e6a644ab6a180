//! Page headers: the few fields of Parquet's `PageHeader` that a token column needs, out of compact Thrift.
//!
//! Unknown fields are skipped, and nothing is allocated.

use super::flaw::{Checked, flaw};
use super::thrift::{Read, Reader, Stop, kind};

/// A header that is longer than this is taken for damage: statistics of integers take some tens of bytes.
pub(super) const MAX_HEADER_BYTES: usize = 64 << 10;

/// What stands before a page's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// What kind of page it is, with what only that kind has.
    pub(super) kind: PageKind,
    /// Bytes that follow the header.
    pub(super) compressed: usize,
    /// Bytes once decompressed.
    pub(super) uncompressed: usize,
    /// CRC-32 of the bytes that follow the header.
    pub(super) crc: Option<u32>,
}

/// The kinds of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageKind {
    /// The dictionary.
    Dictionary { values: u64, encoding: i32 },
    /// A data page of version 1: levels and values are compressed together.
    DataV1 { levels: u64, encoding: i32, def_encoding: i32, rep_encoding: i32 },
    /// A data page of version 2: levels are not compressed.
    DataV2 {
        levels: u64,
        nulls: u64,
        rows: u64,
        encoding: i32,
        def_bytes: usize,
        rep_bytes: usize,
        is_compressed: bool,
    },
    /// An index page, or a kind that came later than this reader: to be skipped.
    Other,
}

/// Parses the header at the start of `input`: the header and its own length, or `None` if `input` ends too early.
pub(super) fn parse_header(input: &[u8]) -> Checked<Option<(PageHeader, usize)>> {
    let mut reader = Reader::new(input, MAX_HEADER_BYTES);
    match header(&mut reader) {
        Ok(header) => Ok(Some((header, reader.position()))),
        Err(Stop::Short) => Ok(None),
        Err(Stop::Bad(flaw)) => Err(flaw),
    }
}

/// Up to eight integer or boolean fields of a struct, by field number.
type Fields = [Option<i64>; 9];

fn header(reader: &mut Reader<'_>) -> Read<PageHeader> {
    let mut own: Fields = [None; 9];
    let mut nested: [Option<Fields>; 9] = [None; 9];
    let mut last = 0;
    while let Some((field, kind)) = reader.field(last)? {
        last = field;
        match (usize::try_from(field), kind) {
            (Ok(number @ 1..=4), kind::I32) => own[number] = Some(reader.zigzag()?),
            (Ok(number @ (5 | 7 | 8)), kind::STRUCT) => nested[number] = Some(fields(reader)?),
            _ => reader.skip(kind, 0)?,
        }
    }
    let wanted = |fields: &Fields, number: usize, name: &str| {
        fields[number].ok_or_else(|| flaw!("expected field {name} in the page header, found none"))
    };
    let crc = own[4].map(|crc| crc as u32);
    let uncompressed = size(wanted(&own, 2, "uncompressed_page_size")?, "uncompressed_page_size")?;
    let compressed = size(wanted(&own, 3, "compressed_page_size")?, "compressed_page_size")?;
    let small = |fields: &Fields, number: usize, name: &str| wanted(fields, number, name).map(|value| value as i32);
    let kind = match wanted(&own, 1, "type")? {
        0 => {
            let fields = nested[5].ok_or_else(|| flaw!("expected a data page header, found none"))?;
            PageKind::DataV1 {
                levels: size(wanted(&fields, 1, "num_values")?, "num_values")? as u64,
                encoding: small(&fields, 2, "encoding")?,
                def_encoding: small(&fields, 3, "definition_level_encoding")?,
                rep_encoding: small(&fields, 4, "repetition_level_encoding")?,
            }
        }
        2 => {
            let fields = nested[7].ok_or_else(|| flaw!("expected a dictionary page header, found none"))?;
            PageKind::Dictionary {
                values: size(wanted(&fields, 1, "num_values")?, "num_values")? as u64,
                encoding: small(&fields, 2, "encoding")?,
            }
        }
        3 => {
            let fields = nested[8].ok_or_else(|| flaw!("expected a version 2 data page header, found none"))?;
            PageKind::DataV2 {
                levels: size(wanted(&fields, 1, "num_values")?, "num_values")? as u64,
                // The token decoder counts nulls itself: a header without them serves it as well.
                nulls: size(fields[2].unwrap_or_default(), "num_nulls")? as u64,
                rows: size(wanted(&fields, 3, "num_rows")?, "num_rows")? as u64,
                encoding: small(&fields, 4, "encoding")?,
                def_bytes: size(wanted(&fields, 5, "definition_levels_byte_length")?, "definition_levels_byte_length")?,
                rep_bytes: size(wanted(&fields, 6, "repetition_levels_byte_length")?, "repetition_levels_byte_length")?,
                is_compressed: fields[7] != Some(0),
            }
        }
        _ => PageKind::Other,
    };
    Ok(PageHeader { kind, compressed, uncompressed, crc })
}

/// The 32-bit integers and booleans of a struct; other fields are skipped.
fn fields(reader: &mut Reader<'_>) -> Read<Fields> {
    let mut fields: Fields = [None; 9];
    let mut last = 0;
    while let Some((field, kind)) = reader.field(last)? {
        last = field;
        match (usize::try_from(field), kind) {
            (Ok(number @ 1..=8), kind::I32) => fields[number] = Some(reader.zigzag()?),
            (Ok(number @ 1..=8), kind::TRUE) => fields[number] = Some(1),
            (Ok(number @ 1..=8), kind::FALSE) => fields[number] = Some(0),
            _ => reader.skip(kind, 0)?,
        }
    }
    Ok(fields)
}

/// A count or size: a 32-bit integer that is not negative.
fn size(value: i64, name: &str) -> Checked<usize> {
    match i32::try_from(value) {
        Ok(value @ 0..) => Ok(value as usize),
        _ => Err(flaw!("expected {name} in 0..=2147483647 in the page header, found {value}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    /// Type 0, sizes 30 and 20, CRC -1, 10 values, PLAIN, RLE, RLE, statistics with a null count and a min.
    const V1: &[u8] = &[
        0x15, 0x00, 0x15, 0x3c, 0x15, 0x28, 0x15, 0x01, 0x1c, 0x15, 0x14, 0x15, 0x00, 0x15, 0x06, 0x15, 0x06, 0x1c,
        0x36, 0x02, 0x28, 0x02, 0xaa, 0xbb, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn reads_a_header_and_says_when_it_is_cut() {
        let (header, len) = parse_header(V1).unwrap().unwrap();
        assert_eq!(len, V1.len());
        let kind = PageKind::DataV1 { levels: 10, encoding: 0, def_encoding: 3, rep_encoding: 3 };
        assert_eq!(header, PageHeader { kind, compressed: 20, uncompressed: 30, crc: Some(u32::MAX) });
        for end in 0..V1.len() {
            assert_eq!(parse_header(&V1[..end]).unwrap(), None, "{end}");
        }
    }

    #[test]
    fn refuses_what_is_no_header() {
        assert!(parse_header(&[0x00]).is_err(), "no fields");
        assert!(parse_header(&[0x15, 0x00, 0x15, 0x01, 0x15, 0x28, 0x00]).is_err(), "a negative size");
        assert!(parse_header(&[0x9e]).is_err(), "an unknown type");
        assert!(parse_header(&[0x98, 0xff, 0xff, 0xff, 0x7f]).is_err(), "a huge string");
        assert!(parse_header(&[0x9c; 64]).is_err(), "deep nesting");
    }
}
