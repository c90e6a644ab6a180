//! The core on its own, from files to batches: no Python needed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::Int32Builder;
use arrow::array::{ArrayRef, ListBuilder, RecordBatch};
use headrace::cancel::Cancel;
use headrace::engine::{Engine, Next, Numbers, Options, PackSpec, Run, sources};
use headrace::index::{Index, OpenOptions, Progress};
use headrace::order::{OrderSpec, Remainder};
use headrace::pack::Specials;
use headrace::state::Steps;
use headrace::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

/// `count` documents; document d holds d % 7 tokens, all of them d.
fn write(path: &Path, documents: std::ops::Range<i32>, row_group: usize) {
    let mut lists = ListBuilder::new(Int32Builder::new());
    for document in documents {
        lists.values().append_value_n(document, document as usize % 7);
        lists.append(true);
    }
    let column: ArrayRef = Arc::new(lists.finish());
    let batch = RecordBatch::try_from_iter([("tokens", column)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(row_group)).build();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn run(folder: &Path, shuffle: bool, lanes: u64) -> Result<Arc<Run>> {
    let cancel = Cancel::new();
    let options = OpenOptions { cache_dir: Some(folder.join("_cache")), ..OpenOptions::default() };
    let url = folder.to_str().unwrap().to_owned();
    let mut index = Index::open(&[url], &options, &cancel, &Progress::new())?;
    index.count("tokens", &cancel, &Progress::new())?;
    let column = Arc::clone(index.token_column("tokens")?);
    let spec = OrderSpec { seed: 1, shuffle, lanes, window: 3 };
    let specials = Specials { bos: None, eos: Some(-1) };
    let pack = PackSpec { seq_len: 5, overlap: 0, specials, boundaries: true, wide: false, pad_id: 0 };
    Run::new(Arc::new(index), column, spec, pack, Some(2), Remainder::Drop).map(Arc::new)
}

fn options(folder: &Path, batch: u64) -> Options {
    Options {
        world: 1,
        rank: 0,
        steps: Steps::new(batch).unwrap(),
        start: 0,
        stop: None,
        skip: Vec::new(),
        workers: 2,
        memory: 64 << 20,
        prefetch: 2,
        spill: folder.join("_spill"),
    }
}

fn tokens(engine: &Engine) -> Result<Vec<i32>> {
    let mut tokens = Vec::new();
    loop {
        match engine.next(Duration::from_secs(1))? {
            Next::Batch(batch) => match &batch.arrays[0].numbers {
                Numbers::I32(numbers) => tokens.extend_from_slice(numbers),
                other => panic!("expected i32 tokens, got {other:?}"),
            },
            Next::Pending => {}
            Next::End => return Ok(tokens),
        }
    }
}

#[test]
fn storage_order_is_storage_order() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), 0..50, 8);
    write(&folder.path().join("b.parquet"), 50..90, 100);
    let run = run(folder.path(), false, 1).unwrap();
    let found = tokens(&Engine::start(run, options(folder.path(), 4)).unwrap()).unwrap();
    let document =
        |d: i32| (d % 7 > 0).then(|| std::iter::repeat_n(d, d as usize % 7).chain([-1])).into_iter().flatten();
    let mut wanted: Vec<i32> = (0..90).chain(0..90).flat_map(document).collect();
    wanted.truncate(wanted.len() / 20 * 20);
    assert_eq!(found, wanted);
}

#[test]
fn a_shuffled_run_starts_anywhere_and_knows_its_sources() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), 0..300, 10);
    let run = run(folder.path(), true, 4).unwrap();
    let whole = tokens(&Engine::start(Arc::clone(&run), options(folder.path(), 4)).unwrap()).unwrap();
    for start in [1, 7, 20] {
        let options = Options { start, ..options(folder.path(), 4) };
        let tail = tokens(&Engine::start(Arc::clone(&run), options).unwrap()).unwrap();
        assert_eq!(tail, whole[start as usize * 20..]);
    }
    let options = Options { start: 7, ..options(folder.path(), 4) };
    let rows = sources(run, options, &Cancel::new()).unwrap();
    assert_eq!(rows.len(), 4);
    for (row, spans) in whole[7 * 20..8 * 20].chunks(5).zip(&rows) {
        let mut at = 0;
        for span in spans {
            let document = (span.chunk * 10 + span.row) as i32;
            assert!(row[at..at + span.tokens as usize].iter().all(|&token| token == document));
            at += span.positions as usize;
        }
        assert_eq!(at, 5);
    }
}

#[test]
fn faults_name_their_place_and_end_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, 0..300, 300);
    let run = run(folder.path(), true, 4).unwrap();
    let mut options = options(folder.path(), 4);
    options.memory = 1 << 10;
    assert!(matches!(Engine::start(Arc::clone(&run), options.clone()), Err(Error::Memory { .. })));
    options.memory = 64 << 20;
    let times = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4..40].fill(0xff);
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(times).unwrap();
    let engine = Engine::start(run, options).unwrap();
    let error = tokens(&engine).unwrap_err();
    assert!(matches!(&error, Error::Data { place, .. } if place.row_group == Some(0)), "{error}");
    assert!(matches!(engine.next(Duration::from_secs(5)), Ok(Next::End)));
}
