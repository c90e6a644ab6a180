//! The saved index: one Arrow IPC file, with one row a file of the dataset.
//!
//! | column | holds |
//! | --- | --- |
//! | `path`, `size` | as listed, below the root |
//! | `modified`, `etag` | the version: nanoseconds since 1970, or the entity tag; both null if the store has neither |
//! | `rows`, `footer_digest` | rows of all row groups; xxh3-128 of the footer's bytes, little-endian |
//! | `row_groups` | list of their rows |
//! | `column.NAME` | for each token column: null if the file has none of that name, or else a list as long as `row_groups` of the chunk's description, but for its rows, which are the row group's; `tokens`, `documents` are null while not counted |
//!
//! Metadata of the schema: `headrace.index` is the layout's version, `headrace.request` the digest of what was
//! opened. Metadata of the footer: `headrace.checksum` is `xxh3-128:` and the digest, in hex, of the whole file with
//! those 32 digits set to `0`. It is compared before anything is parsed. A file that is damaged, or of another
//! version, is as good as none.

use std::collections::HashMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, Int16Array, Int64Array, ListArray, RecordBatch,
    StringArray, StructArray, UInt8Array, UInt32Array, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Fields, Int16Type, Int64Type, UInt8Type, UInt32Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use xxhash_rust::xxh3::xxh3_128;

use crate::format::parquet::{TokenChunk, TokenShape};
use crate::index::compact::ColumnBuilder;
use crate::index::table::{Table, TableBuilder, TableRef};
use crate::index::{FileEntry, TokenColumn, UNKNOWN};
use crate::store::{Object, Version};

/// The layout's version: another one is read anew rather than understood.
const VERSION: &str = "3";
const VERSION_KEY: &str = "headrace.index";
const REQUEST_KEY: &str = "headrace.request";
const CHECKSUM_KEY: &str = "headrace.checksum";
const CHECKSUM_PREFIX: &str = "xxh3-128:";
const COLUMN_PREFIX: &str = "column.";
const DIGITS: usize = 32;

/// Where indexes are kept unless a user says otherwise; `None` on a machine without a home.
pub fn default_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("HEADRACE_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("headrace")))
        .or_else(|| std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".cache/headrace")))
}

/// The name of the index of a request (see [`crate::index::listing::Listing::request`]) in a cache folder.
pub(crate) fn file_in(folder: &Path, request: &str) -> PathBuf {
    folder.join("index").join(format!("{:032x}.arrow", xxh3_128(request.as_bytes())))
}

/// The bytes of a saved index.
pub(crate) fn encode(table: TableRef<'_>, request: &str) -> Result<Vec<u8>, ArrowError> {
    let batch = to_batch(table)?;
    let metadata = HashMap::from([
        (VERSION_KEY.to_owned(), VERSION.to_owned()),
        (REQUEST_KEY.to_owned(), format!("{:032x}", xxh3_128(request.as_bytes()))),
    ]);
    let schema = batch.schema().as_ref().clone().with_metadata(metadata);
    let mut writer = FileWriter::try_new(Vec::new(), &schema)?;
    writer.write(&batch.with_schema(Arc::new(schema))?)?;
    writer.write_metadata(CHECKSUM_KEY, format!("{CHECKSUM_PREFIX}{}", "0".repeat(DIGITS)));
    writer.finish()?;
    let mut bytes = writer.into_inner()?;
    let at = checksum_at(&bytes).ok_or_else(|| ArrowError::IpcError("no place for the checksum".to_owned()))?;
    let digest = format!("{:032x}", xxh3_128(&bytes));
    bytes[at..at + DIGITS].copy_from_slice(digest.as_bytes());
    Ok(bytes)
}

/// What a saved index holds, or why it cannot be used.
pub(crate) fn decode(mut bytes: Vec<u8>) -> Result<Table, String> {
    let at = checksum_at(&bytes).ok_or("it has no checksum")?;
    let wanted = String::from_utf8_lossy(&bytes[at..at + DIGITS]).into_owned();
    bytes[at..at + DIGITS].fill(b'0');
    if format!("{:032x}", xxh3_128(&bytes)) != wanted {
        return Err("its checksum does not match".to_owned());
    }
    let said = |e: ArrowError| e.to_string();
    let reader = FileReader::try_new(Cursor::new(bytes), None).map_err(said)?;
    let schema = reader.schema();
    let version = schema.metadata().get(VERSION_KEY).map(String::as_str);
    if version != Some(VERSION) {
        return Err(format!("expected version {VERSION}, found {}", version.unwrap_or("none")));
    }
    let mut table = Table::default();
    for batch in reader {
        if !table.files.is_empty() {
            return Err("expected one record batch".to_owned());
        }
        table = from_batch(&batch.map_err(said)?).ok_or("its columns are not as expected")?;
    }
    Ok(table)
}

