//! A row group of a Parquet file, or some of its columns.
//!
//! Pages are taken apart and decompressed as `format::parquet::check` does it, so that memory is bounded whatever they
//! declare; the `parquet` crate makes arrays of them. Text and binary values are read as views, which share the pages'
//! memory and have no limit on their sum; dictionaries are resolved.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ::parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use ::parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use ::parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, FieldRef, Fields};
use bytes::Bytes;

use super::{Table, choose, guarded};
use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::Limits;
use crate::format::parquet::check::{Fill, Pages, range};

/// Rows of a part of a table. Scope: a table. Evidence: lists count their elements in 32 bits, so that this many lists
/// may have 32,767 each; a table of usual size is one part, or few.
const PART_ROWS: usize = 65_536;

/// The largest page that is read. Scope: a page; a reader holds one for each column. Unit: bytes. Evidence: pages have
/// about 1 MiB, some writers make one of each column chunk; what is declared beyond is damage.
const LARGEST_PAGE: u64 = 1 << 30;

/// Ranges in order, of which neighbours are one if no more than `gap` bytes lie between them.
fn merge(ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Some columns of a row group, and the bytes that they take.
pub struct RowGroup {
    metadata: Arc<ParquetMetaData>,
    number: usize,
    mask: ProjectionMask,
    place: Place,
    ranges: Vec<Range<u64>>,
}

impl RowGroup {
    /// Chooses columns at the top of the schema by name; all of them without names. `metadata` is what
    /// [`crate::format::parquet::footer`] found to be sound.
    pub fn new(
        metadata: Arc<ParquetMetaData>,
        number: usize,
        columns: Option<&[String]>,
        place: &Place,
    ) -> Result<Self> {
        let place = place.clone().at_row_group(number as u32);
        let schema = metadata.file_metadata().schema_descr();
        let names: Vec<&str> = schema.root_schema().get_fields().iter().map(|field| field.name()).collect();
        let chosen = choose(&names, columns, &place)?;
        let mask = ProjectionMask::roots(schema, chosen);
        let Some(group) = metadata.row_groups().get(number) else {
            let found = metadata.num_row_groups();
            return Err(Error::data(place, format!("expected at least {} row groups, found {found}", number + 1)));
        };
        let mut chunks: Vec<Range<u64>> = Vec::new();
        for (leaf, column) in group.columns().iter().enumerate() {
            let (start, len) = range(column);
            if mask.leaf_included(leaf) && len > 0 {
                chunks.push(start..start + len);
            }
        }
        chunks.sort_unstable_by_key(|chunk| chunk.start);
        // Writers put chunks end to end: one read for all that lie so.
        Ok(Self { metadata, number, mask, place, ranges: merge(chunks, 0) })
    }

    /// The same in fewer reads, with what lies between two of them if that is `gap` bytes or less.
    pub fn merged(self, gap: u64) -> Self {
        Self { ranges: merge(self.ranges, gap), ..self }
    }

    /// The bytes of the file that [`Self::decode`] needs, in order and not touching.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Decodes the columns from the bytes of [`Self::ranges`].
    pub fn decode(&self, parts: Vec<Bytes>, cancel: &Cancel) -> Result<Table> {
        guarded(&self.place, "pages of values", || self.read(parts, cancel))
    }

    fn read(&self, parts: Vec<Bytes>, cancel: &Cancel) -> Result<Table> {
        let group = &self.metadata.row_groups()[self.number];
        let rows = usize::try_from(group.num_rows()).unwrap_or_default();
        let unreadable =
            |what: String| Error::data(self.place.clone(), format!("expected pages of values, found: {what}"));
        let file = self.metadata.file_metadata();
        let schema = crate::format::parquet::footer::arrow_schema(&self.metadata).map_err(|what| {
            Error::data(self.place.clone(), format!("expected a schema that Arrow has, found: {what}"))
        })?;
        let hints: Fields = schema.fields().iter().map(viewed).collect();
        let levels = parquet_to_arrow_field_levels(file.schema_descr(), self.mask.clone(), Some(&hints))
            .or_else(|_| parquet_to_arrow_field_levels(file.schema_descr(), self.mask.clone(), None))
            .map_err(|error| unreadable(error.to_string()))?;
        let fault = Fault::default();
        let chunks = Chunks { group: self, rows, parts, fault: fault.clone() };
        let reader = ParquetRecordBatchReader::try_new_with_row_groups(&levels, &chunks, PART_ROWS, None);
        let mut reader = reader.map_err(|error| fault.or(|| unreadable(error.to_string())))?;
        let schema = reader.schema();
        let mut batches: Vec<RecordBatch> = Vec::with_capacity(rows.div_ceil(PART_ROWS));
        let mut found = 0;
        while found < rows {
            cancel.check()?;
            let batch = match reader.next() {
                Some(Ok(batch)) if batch.num_rows() > 0 => batch,
                Some(Ok(_)) | None => break,
                Some(Err(error)) => return Err(fault.or(|| unreadable(error.to_string()))),
            };
            found += batch.num_rows();
            batches.push(batch);
        }
        if let Some(error) = fault.take() {
            return Err(error);
        }
        let even = batches.iter().rev().skip(1).all(|batch| batch.num_rows() == PART_ROWS);
        if found != rows || !even {
            return Err(Error::data(self.place.clone(), format!("expected {rows} rows, found {found}")));
        }
        Ok(Table::new(schema, batches, PART_ROWS))
    }
}

/// A field whose text and binary values are views, and whose dictionaries are resolved.
fn viewed(field: &FieldRef) -> FieldRef {
    Arc::new(field.as_ref().clone().with_data_type(viewed_type(field.data_type())))
}

fn viewed_type(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, value) => viewed_type(value),
        DataType::List(field) => DataType::List(viewed(field)),
        DataType::LargeList(field) => DataType::LargeList(viewed(field)),
        DataType::FixedSizeList(field, len) => DataType::FixedSizeList(viewed(field), *len),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(viewed).collect()),
        DataType::Map(field, sorted) => DataType::Map(viewed(field), *sorted),
        other => other.clone(),
    }
}

