//! Files of the `parquet` crate's writer: every type, encoding, codec and page version.

use std::sync::Arc;

use ::parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use ::parquet::column::writer::ColumnWriter;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::*;
use crate::format::parquet::footer::{footer_len, read_footer};
use crate::format::parquet::{FileFooter, Outcome, decode_stream};

/// A row of the column.
#[derive(Debug, Clone)]
pub(super) enum Row {
    /// The struct around the list is null.
    NullStruct,
    /// The list is null.
    Null,
    /// The list is there.
    List(Vec<i32>),
}

/// A file to be written.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) bits: u8,
    pub(super) signed: bool,
    pub(super) nullable: [bool; 3],
    pub(super) form: usize,
    pub(super) groups: Vec<Vec<Row>>,
    pub(super) codec: usize,
    pub(super) encoding: usize,
    pub(super) v2: bool,
    pub(super) page_bytes: usize,
    pub(super) page_rows: usize,
    pub(super) dictionary_bytes: usize,
    pub(super) statistics: usize,
}

const CODECS: usize = 7;

impl Case {
    fn message(&self) -> String {
        let physical = if self.bits == 64 { "int64" } else { "int32" };
        let annotation = match (self.bits, self.signed, self.form) {
            (32 | 64, true, 1) => String::new(),
            _ => format!(" (INTEGER({},{}))", self.bits, self.signed),
        };
        let word = |nullable| if nullable { "optional" } else { "required" };
        let [outer, list, element] = self.nullable.map(word);
        let leaf = format!("{physical} element{annotation}");
        let inner = match self.form {
            0 | 1 => format!("{list} group tokens (LIST) {{ repeated group list {{ {element} {leaf}; }} }}"),
            2 => format!("{list} group tokens (LIST) {{ repeated {physical} array{annotation}; }}"),
            _ => format!("repeated {physical} tokens{annotation};"),
        };
        format!("message m {{ {outer} group a {{ {inner} }} required int64 id; }}")
    }

    /// Definition levels of a null struct, a null list, an empty list and a token.
    fn defs(&self) -> [i16; 4] {
        let [outer, list, element] = self.nullable.map(i16::from);
        let (list, element) = match self.form {
            0 | 1 => (list, element),
            2 => (list, 0),
            _ => (0, 0),
        };
        [0, outer, outer + list, outer + list + 1 + element]
    }

    /// The documents that are to be read.
    pub(super) fn documents(&self) -> Vec<Vec<Vec<i32>>> {
        let document = |row: &Row| match row {
            Row::List(tokens) => tokens.clone(),
            Row::Null | Row::NullStruct => Vec::new(),
        };
        self.groups.iter().map(|group| group.iter().map(document).collect()).collect()
    }

    /// The file.
    pub(super) fn write(&self) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(&self.message()).unwrap());
        let compression = match self.codec {
            0 => Compression::UNCOMPRESSED,
            1 => Compression::SNAPPY,
            2 => Compression::GZIP(GzipLevel::default()),
            3 => Compression::BROTLI(BrotliLevel::default()),
            4 => Compression::LZ4,
            5 => Compression::ZSTD(ZstdLevel::default()),
            _ => Compression::LZ4_RAW,
        };
        let encoding = [Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::BYTE_STREAM_SPLIT][self.encoding % 3];
        let statistics = [EnabledStatistics::None, EnabledStatistics::Chunk, EnabledStatistics::Page];
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_encoding(encoding)
            .set_dictionary_enabled(self.encoding >= 3)
            .set_dictionary_page_size_limit(self.dictionary_bytes)
            .set_data_page_size_limit(self.page_bytes)
            .set_data_page_row_count_limit(self.page_rows)
            .set_write_batch_size(7)
            .set_statistics_enabled(statistics[self.statistics])
            .set_writer_version(if self.v2 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 })
            .build();
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        let [null_struct, null, empty, token] = self.defs();
        for group in &self.groups {
            let (mut defs, mut reps, mut values) = (Vec::new(), Vec::new(), Vec::new());
            for row in group {
                let tokens: &[i32] = match row {
                    Row::List(tokens) => tokens,
                    Row::Null | Row::NullStruct => &[],
                };
                reps.extend((0..tokens.len().max(1)).map(|i| i16::from(i > 0)));
                match row {
                    Row::NullStruct => defs.push(null_struct),
                    Row::Null => defs.push(null),
                    Row::List(tokens) if tokens.is_empty() => defs.push(empty),
                    Row::List(tokens) => defs.extend(tokens.iter().map(|_| token)),
                }
                values.extend_from_slice(tokens);
            }
            let mut row_group = writer.next_row_group().unwrap();
            let mut column = row_group.next_column().unwrap().unwrap();
            match column.untyped() {
                ColumnWriter::Int32ColumnWriter(writer) => {
                    writer.write_batch(&values, Some(&defs), Some(&reps)).unwrap();
                }
                ColumnWriter::Int64ColumnWriter(writer) => {
                    let values: Vec<i64> = values.iter().map(|value| i64::from(*value)).collect();
                    writer.write_batch(&values, Some(&defs), Some(&reps)).unwrap();
                }
                _ => unreachable!(),
            }
            column.close().unwrap();
            let mut column = row_group.next_column().unwrap().unwrap();
            let ColumnWriter::Int64ColumnWriter(writer) = column.untyped() else { unreachable!() };
            let ids: Vec<i64> = (0..group.len() as i64).collect();
            writer.write_batch(&ids, None, None).unwrap();
            column.close().unwrap();
            row_group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }
}