/// Whether bytes look like an index of any version, so that they may be written over.
pub(crate) fn is_index(bytes: &[u8]) -> bool {
    bytes.starts_with(b"ARROW1") && find_last(bytes, VERSION_KEY.as_bytes()).is_some()
}

/// Where the digits of the checksum are: near the end, in the footer.
fn checksum_at(bytes: &[u8]) -> Option<usize> {
    let at = find_last(bytes, CHECKSUM_PREFIX.as_bytes())? + CHECKSUM_PREFIX.len();
    (at + DIGITS <= bytes.len()).then_some(at)
}

fn find_last(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).rposition(|window| window == wanted)
}

fn chunk_fields() -> Fields {
    let field = |name: &str, kind: DataType| Field::new(name, kind, false);
    Fields::from(vec![
        field("value_bytes", DataType::UInt8),
        field("bits", DataType::UInt8),
        field("signed", DataType::Boolean),
        field("max_def", DataType::Int16),
        field("list_def", DataType::Int16),
        field("codec", DataType::UInt8),
        field("encodings", DataType::UInt32),
        field("start", DataType::UInt64),
        field("len", DataType::UInt64),
        field("levels", DataType::UInt64),
        field("narrow", DataType::Boolean),
        Field::new("tokens", DataType::UInt64, true),
        Field::new("documents", DataType::UInt64, true),
    ])
}

fn list(values: ArrayRef, offsets: Vec<i32>, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), false));
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    Ok(Arc::new(ListArray::try_new(field, offsets, values, nulls)?))
}

fn to_batch(table: TableRef<'_>) -> Result<RecordBatch, ArrowError> {
    let files = table.files;
    let starts = table.starts();
    let offset = |at: usize| {
        i32::try_from(at).map_err(|_| ArrowError::InvalidArgumentError(format!("{at} row groups are too many")))
    };
    let offsets = starts.iter().map(|at| offset(*at)).collect::<Result<Vec<_>, _>>()?;
    let u64s = |values: &mut dyn Iterator<Item = u64>| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(values)) };
    let groups = u64s(&mut table.row_groups.rows().iter().copied());
    let modified = |file: &FileEntry| match file.object.version {
        Version::Modified(time) => Some(time),
        _ => None,
    };
    let tag = |file: &FileEntry| match &file.object.version {
        Version::ETag(tag) => Some(tag.clone()),
        _ => None,
    };
    let digests = FixedSizeBinaryArray::try_from_iter(files.iter().map(|file| file.footer_digest.to_le_bytes()))?;
    let mut columns: Vec<(String, ArrayRef, bool)> = vec![
        ("path".to_owned(), Arc::new(StringArray::from_iter_values(files.iter().map(|f| &f.object.path))), false),
        ("size".to_owned(), u64s(&mut files.iter().map(|file| file.object.size)), false),
        ("modified".to_owned(), Arc::new(files.iter().map(modified).collect::<Int64Array>()), true),
        ("etag".to_owned(), Arc::new(files.iter().map(tag).collect::<StringArray>()), true),
        ("rows".to_owned(), u64s(&mut files.iter().map(|file| file.rows)), false),
        ("footer_digest".to_owned(), Arc::new(digests), false),
        ("row_groups".to_owned(), list(groups, offsets, None)?, false),
    ];
    for column in table.columns {
        columns.push((format!("{COLUMN_PREFIX}{}", column.name), column_array(column, &starts)?, true));
    }
    RecordBatch::try_from_iter_with_nullable(columns)
}

