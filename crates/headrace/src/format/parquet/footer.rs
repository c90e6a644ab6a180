//! Footers: where each token column's chunks lie in a file, and what the footer alone says about their tokens.
//!
//! The bytes are parsed by the `parquet` crate; here everything that the decoder relies on is checked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::parquet::arrow::parquet_to_arrow_schema;
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use ::parquet::file::statistics::Statistics;
use arrow::datatypes::SchemaRef;

use super::schema::{self, Leaf};
use super::thrift::check_footer;
use super::{TokenChunk, TokenShape};
use crate::error::{Error, Place, Result};

/// Bytes at the end of a file that say how long the footer is: four of length, then `PAR1`.
pub const TAIL_BYTES: u64 = 8;

/// Bytes of the magic number at the start of a file.
const MAGIC_BYTES: u64 = 4;

/// Values that a byte of pages can stand for. A page of equal values takes some 30 bytes, and the writers known end a
/// page after a million values or fewer; what claims more is after our memory.
const MOST_LEVELS_PER_BYTE: u64 = 1 << 20;

/// Writers whose statistics count an empty or null list as one null, so that levels less nulls are tokens: seen in
/// files of parquet-cpp-arrow 10 to 26 and of parquet-rs 60, with every encoding and both page versions.
const COUNTS_EMPTY_AS_NULL: [&str; 2] = ["parquet-cpp-arrow version ", "parquet-rs version "];

/// What a file's footer says.
#[derive(Debug, Clone)]
pub struct FileFooter {
    /// Rows in all row groups.
    pub rows: u64,
    /// The row groups, in storage order.
    pub row_groups: Vec<RowGroupFooter>,
    /// The token columns, in the schema's order.
    pub columns: Vec<ColumnFooter>,
    /// The schema as Arrow has it, or why Arrow cannot have it (token columns can be read all the same).
    pub schema: std::result::Result<SchemaRef, String>,
    /// The schema's fields at the top with their types in a few words, for messages.
    pub fields: Vec<(String, String)>,
    /// Every leaf that is no token column, with its type, for messages.
    others: Vec<(String, String)>,
}

/// One row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroupFooter {
    /// Rows.
    pub rows: u64,
}

/// A token column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFooter {
    /// The name by which a user selects it: the dotted path of the list.
    pub name: String,
    /// Its number among the leaves of the file's schema.
    pub leaf: usize,
    /// Its chunks, one a row group.
    pub chunks: Vec<ChunkFooter>,
}

/// A token column in one row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkFooter {
    /// Where it lies and how to read it.
    pub chunk: TokenChunk,
    /// Its tokens, if the footer tells for certain.
    pub tokens: Option<u64>,
    /// Its documents that have at least one token, if the footer tells for certain.
    pub documents: Option<u64>,
}

impl FileFooter {
    /// The token column that a user calls `name`, or why this file has none of that name.
    pub fn column(&self, name: &str, place: &Place) -> Result<&ColumnFooter> {
        let mut named = self.columns.iter().filter(|column| column.name == name);
        match (named.next(), named.next()) {
            (Some(column), None) => Ok(column),
            (Some(_), Some(_)) => {
                let what = "expected one token column of this name, found several: a field with a dot in its name and \
                            a field of a struct";
                Err(Error::data(place.clone().in_column(name), what))
            }
            (None, _) => Err(Error::data(place.clone(), self.why_not(name))),
        }
    }

    /// Why `name` is no token column of this file: what it is instead, or which names there are.
    pub fn why_not(&self, name: &str) -> String {
        let other = self.others.iter().chain(&self.fields).find(|(other, _)| other == name);
        let list = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let tokens = list(self.columns.iter().map(|column| column.name.as_str()).collect());
        match other {
            Some((_, kind)) => format!(
                "expected column {name:?} to be a list of integers, found {kind}\nhint: the lists of integers are: {tokens}"
            ),
            None => {
                let all = list(self.fields.iter().map(|(name, _)| name.as_str()).collect());
                format!(
                    "expected a column {name:?}, found none of that name\nhint: the columns are: {all}; the lists of \
                     integers among them: {tokens}"
                )
            }
        }
    }
}