/// A file's footer.
pub(super) fn footer(file: &[u8]) -> Result<FileFooter> {
    let size = file.len() as u64;
    let len = footer_len(size, &file[file.len().saturating_sub(8)..], &Place::file("f"))? as usize;
    read_footer(&file[file.len() - 8 - len..file.len() - 8], size, &Place::file("f"))
}

pub(super) fn cases(max_groups: usize, max_rows: usize) -> impl Strategy<Value = Case> {
    let types = (prop::sample::select(vec![8_u8, 16, 32, 64]), any::<bool>());
    let shape = (types, any::<[bool; 3]>(), 0..4_usize, 0..3_usize, 0..4_u32);
    let writer = (0..CODECS, 0..4_usize, any::<bool>(), 1..5000_usize, 1..200_usize, 1..2000_usize);
    (shape, writer).prop_flat_map(move |(shape, writer)| {
        let ((bits, signed), nullable, form, statistics, spread) = shape;
        let (codec, encoding, v2, page_bytes, page_rows, dictionary_bytes) = writer;
        let high = if bits >= 32 { i64::from(i32::MAX) } else { (1 << (bits - u8::from(signed))) - 1 };
        let low = if signed { -high - 1 } else { 0 };
        // Few distinct values make dictionaries last; many make them give up.
        let divisor = [1, 100, 1 << 20, 1 << 27][spread as usize];
        let tokens = (low / divisor..=high / divisor).prop_map(|value| value as i32);
        let length = prop_oneof![8 => 1..20_usize, 1 => 20..3000_usize, 1 => Just(0)];
        let list = length.prop_flat_map(move |len| prop::collection::vec(tokens.clone(), len)).prop_map(Row::List);
        let row = prop_oneof![10 => list, 1 => Just(Row::Null), 1 => Just(Row::NullStruct)];
        let groups = prop::collection::vec(prop::collection::vec(row, 0..=max_rows), 1..=max_groups);
        groups.prop_map(move |groups| Case {
            bits,
            signed,
            nullable,
            form,
            groups,
            codec,
            encoding,
            v2,
            page_bytes,
            page_rows,
            dictionary_bytes,
            statistics,
        })
    })
}

