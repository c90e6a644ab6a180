//! Tables against the `arrow` and `parquet` crates' own writers. Python's tests compare them with pyarrow's.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;

use super::Table;
use super::ipc::{self, Dictionaries, Layout};
use super::row_group::RowGroup;
use crate::cancel::Cancel;
use crate::error::{Place, Result};
use crate::format::parquet::footer::{TAIL_BYTES, footer_len, parse};

fn place() -> Place {
    Place::file("x")
}

fn sample(rows: i32) -> RecordBatch {
    let lists = (0..rows).map(|row| (row % 3 != 0).then(|| (0..row % 4).map(Some).collect::<Vec<_>>()));
    let words: DictionaryArray<Int32Type> =
        (0..rows).map(|row| ["a", "b", "c"].get(row as usize % 4).copied()).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("n", Arc::new((0..i64::from(rows)).collect::<Int64Array>())),
        ("text", Arc::new((0..rows).map(|row| Some(format!("row {row}"))).collect::<StringArray>())),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("word", Arc::new(words)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn parquet_file(batch: &RecordBatch, group_rows: usize) -> Vec<u8> {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    out
}

fn read_parquet(file: &[u8], columns: Option<&[String]>) -> Result<Vec<(usize, Table)>> {
    let size = file.len() as u64;
    let tail = &file[file.len().saturating_sub(TAIL_BYTES as usize)..];
    let len = footer_len(size, tail, &place())? as usize;
    let end = file.len() - TAIL_BYTES as usize;
    let (_, metadata) = parse(&file[end - len..end], size, &place())?;
    let metadata = Arc::new(metadata);
    let mut tables = Vec::new();
    for number in 0..metadata.num_row_groups() {
        let group = RowGroup::new(Arc::clone(&metadata), number, columns, &place())?;
        let part =
            |range: &std::ops::Range<u64>| Bytes::copy_from_slice(&file[range.start as usize..range.end as usize]);
        let read = group.ranges().iter().map(|range| (range.end - range.start) as usize).sum();
        let table = group.decode(group.ranges().iter().map(part).collect(), &Cancel::new())?;
        // With what lies between them it is the same.
        let merged = RowGroup::new(Arc::clone(&metadata), number, columns, &place())?.merged(u64::MAX);
        assert!(merged.ranges().len() <= 1);
        let again = merged.decode(merged.ranges().iter().map(part).collect(), &Cancel::new())?;
        assert_eq!(table, again);
        tables.push((read, table));
    }
    Ok(tables)
}

fn read_ipc(file: &[u8], columns: Option<&[String]>) -> Result<Vec<Table>> {
    let size = file.len() as u64;
    let slice =
        |start: u64, len: u64| &file[(start as usize).min(file.len())..((start + len) as usize).min(file.len())];
    let layout = if file.starts_with(ipc::MAGIC) {
        let tail = slice(size.saturating_sub(ipc::TAIL_BYTES), ipc::TAIL_BYTES);
        let len = ipc::footer_len(size, tail, &place())?;
        let mut layout = ipc::read_footer(slice(size - ipc::TAIL_BYTES - len, len), size, &place())?;
        for (number, message) in layout.unread().into_iter().enumerate() {
            layout.add_rows(number, slice(message.start, message.header), &place())?;
        }
        layout
    } else {
        let (mut layout, mut at) = (None, 0);
        while let Some(len) = ipc::header_len(at, slice(at, ipc::PREFIX_BYTES), size, &place())? {
            let header = slice(at, len);
            match &mut layout {
                None => {
                    let (begun, body) = Layout::of_stream(header, &place())?;
                    layout = Some(begun);
                    at = (at + len).saturating_add(body).min(size);
                }
                Some(layout) => at = layout.add(at, header, size, &place())?,
            }
        }
        layout.ok_or_else(|| crate::Error::data(place(), "empty"))?
    };
    let read = |number: usize| {
        let mut held = Dictionaries::default();
        for message in layout.dictionaries_of(number) {
            let range = message.range();
            let bytes = slice(range.start, range.end - range.start).to_vec();
            layout.decode_dictionary(&message, bytes, &mut held, &place())?;
        }
        let range = layout.batches[number].range();
        let bytes = slice(range.start, range.end - range.start).to_vec();
        layout.decode(number, bytes, &held, columns, &place())
    };
    (0..layout.batches.len()).map(read).collect()
}

fn ipc_file(batch: &RecordBatch, part: usize, stream: bool, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let parts = (0..batch.num_rows()).step_by(part).map(|at| batch.slice(at, part.min(batch.num_rows() - at)));
    let mut out = Vec::new();
    if stream {
        let mut writer = StreamWriter::try_new_with_options(&mut out, &batch.schema(), options).unwrap();
        parts.for_each(|part| writer.write(&part).unwrap());
        writer.finish().unwrap();
    } else {
        let mut writer = FileWriter::try_new_with_options(&mut out, &batch.schema(), options).unwrap();
        parts.for_each(|part| writer.write(&part).unwrap());
        writer.finish().unwrap();
    }
    out
}

#[test]
fn row_groups_come_back_and_only_their_columns_are_wanted() {
    let batch = sample(250);
    let file = parquet_file(&batch, 100);
    let tables = read_parquet(&file, None).unwrap();
    assert_eq!(tables.iter().map(|(_, table)| table.rows()).collect::<Vec<_>>(), [100, 100, 50]);
    let whole = tables[1].1.whole().unwrap();
    assert_eq!(whole.column(0).as_ref(), &(100..200).collect::<Int64Array>());
    assert_eq!(whole.column(1).data_type(), &DataType::Utf8View);
    assert_eq!(whole.column(3).data_type(), &DataType::Utf8View, "a dictionary is resolved");
    assert_eq!(whole.column(2).as_ref(), batch.column(2).slice(100, 100).as_ref());
    let some = read_parquet(&file, Some(&["list".to_owned()])).unwrap();
    assert_eq!(some[0].1.schema.fields().len(), 1);
    assert!(some[0].0 < tables[0].0 / 2, "{} of {}", some[0].0, tables[0].0);
    let message = read_parquet(&file, Some(&["gone".to_owned()])).unwrap_err().to_string();
    assert!(message.contains("expected a column \"gone\"") && message.contains("n, text, list, word"), "{message}");
}

#[test]
fn batches_of_files_and_streams_come_back() {
    let batch = sample(25);
    for stream in [false, true] {
        for compression in [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)] {
            let file = ipc_file(&batch, 10, stream, compression);
            let tables = read_ipc(&file, None).unwrap();
            assert_eq!(tables.len(), 3);
            for (number, table) in tables.iter().enumerate() {
                assert_eq!(table.whole().unwrap(), batch.slice(number * 10, table.rows()));
            }
            let some = read_ipc(&file, Some(&["word".to_owned(), "n".to_owned()])).unwrap();
            assert_eq!(some[2].whole().unwrap(), batch.slice(20, 5).project(&[0, 3]).unwrap());
            assert!(read_ipc(&file[..file.len() / 2], None).is_err());
        }
    }
}

#[test]
fn what_a_compressed_buffer_declares_is_not_believed() {
    let batch = RecordBatch::try_new(
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, false)])),
        vec![Arc::new(Int32Array::from(vec![7; 1000]))],
    )
    .unwrap();
    let mut file = ipc_file(&batch, 1000, true, Some(CompressionType::ZSTD));
    let at = file.windows(8).rposition(|bytes| bytes == 4000_i64.to_le_bytes()).unwrap();
    file[at..at + 8].copy_from_slice(&(1_i64 << 40).to_le_bytes());
    let message = read_ipc(&file, None).unwrap_err().to_string();
    assert!(message.contains("1099511627776 declared"), "{message}");
}

#[test]
fn memory_that_is_shared_counts_once() {
    let numbers: ArrayRef = Arc::new((0..1000_i64).collect::<Int64Array>());
    let batch = RecordBatch::try_from_iter([("a", Arc::clone(&numbers)), ("b", numbers)]).unwrap();
    assert_eq!(Table::new(batch.schema(), vec![batch], 1000).bytes(), 8000);
}

proptest! {
    #[test]
    fn damage_never_panics(at in any::<prop::sample::Index>(), to: u8, kind in 0_usize..4) {
        let batch = sample(60);
        let mut file = match kind {
            0 => parquet_file(&batch, 25),
            1 => ipc_file(&batch, 20, false, None),
            2 => ipc_file(&batch, 20, true, Some(CompressionType::LZ4_FRAME)),
            _ => ipc_file(&batch, 20, false, Some(CompressionType::ZSTD)),
        };
        let at = at.index(file.len());
        file[at] = to;
        if kind == 0 {
            let _ = read_parquet(&file, None);
        } else {
            let _ = read_ipc(&file, None);
        }
    }
}