/// The length of a file's footer, from the last [`TAIL_BYTES`] bytes of the file (or all of a shorter one).
///
/// The footer ends right before them.
pub fn footer_len(file_size: u64, tail: &[u8], place: &Place) -> Result<u32> {
    let fail = |what: String| Err(Error::data(place.clone(), what));
    if file_size < MAGIC_BYTES + TAIL_BYTES {
        return fail(format!(
            "expected a Parquet file of at least {} bytes, found {file_size}",
            MAGIC_BYTES + TAIL_BYTES
        ));
    }
    let Some((_, [l0, l1, l2, l3, magic @ ..])) = tail.split_last_chunk::<8>() else {
        return fail(format!("expected the last {TAIL_BYTES} bytes of the file, found {}", tail.len()));
    };
    match magic {
        b"PAR1" => {}
        b"PARE" => {
            return fail("expected a Parquet file that is not encrypted, found an encrypted footer (PARE)".to_owned());
        }
        other => {
            return fail(format!(
                "expected a Parquet file that ends with \"PAR1\", found \"{}\"\nhint: the file may have been cut short, \
                 or be of another format",
                other.escape_ascii()
            ));
        }
    }
    let len = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
    if u64::from(len) > file_size - MAGIC_BYTES - TAIL_BYTES {
        return fail(format!("expected a footer within the file's {file_size} bytes, found one of {len} bytes"));
    }
    Ok(len)
}

/// Reads a footer: the `footer_len` bytes before a file's last eight.
pub fn read_footer(bytes: &[u8], file_size: u64, place: &Place) -> Result<FileFooter> {
    parse(bytes, file_size, place).map(|(footer, _)| footer)
}

/// The same, with all that the `parquet` crate makes of it.
pub(crate) fn parse(bytes: &[u8], file_size: u64, place: &Place) -> Result<(FileFooter, ParquetMetaData)> {
    check_footer(bytes).map_err(|flaw| Error::data(place.clone(), format!("footer: {}", flaw.0)))?;
    let metadata = catch_unwind(|| ParquetMetaDataReader::decode_metadata(bytes));
    let metadata = match metadata {
        Ok(Ok(metadata)) => metadata,
        Ok(Err(error)) => return Err(Error::data(place.clone(), format!("expected a footer, found: {error}"))),
        Err(_) => return Err(Error::data(place.clone(), "expected a footer, found bytes that are none")),
    };
    // Offsets in the footer are only checked below, and nothing of it is shared: a panic leaves nothing half done.
    let footer = catch_unwind(AssertUnwindSafe(|| {
        let data_end = file_size.saturating_sub(TAIL_BYTES).saturating_sub(bytes.len() as u64);
        Reading { metadata: &metadata, data_end, place }.file()
    }))
    .unwrap_or_else(|_| Err(Error::data(place.clone(), "expected a footer, found one that contradicts itself")))?;
    Ok((footer, metadata))
}

/// The schema as Arrow has it; with a hint that does not fit, as it would be without one.
pub(crate) fn arrow_schema(metadata: &ParquetMetaData) -> std::result::Result<SchemaRef, String> {
    let file = metadata.file_metadata();
    let convert = |hints| {
        catch_unwind(AssertUnwindSafe(|| parquet_to_arrow_schema(file.schema_descr(), hints)))
            .unwrap_or_else(|_| Err(::parquet::errors::ParquetError::General("a schema beyond Arrow".to_owned())))
    };
    convert(file.key_value_metadata()).or_else(|_| convert(None)).map(Arc::new).map_err(|error| error.to_string())
}

/// A footer that was parsed and is being checked.
struct Reading<'a> {
    metadata: &'a ParquetMetaData,
    /// Where the footer begins: no chunk lies beyond.
    data_end: u64,
    place: &'a Place,
}