fn column_array(column: &TokenColumn, starts: &[usize]) -> Result<ArrayRef, ArrowError> {
    let mut offsets = vec![0_i32];
    let mut present = Vec::with_capacity(starts.len() - 1);
    let mut kept = Vec::new();
    for range in starts.windows(2).map(|pair| pair[0]..pair[1]) {
        let has = !range.clone().any(|at| column.chunks.is_missing(at));
        present.push(has);
        if has {
            kept.extend(range);
        }
        offsets.push(kept.len() as i32);
    }
    let chunks = || kept.iter().map(|at| column.chunks.get(*at));
    let known = |counts: &[u64]| -> ArrayRef {
        Arc::new(kept.iter().map(|at| Some(counts[*at]).filter(|n| *n != UNKNOWN)).collect::<UInt64Array>())
    };
    let u64s = |of: fn(TokenChunk) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(chunks().map(of))) };
    let u8s = |of: fn(TokenChunk) -> u8| -> ArrayRef { Arc::new(UInt8Array::from_iter_values(chunks().map(of))) };
    let bools =
        |of: fn(TokenChunk) -> bool| -> ArrayRef { Arc::new(chunks().map(of).map(Some).collect::<BooleanArray>()) };
    let i16s = |of: fn(TokenChunk) -> i16| -> ArrayRef { Arc::new(Int16Array::from_iter_values(chunks().map(of))) };
    let values: Vec<ArrayRef> = vec![
        u8s(|chunk| chunk.shape.value_bytes),
        u8s(|chunk| chunk.shape.bits),
        bools(|chunk| chunk.shape.signed),
        i16s(|chunk| chunk.shape.max_def),
        i16s(|chunk| chunk.shape.list_def),
        u8s(|chunk| chunk.codec),
        Arc::new(UInt32Array::from_iter_values(chunks().map(|chunk| chunk.encodings))),
        u64s(|chunk| chunk.start),
        u64s(|chunk| chunk.len),
        u64s(|chunk| chunk.levels),
        bools(|chunk| chunk.narrow),
        known(&column.tokens),
        known(&column.documents),
    ];
    let values = StructArray::try_new_with_length(chunk_fields(), values, None, kept.len())?;
    list(Arc::new(values), offsets, Some(NullBuffer::from(present)))
}

/// `None` if anything is not as [`to_batch`] writes it: the file may come from anywhere.
fn from_batch(batch: &RecordBatch) -> Option<Table> {
    let u64s = |array: &ArrayRef| array.as_primitive_opt::<UInt64Type>().cloned();
    let named = |name: &str| batch.column_by_name(name);
    let paths = named("path")?.as_string_opt::<i32>()?;
    let sizes = u64s(named("size")?)?;
    let modified = named("modified")?.as_primitive_opt::<Int64Type>()?;
    let tags = named("etag")?.as_string_opt::<i32>()?;
    let rows = u64s(named("rows")?)?;
    let digests = named("footer_digest")?.as_fixed_size_binary_opt()?;
    let groups = named("row_groups")?.as_list_opt::<i32>()?;
    let group_rows = u64s(groups.values())?;
    let mut builder = TableBuilder::default();
    for at in 0..batch.num_rows() {
        let version = match (modified.is_valid(at), tags.is_valid(at)) {
            (true, _) => Version::Modified(modified.value(at)),
            (_, true) => Version::ETag(tags.value(at).to_owned()),
            _ => Version::Unknown,
        };
        let (from, to) = (groups.value_offsets()[at] as usize, groups.value_offsets()[at + 1] as usize);
        let object = Object { path: paths.value(at).to_owned(), size: sizes.value(at), version };
        let digest = u128::from_le_bytes(digests.value(at).try_into().ok()?);
        builder.add_file(object, rows.value(at), digest, (from..to).map(|group| group_rows.value(group)));
    }
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        if let Some(name) = field.name().strip_prefix(COLUMN_PREFIX) {
            let column = column_from(name, array.as_list_opt::<i32>()?, builder.files())?;
            builder.add_column(name, column);
        }
    }
    Some(builder.finish())
}