/// Where the sink of another reader broke off: some rows, the last of them perhaps not whole.
fn broken_off(documents: &[Vec<i32>], at: prop::sample::Index) -> Delivered {
    let Some(rows) = at.index(documents.len() + 1).checked_sub(1) else { return Delivered::default() };
    let before: usize = documents[..rows].iter().map(Vec::len).sum();
    let part = documents[rows].len().div_ceil(2);
    Delivered { rows: rows as u64 + 1, tokens: (before + part) as u64 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(case in cases(3, 60), steps in prop::collection::vec(0..300_usize, 1..8), at: prop::sample::Index) {
        let file = case.write();
        let footer = footer(&file).unwrap();
        let column = footer.column("a.tokens", &place()).unwrap();
        let documents = case.documents();
        prop_assert_eq!(footer.row_groups.len(), documents.len());
        prop_assert_eq!(footer.rows, documents.iter().map(|group| group.len() as u64).sum::<u64>());
        for ((group, footer), documents) in column.chunks.iter().zip(&footer.row_groups).zip(&documents) {
            let chunk = group.chunk;
            prop_assert_eq!((footer.rows, chunk.rows), (documents.len() as u64, documents.len() as u64));
            let bytes = &file[chunk.start as usize..(chunk.start + chunk.len) as usize];
            prop_assert_eq!(decode(&chunk, bytes, false, &steps).unwrap(), (Collected::of(documents), None));
            prop_assert_eq!(decode(&chunk, bytes, true, &steps).unwrap(), (Collected::lengths_of(documents), None));
            prop_assert_eq!(decode_slowly(&chunk, bytes, false, Delivered::default()).unwrap(), Collected::of(documents));
            prop_assert_eq!(decode_slowly(&chunk, bytes, true, Delivered::default()).unwrap(), Collected::lengths_of(documents));
            // The other reader goes on where this one stopped.
            let delivered = broken_off(documents, at);
            let rest = decode_slowly(&chunk, bytes, false, delivered).unwrap();
            prop_assert_eq!(&rest.values, &documents.concat()[delivered.tokens as usize..]);
            let tokens: usize = documents.iter().map(Vec::len).sum();
            let full = documents.iter().filter(|document| !document.is_empty()).count();
            prop_assert!(group.tokens.is_none_or(|found| found == tokens as u64), "{:?}", group);
            prop_assert!(group.documents.is_none_or(|found| found == full as u64), "{:?}", group);
            if case.statistics > 0 {
                prop_assert!(group.tokens.is_some() && group.documents.is_some(), "{:?}", group);
            }
        }
    }
}

#[test]
fn a_reused_decoder_forgets_the_chunk_before() {
    let tokens = |range: std::ops::Range<i32>| vec![Row::List(range.collect()), Row::Null];
    let case = Case {
        bits: 32,
        signed: true,
        nullable: [true; 3],
        form: 0,
        groups: vec![tokens(0..900), tokens(5..9), vec![], tokens(100..300)],
        codec: 5,
        encoding: 3,
        v2: false,
        page_bytes: 100,
        page_rows: 10,
        dictionary_bytes: 1 << 20,
        statistics: 1,
    };
    let file = case.write();
    let footer = footer(&file).unwrap();
    let mut decoder = ChunkDecoder::new(LIMITS);
    let mut buffer = Vec::new();
    for (group, documents) in footer.columns[0].chunks.iter().zip(case.documents()) {
        let mut sink = Collected::default();
        let mut rest = &file[group.chunk.start as usize..];
        let mut fill = |buffer: &mut Vec<u8>, skip: usize, want: usize| {
            assert_eq!(skip, 0);
            let (now, later) = rest.split_at(want - buffer.len());
            buffer.extend_from_slice(now);
            rest = later;
            Ok(())
        };
        let done = decode_stream(&mut decoder, &group.chunk, place(), &mut fill, &mut buffer, &mut sink).unwrap();
        assert_eq!((done, sink), (Outcome::Complete, Collected::of(&documents)));
    }
    assert_eq!(footer.columns.len(), 1);
    assert_eq!(footer.schema.as_ref().unwrap().fields().len(), 2);
    assert_eq!(footer.fields[1], ("id".to_owned(), "int64".to_owned()));
}

#[test]
fn a_column_that_is_none_is_explained() {
    let case = Case {
        bits: 32,
        signed: true,
        nullable: [false; 3],
        form: 3,
        groups: vec![],
        codec: 0,
        encoding: 0,
        v2: true,
        page_bytes: 100,
        page_rows: 10,
        dictionary_bytes: 100,
        statistics: 0,
    };
    let footer = footer(&case.write()).unwrap();
    assert_eq!(footer.column("a.tokens", &place()).unwrap().chunks, []);
    let of_type =
        "expected column \"id\" to be a list of integers, found int64\nhint: the lists of integers are: a.tokens";
    assert_eq!(footer.why_not("id"), of_type);
    assert!(footer.why_not("a").contains("found struct"));
    let missing = "expected a column \"tokens\", found none of that name\nhint: the columns are: a, id; the lists of \
                   integers among them: a.tokens";
    assert_eq!(footer.why_not("tokens"), missing);
}

#[test]
fn a_file_that_is_none_is_explained() {
    let place = Place::file("f");
    let fault = |size, tail: &[u8]| footer_len(size, tail, &place).unwrap_err().to_string();
    assert_eq!(fault(5, b"PAR1x"), "f: expected a Parquet file of at least 12 bytes, found 5");
    assert!(fault(100, b"\x01\x00\x00\x00PARE").contains("encrypted"));
    assert!(fault(100, b"\x01\x00\x00\x00AR\x001").contains("ends with \"PAR1\", found \"AR\\x001\""));
    assert!(fault(100, b"\x59\x00\x00\x00PAR1").contains("within the file's 100 bytes, found one of 89 bytes"));
    assert_eq!(footer_len(100, b"\x58\x00\x00\x00PAR1", &place).unwrap(), 88);
}