impl Reading<'_> {
    fn file(&self) -> Result<FileFooter> {
        let file = self.metadata.file_metadata();
        let leaves = schema::leaves(file.schema());
        let written_by = file.created_by().unwrap_or_default();
        let counts_empty = COUNTS_EMPTY_AS_NULL.iter().any(|writer| written_by.starts_with(writer));
        let mut row_groups = Vec::with_capacity(self.metadata.num_row_groups());
        let mut columns: Vec<(TokenShape, usize, ColumnFooter)> = Vec::new();
        for (number, leaf) in leaves.iter().enumerate() {
            if let Some(shape) = leaf.shape {
                let chunks = Vec::with_capacity(self.metadata.num_row_groups());
                columns.push((shape, number, ColumnFooter { name: leaf.name.clone(), leaf: number, chunks }));
            }
        }
        let mut sum = 0_u64;
        for (number, group) in self.metadata.row_groups().iter().enumerate() {
            let place = self.place.clone().at_row_group(number as u32);
            let rows = count(group.num_rows(), "rows", &place)?;
            sum = sum.saturating_add(rows);
            if group.columns().len() != leaves.len() {
                let (wanted, found) = (leaves.len(), group.columns().len());
                return Err(Error::data(place, format!("expected {wanted} columns as in the schema, found {found}")));
            }
            for (leaf, column) in leaves.iter().zip(group.columns()) {
                self.range(column, &place.clone().in_column(&leaf.name))?;
            }
            row_groups.push(RowGroupFooter { rows });
            for (shape, number, footer) in &mut columns {
                let place = place.clone().in_column(&footer.name);
                if let Some(column) = group.columns().get(*number) {
                    footer.chunks.push(self.chunk(column, *shape, rows, counts_empty, &place)?);
                }
            }
        }
        let rows = count(file.num_rows(), "rows", self.place)?;
        if rows != sum {
            let what = format!("expected {rows} rows as the footer says, found {sum} in its row groups");
            return Err(Error::data(self.place.clone(), what));
        }
        let other = |leaf: &Leaf| leaf.shape.is_none().then(|| (leaf.name.clone(), leaf.kind.clone()));
        Ok(FileFooter {
            rows,
            row_groups,
            columns: columns.into_iter().map(|(_, _, column)| column).collect(),
            schema: arrow_schema(self.metadata),
            fields: schema::fields(file.schema()),
            others: leaves.iter().filter_map(other).collect(),
        })
    }

    /// Start and length of a column chunk, which must lie between the file's magic number and its footer.
    fn range(&self, column: &ColumnChunkMetaData, place: &Place) -> Result<(u64, u64)> {
        let len = count(column.compressed_size(), "bytes of a column chunk", place)?;
        let data = count(column.data_page_offset(), "the offset of a page", place)?;
        let dictionary = column.dictionary_page_offset().unwrap_or_default();
        let dictionary = count(dictionary, "the offset of a dictionary page", place)?;
        // At offset 0 lies the file's magic number: some writers mean by it that there is no dictionary, some (for a
        // chunk of no rows) that there are no data pages.
        let start = [data, dictionary].into_iter().filter(|offset| *offset > 0).min().unwrap_or_default();
        if len == 0 {
            return Ok((start.min(self.data_end), 0));
        }
        if column.file_path().is_some() {
            return Err(Error::data(place.clone(), "expected a column in this file, found one in another file"));
        }
        if start < MAGIC_BYTES || start.checked_add(len).is_none_or(|end| end > self.data_end) {
            let what = format!(
                "expected a column chunk within bytes {MAGIC_BYTES}..{} of the file, found {len} bytes at {start}",
                self.data_end
            );
            return Err(Error::data(place.clone(), what));
        }
        Ok((start, len))
    }

    fn chunk(
        &self,
        column: &ColumnChunkMetaData,
        shape: TokenShape,
        rows: u64,
        counts_empty: bool,
        place: &Place,
    ) -> Result<ChunkFooter> {
        let (start, len) = self.range(column, place)?;
        let levels = count(column.num_values(), "values", place)?;
        if levels < rows || (rows == 0 && levels > 0) {
            let what = format!("expected at least one level for each of {rows} rows, found {levels}");
            return Err(Error::data(place.clone(), what));
        }
        if levels > len.saturating_mul(MOST_LEVELS_PER_BYTE) && len > 0 {
            let what = format!("{levels} values in {len} bytes of pages: more than any writer puts there");
            return Err(Error::data(place.clone(), what));
        }
        if levels > 0 && len == 0 {
            return Err(Error::data(place.clone(), format!("expected pages for {levels} levels, found 0 bytes")));
        }
        let chunk = TokenChunk {
            shape,
            codec: column.compression_codec() as u8,
            encodings: column.encodings_mask().as_i32() as u32,
            start,
            len,
            levels,
            rows,
            narrow: narrow(column, &shape),
        };
        let (tokens, documents) = match histogram(column, &chunk) {
            Some((tokens, documents)) => (Some(tokens), Some(documents)),
            None if levels == 0 => (Some(0), Some(0)),
            None => match column.statistics().and_then(|statistics| statistics.null_count_opt()) {
                // More nulls than rows: some stand inside lists, which the decoder is going to refuse.
                Some(nulls) if counts_empty && nulls <= rows => {
                    let tokens = levels.checked_sub(nulls);
                    // Which of the nulls are documents shows only where all or none of them are.
                    let documents = if nulls == 0 { Some(rows) } else { tokens.filter(|tokens| *tokens == 0) };
                    (tokens, documents)
                }
                _ => (None, None),
            },
        };
        Ok(ChunkFooter { chunk, tokens, documents })
    }
}