fn column_from(name: &str, array: &ListArray, files: &[FileEntry]) -> Option<ColumnBuilder> {
    let values = array.values().as_struct_opt()?;
    let u64s = |name: &str| values.column_by_name(name)?.as_primitive_opt::<UInt64Type>();
    let u8s = |name: &str| values.column_by_name(name)?.as_primitive_opt::<UInt8Type>();
    let i16s = |name: &str| values.column_by_name(name)?.as_primitive_opt::<Int16Type>();
    let (value_bytes, bits, codec) = (u8s("value_bytes")?, u8s("bits")?, u8s("codec")?);
    let signed = values.column_by_name("signed")?.as_boolean_opt()?;
    let narrow = values.column_by_name("narrow")?.as_boolean_opt()?;
    let (max_def, list_def) = (i16s("max_def")?, i16s("list_def")?);
    let encodings = values.column_by_name("encodings")?.as_primitive_opt::<UInt32Type>()?;
    let (start, len, levels) = (u64s("start")?, u64s("len")?, u64s("levels")?);
    let (tokens, documents) = (u64s("tokens")?, u64s("documents")?);
    let mut column = ColumnBuilder::new(name);
    let mut end = 0;
    for (at, file) in files.iter().enumerate() {
        end += file.row_groups as usize;
        if array.is_null(at) {
            column.fill_up(end);
            continue;
        }
        let range = array.value_offsets()[at] as usize..array.value_offsets()[at + 1] as usize;
        if range.len() != file.row_groups as usize {
            return None;
        }
        for chunk in range {
            let end = start.value(chunk).checked_add(len.value(chunk))?;
            if value_bytes.value(chunk) == 0 || end > file.object.size {
                return None;
            }
            let found = TokenChunk {
                shape: TokenShape {
                    value_bytes: value_bytes.value(chunk),
                    bits: bits.value(chunk),
                    signed: signed.value(chunk),
                    max_def: max_def.value(chunk),
                    list_def: list_def.value(chunk),
                },
                codec: codec.value(chunk),
                encodings: encodings.value(chunk),
                start: start.value(chunk),
                len: len.value(chunk),
                levels: levels.value(chunk),
                // The row group's, which the column gets when it is whole.
                rows: 0,
                narrow: narrow.value(chunk),
            };
            let known = |counts: &UInt64Array| if counts.is_valid(chunk) { counts.value(chunk) } else { UNKNOWN };
            column.push(&found, known(tokens), known(documents));
        }
    }
    Some(column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk() -> impl Strategy<Value = (TokenChunk, u64, u64)> {
        let count = || prop_oneof![4 => 0..1_000_000_u64, 1 => Just(UNKNOWN)];
        (any::<bool>(), any::<u32>(), 0..500_u64, 0..500_u64, any::<u64>(), any::<u8>(), count(), count()).prop_map(
            |(signed, encodings, start, len, levels, codec, tokens, documents)| {
                let shape = TokenShape { value_bytes: 4, bits: 16, signed, max_def: 3, list_def: 2 };
                let narrow = encodings % 2 == 0;
                (TokenChunk { shape, codec, encodings, start, len, levels, rows: 0, narrow }, tokens, documents)
            },
        )
    }

    fn table() -> impl Strategy<Value = Table> {
        let version = prop_oneof![
            any::<i64>().prop_map(Version::Modified),
            "\"[a-f0-9]{4}\"".prop_map(Version::ETag),
            Just(Version::Unknown)
        ];
        let group = (any::<u64>(), proptest::option::of(chunk()));
        let file = ("\\PC{0,12}", 1000..2000_u64, version, any::<u128>(), proptest::collection::vec(group, 0..4));
        (proptest::collection::vec(file, 1..6), any::<bool>()).prop_map(|(files, column)| {
            let mut table = TableBuilder::default();
            let mut tokens = ColumnBuilder::new("a.b");
            let mut end = 0;
            for (path, size, version, footer_digest, groups) in files {
                let object = Object { path, size, version };
                table.add_file(object, size, footer_digest, groups.iter().map(|(rows, _)| *rows));
                end += groups.len();
                if let Some(chunks) = groups.iter().map(|(_, chunk)| *chunk).collect::<Option<Vec<_>>>() {
                    chunks.iter().for_each(|(chunk, count, documents)| tokens.push(chunk, *count, *documents));
                }
                tokens.fill_up(end);
            }
            if column {
                table.add_column("a.b", tokens);
            }
            table.finish()
        })
    }

    proptest! {
        #[test]
        fn a_saved_index_comes_back(table in table()) {
            let bytes = encode(table.borrow(), "request").expect("encode");
            prop_assert_eq!(&bytes, &encode(table.borrow(), "request").expect("encode"), "the same bytes each time");
            prop_assert!(is_index(&bytes));
            let back = decode(bytes).expect("decode");
            prop_assert_eq!(&back.files, &table.files);
            prop_assert_eq!(&back.row_groups, &table.row_groups);
            prop_assert_eq!(&back.columns, &table.columns);
        }

        #[test]
        fn a_damaged_index_is_none(table in table(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let mut bytes = encode(table.borrow(), "request").expect("encode");
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(decode(bytes.clone()).is_err());
            bytes.truncate(at);
            prop_assert!(decode(bytes).is_err());
        }
    }
}