/// The first fault of a page, which would reach us as prose by way of two libraries.
#[derive(Clone, Default)]
struct Fault(Arc<Mutex<Option<Error>>>);

impl Fault {
    fn note(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn or(&self, other: impl FnOnce() -> Error) -> Error {
        self.take().unwrap_or_else(other)
    }
}

/// A row group's column chunks, as the reader asks for them.
struct Chunks<'a> {
    group: &'a RowGroup,
    rows: usize,
    parts: Vec<Bytes>,
    fault: Fault,
}

impl Chunks<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        &self.group.metadata.row_groups()[self.group.number]
    }

    /// The bytes of a chunk: a slice of one of the parts.
    fn bytes(&self, chunk: Range<u64>) -> Option<Bytes> {
        if chunk.is_empty() {
            return Some(Bytes::new());
        }
        let at = self.group.ranges.iter().position(|range| range.start <= chunk.start && chunk.end <= range.end)?;
        let (start, part) = (self.group.ranges[at].start, self.parts.get(at)?);
        let within = usize::try_from(chunk.start - start).ok()?..usize::try_from(chunk.end - start).ok()?;
        (within.end <= part.len()).then(|| part.slice(within))
    }
}

impl RowGroups for Chunks<'_> {
    fn num_rows(&self) -> usize {
        self.rows
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>, ParquetError> {
        let column = self.metadata().column(leaf);
        let (start, len) = range(column);
        let place = self.group.place.clone().in_column(column.column_path().string());
        let bytes = self.bytes(start..start + len);
        let bytes = bytes.ok_or_else(|| ParquetError::General(format!("{place}: its bytes were not read")))?;
        let fill: Fill = {
            let mut left = VecDeque::from([bytes]);
            // All at once: a copy of what is compressed, which is small beside what becomes of it.
            Box::new(move |buffer: &mut Vec<u8>, want| {
                while buffer.len() < want {
                    let Some(mut next) = left.pop_front() else { break };
                    let rest = next.split_off(next.len().min((want - buffer.len()).max(BLOCK)));
                    buffer.extend_from_slice(&next);
                    if !rest.is_empty() {
                        left.push_front(rest);
                    }
                }
                Ok(())
            })
        };
        let pages = Pages::new(column, place, Limits { page_bytes: LARGEST_PAGE }, fill);
        Ok(Box::new(OneChunk(Some(Noted { pages, fault: self.fault.clone() }))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata()))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.group.metadata
    }
}

/// Bytes that are copied from a chunk to its reader at a time.
const BLOCK: usize = 64 << 10;

/// The pages of the one chunk that there is.
struct OneChunk(Option<Noted>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(|pages| Ok(Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for OneChunk {}

/// Pages of which the first fault is kept.
struct Noted {
    pages: Pages,
    fault: Fault,
}

impl Noted {
    fn note<T>(&self, result: Result<T, ParquetError>) -> Result<T, ParquetError> {
        match result {
            Err(ParquetError::External(error)) => match error.downcast::<Error>() {
                Ok(error) => {
                    let message = error.to_string();
                    self.fault.note(match *error {
                        Error::Memory { needed, available, .. } => {
                            let what = format!("expected pages of at most {available} bytes, found one of {needed}");
                            Error::data(self.pages.place().clone(), what)
                        }
                        other => other,
                    });
                    Err(ParquetError::General(message))
                }
                Err(other) => Err(ParquetError::External(other)),
            },
            other => other,
        }
    }
}

impl Iterator for Noted {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Noted {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.pages.get_next_page();
        self.note(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        let page = self.pages.peek_next_page();
        self.note(page)
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        let page = self.pages.skip_next_page();
        self.note(page)
    }
}