/// Whether all tokens fit in a `u16`, as the type or the statistics say. The deprecated bounds do not count: some
/// writers compared unsigned values as signed ones for them.
fn narrow(column: &ColumnChunkMetaData, shape: &TokenShape) -> bool {
    if column.num_values() == 0 || !shape.signed && shape.bits <= 16 {
        return true;
    }
    let bounds = match column.statistics() {
        Some(statistics) if statistics.is_min_max_deprecated() => None,
        Some(Statistics::Int32(bounds)) => {
            bounds.min_opt().zip(bounds.max_opt()).map(|(a, b)| (i64::from(*a), i64::from(*b)))
        }
        Some(Statistics::Int64(bounds)) => bounds.min_opt().zip(bounds.max_opt()).map(|(a, b)| (*a, *b)),
        _ => None,
    };
    // An unsigned value beyond the signed ones shows as a negative number here.
    bounds.is_some_and(|(least, most)| 0 <= least && least <= most && most <= i64::from(u16::MAX))
}

/// Tokens and documents that are not empty, from the histogram of definition levels if it is there and adds up.
fn histogram(column: &ColumnChunkMetaData, chunk: &TokenChunk) -> Option<(u64, u64)> {
    let counts = column.definition_level_histogram()?.values();
    let TokenShape { max_def, list_def, .. } = chunk.shape;
    if counts.len() != usize::try_from(max_def).ok()? + 1 {
        return None;
    }
    let counts: Vec<u64> = counts.iter().map(|count| u64::try_from(*count).ok()).collect::<Option<_>>()?;
    let sum = |counts: &[u64]| counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
    let (empty, elements) = counts.split_at_checked(usize::try_from(list_def).ok()?)?;
    let (empty, elements) = (sum(empty)?, sum(elements)?);
    let tokens = *counts.last()?;
    let adds_up = empty.checked_add(elements) == Some(chunk.levels) && elements == tokens;
    let documents = chunk.rows.checked_sub(empty)?;
    (adds_up && documents <= tokens && (documents > 0 || tokens == 0)).then_some((tokens, documents))
}

/// A count that must not be negative.
fn count(value: i64, name: &str, place: &Place) -> Result<u64> {
    u64::try_from(value)
        .map_err(|_| Error::data(place.clone(), format!("expected {name} not to be negative, found {value}")))
}
