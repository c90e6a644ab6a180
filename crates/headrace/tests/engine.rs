//! The core on its own, from files to batches: no Python needed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::Int32Builder;
use arrow::array::{ArrayRef, ListBuilder, RecordBatch};
use headrace::cancel::Cancel;
use headrace::engine::{Batch, Changes, Engine, LayOut, Next, Numbers, Options, PackSpec, Run, sources};
use headrace::index::{Index, OpenOptions, Progress};
use headrace::order::{OrderSpec, Remainder};
use headrace::pack::{Span, Specials};
use headrace::state::Steps;
use headrace::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;

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
    changed(folder, shuffle, lanes, &[])
}

/// The same, with rows of other lengths from some on.
fn changed(folder: &Path, shuffle: bool, lanes: u64, lengths: &[(u64, u64)]) -> Result<Arc<Run>> {
    let cancel = Cancel::new();
    let options = OpenOptions { cache_dir: Some(folder.join("_cache")), ..OpenOptions::default() };
    let url = folder.to_str().unwrap().to_owned();
    let mut index = Index::open(&[url], &options, &cancel, &Progress::new())?;
    index.count("tokens", &cancel, &Progress::new())?;
    let column = Arc::clone(index.token_column("tokens")?);
    let spec = OrderSpec { seed: 1, shuffle, lanes, window: 3 };
    let specials = Specials { bos: None, eos: Some(-1) };
    let pack = PackSpec { seq_len: 5, overlap: 0, specials, boundaries: true, wide: false, pad_id: 0 };
    Run::new(Arc::new(index), column, spec, pack, Changes { lengths, data: &[] }, Some(2), Remainder::Drop)
        .map(Arc::new)
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
        layout: LayOut::Auto,
        part: None,
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
    for layout in [LayOut::Never, LayOut::Always(64)] {
        let engine = Engine::start(Arc::clone(&run), Options { layout, ..options.clone() }).unwrap();
        let error = tokens(&engine).unwrap_err();
        assert!(matches!(&error, Error::Data { place, .. } if place.row_group == Some(0)), "{error}");
        assert!(matches!(engine.next(Duration::from_secs(5)), Ok(Next::End)));
    }
}

/// Damage of a later window is found while that is laid out, and told when a step needs it; of two faults the first.
#[test]
fn faults_wait_for_the_step_that_needs_their_window() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, 0..300, 10);
    let run = run(folder.path(), true, 4).unwrap();
    let options = Options { layout: LayOut::Always(64), ..options(folder.path(), 4) };
    let whole = tokens(&Engine::start(Arc::clone(&run), options.clone()).unwrap()).unwrap();
    let chunks = run.order().pass(0).chunks;
    let times = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    // The fifth window's first and last chunk, of three.
    for &chunk in [&chunks[12], &chunks[14]] {
        let start = run.chunk(chunk).start as usize;
        bytes[start..start + 8].fill(0xff);
    }
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(times).unwrap();
    let engine = Engine::start(Arc::clone(&run), options).unwrap();
    let mut found = Vec::new();
    let error = loop {
        match engine.next(Duration::from_secs(5)) {
            Ok(Next::Batch(batch)) => match &batch.arrays[0].numbers {
                Numbers::I32(numbers) => found.extend_from_slice(numbers),
                other => panic!("expected i32 tokens, got {other:?}"),
            },
            Ok(other) => panic!("expected an error, got {other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Data { place, .. } if place.row_group == Some(chunks[12])), "{error}");
    // All rows that lie in the four windows before, whole.
    let pass = run.order().pass(0);
    let window = run.order().window(&pass, 4);
    let steps = (0..).take_while(|step| (0..4).all(|lane| (step + 1) * 5 <= window.lane_tokens(lane).start)).count();
    assert_eq!(found, whole[..steps * 20]);
}

/// What a batch holds, to be compared.
type Content = (u64, u64, Vec<u64>, Vec<Vec<i64>>, Option<i32>, Vec<Span>, Vec<u32>);

fn contents(engine: &Engine) -> Result<Vec<Content>> {
    let mut contents = Vec::new();
    loop {
        match engine.next(Duration::from_secs(1))? {
            Next::Batch(batch) => {
                let arrays = batch.arrays.iter().map(|array| match &array.numbers {
                    Numbers::I32(numbers) => numbers.iter().map(|&number| number.into()).collect(),
                    Numbers::I64(numbers) => numbers.to_vec(),
                    Numbers::U8(numbers) => numbers.iter().map(|&number| number.into()).collect(),
                });
                let arrays = arrays.collect();
                let Batch { step, epoch, rows, max_seqlen, spans, span_ends, .. } = *batch;
                contents.push((step, epoch, rows, arrays, max_seqlen, spans, span_ends));
            }
            Next::Pending => {}
            Next::End => return Ok(contents),
        }
    }
}

/// The tokens of each lane's rows, one after another.
fn streams(batches: &[Content], lanes: u64) -> Vec<Vec<i64>> {
    let mut streams = vec![Vec::new(); lanes as usize];
    for (_, _, rows, arrays, ..) in batches {
        let tokens = &arrays[0];
        for (row, tokens) in rows.iter().zip(tokens.chunks(tokens.len() / rows.len())) {
            streams[(row % lanes) as usize].extend(tokens);
        }
    }
    streams
}

#[test]
fn rows_of_another_length_go_on_with_the_next_token() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("a.parquet"), 0..300, 16);
    for (shuffle, lanes) in [(true, 3), (false, 1)] {
        let whole = run(folder.path(), shuffle, lanes).unwrap();
        let whole = streams(&contents(&Engine::start(whole, options(folder.path(), lanes)).unwrap()).unwrap(), lanes);
        let changes = [(2 * lanes, 9), (5 * lanes, 3)];
        let run = changed(folder.path(), shuffle, lanes, &changes).unwrap();
        let from = |start| Options { start, ..options(folder.path(), lanes) };
        let found = contents(&Engine::start(Arc::clone(&run), from(5)).unwrap()).unwrap();
        for (found, whole) in streams(&found, lanes).iter().zip(&whole) {
            let begin = 2 * 5 + 3 * 9;
            // At the end there may be less than a row of five.
            let both = found.len().min(whole.len() - begin);
            assert!(both > 100 && found.len() - both < 5);
            assert_eq!(found[..both], whole[begin..begin + both]);
        }
        // Where a row of before came from is told.
        for (step, length) in [(1, 5), (2, 9), (4, 9), (5, 3)] {
            let rows = sources(Arc::clone(&run), from(step), &Cancel::new()).unwrap();
            let tokens = |row: &Vec<Span>| row.iter().map(|span| span.positions).sum::<u32>();
            assert!(rows.iter().all(|row| tokens(row) == length), "step {step}");
        }
        // Batches of two lengths do not follow each other.
        let refused = Engine::start(run, from(4)).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains(&format!("row {}", 5 * lanes)), "{refused}");
    }
    let refused = changed(folder.path(), true, 3, &[(4, 9)]).unwrap_err().to_string();
    assert!(refused.contains("row 4 is in the middle of a round of 3 rows"), "{refused}");
}

/// Data and a run over it, small enough for many of them.
#[derive(Debug, Clone)]
struct Case {
    lengths: Vec<usize>,
    row_group: usize,
    /// From which pass on there are how many tenths of the chunks, or all from the first on.
    added: Vec<(u64, u64)>,
    /// From this document on, tokens do not fit 16 bits.
    wide_from: usize,
    lanes: u64,
    window: u64,
    /// Rows in a batch are `lanes * batch.0 / batch.1`, or if that is no number 1.
    batch: (u64, u64),
    world: u64,
    seq_len: u64,
    overlap: u64,
    specials: Specials,
    remainder: Remainder,
    is_wide: bool,
    workers: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let length = prop_oneof![4 => 0..9_usize, 3 => Just(0), 3 => 9..60_usize, 1 => 100..900_usize];
    let specials =
        (prop_oneof![Just(None), Just(Some(7)), Just(Some(-1))], prop_oneof![Just(None), Just(Some(65_535))]);
    let added = prop_oneof![
        Just(Vec::<(u64, u64)>::new()),
        (1..3_u64, 1..10_u64).prop_map(|(epoch, part)| vec![(0, part), (epoch, 10)]),
        (1..6_u64, 6..10_u64).prop_map(|(one, two)| vec![(0_u64, one), (1, two), (2, 10)]),
    ];
    let data = (prop::collection::vec(length, 1..150), 1..30_usize, 0..300_usize, added);
    let order = (1..20_u64, 1..7_u64, (1..4_u64, 1..4_u64), 1..4_u64);
    let pack = (1..40_u64, 0..12_u64, specials, any::<bool>(), any::<bool>(), 1..4_usize);
    (data, order, pack).prop_map(|(data, order, pack)| {
        let ((lengths, row_group, wide_from, added), (lanes, window, batch, world)) = (data, order);
        let (seq_len, overlap, (bos, eos), is_padded, is_wide, workers) = pack;
        Case {
            lengths,
            row_group,
            added,
            wide_from,
            lanes: lanes * world,
            window,
            batch,
            world,
            seq_len,
            overlap,
            specials: Specials { bos, eos },
            remainder: if is_padded { Remainder::Pad } else { Remainder::Drop },
            is_wide,
            workers,
        }
    })
}

impl Case {
    /// Rows in a batch, of which each rank has as many.
    fn batch(&self) -> u64 {
        let batch = self.lanes * self.batch.0 / self.batch.1;
        (batch / self.world * self.world).max(self.world)
    }

    fn write(&self, folder: &Path) {
        let mut lists = ListBuilder::new(Int32Builder::new());
        for (document, &length) in self.lengths.iter().enumerate() {
            let base = if document < self.wide_from { 0 } else { 1 << 20 };
            for token in 0..length {
                lists.values().append_value(base + (document * 31 + token) as i32 % 60_000);
            }
            // A null is an empty document, too.
            lists.append(length > 0 || document % 2 == 0);
        }
        let column: ArrayRef = Arc::new(lists.finish());
        let batch = RecordBatch::try_from_iter([("tokens", column)]).unwrap();
        // Pages of a few documents.
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(self.row_group))
            .set_write_batch_size(4)
            .set_data_page_size_limit(64)
            .build();
        let file = std::fs::File::create(folder.join("a.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn run(&self, folder: &Path) -> Option<Arc<Run>> {
        self.over(self.index(folder))
    }

    fn index(&self, folder: &Path) -> Index {
        let cancel = Cancel::new();
        let options = OpenOptions { cache_dir: Some(folder.join("_cache")), ..OpenOptions::default() };
        let url = folder.to_str().unwrap().to_owned();
        let mut index = Index::open(&[url], &options, &cancel, &Progress::new()).unwrap();
        index.count("tokens", &cancel, &Progress::new()).unwrap();
        index
    }

    fn over(&self, index: Index) -> Option<Arc<Run>> {
        let column = Arc::clone(index.token_column("tokens").unwrap());
        let spec = OrderSpec { seed: 5, shuffle: true, lanes: self.lanes, window: self.window };
        let Case { seq_len, overlap, specials, is_wide: wide, .. } = *self;
        let pack = PackSpec { seq_len, overlap, specials, boundaries: true, wide, pad_id: -9 };
        let chunks = column.chunks.len() as u64;
        let data: Vec<(u64, u64)> =
            self.added.iter().map(|&(epoch, part)| (epoch, (chunks * part).div_ceil(10))).collect();
        let changes = Changes { lengths: &[], data: &data };
        Run::new(Arc::new(index), column, spec, pack, changes, Some(3), self.remainder).ok().map(Arc::new)
    }

    /// The same without some documents, and the same of files that have these as empty ones.
    fn without(&self, folders: [&Path; 2], left_out: &BTreeSet<usize>) -> [Option<Arc<Run>>; 2] {
        let mut others = self.clone();
        let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &document in left_out {
            others.lengths[document] = 0;
            let (chunk, row) = (document / self.row_group, document % self.row_group);
            rows.entry(chunk as u32).or_default().push(row as u32);
        }
        let rows = rows.into_iter().map(|(chunk, rows)| (chunk, rows.into())).collect();
        self.write(folders[0]);
        others.write(folders[1]);
        let all = self.index(folders[0]);
        let index = all.without("tokens", &rows, &Cancel::new(), &Progress::new()).unwrap();
        let facts = |index: &Index| index.column_facts("tokens").unwrap();
        assert_eq!(facts(&all), facts(&self.index(folders[0])), "nothing was saved");
        [self.over(index), self.over(self.index(folders[1]))]
    }

    fn options(&self, folder: &Path, rank: u64) -> Options {
        Options { world: self.world, rank, workers: self.workers, ..options(folder, self.batch()) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Windows in the order of storage are compared with the order's definition elsewhere (`tests/reference.py`).
    #[test]
    fn windows_in_the_order_of_use_give_the_same_batches(
        case in cases(), block in prop_oneof![Just(64_usize), Just(256), Just(4096)], spare in 0..40_000_u64,
        start: prop::sample::Index, skip in 0..30_u64, rank: prop::sample::Index,
    ) {
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let Some(run) = case.run(folder.path()) else { return Ok(()) };
        let options = case.options(folder.path(), rank.index(case.world as usize) as u64);
        let stored = Options { layout: LayOut::Never, ..options.clone() };
        let wanted = contents(&Engine::start(Arc::clone(&run), stored).unwrap()).unwrap();
        let laid = Options { layout: LayOut::Always(block), ..options };
        let engine = Engine::start(Arc::clone(&run), laid.clone()).unwrap();
        prop_assert_eq!(&contents(&engine).unwrap(), &wanted);
        // But for windows that hold nothing for the rank.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let is_padding = wanted.iter().all(|(.., spans, _)| spans.is_empty());
        prop_assert!(is_padding || count(&engine.counters().laid) > 0);
        prop_assert_eq!(count(&engine.counters().spilled), 0);
        // With just so much memory that there may be room for a window, or none.
        let Err(Error::Memory { needed, .. }) = Engine::start(Arc::clone(&run), Options { memory: 1, ..laid.clone() })
        else {
            panic!("a budget of a byte is enough");
        };
        let tight = Options { memory: needed + spare, ..laid.clone() };
        let engine = Engine::start(Arc::clone(&run), tight.clone()).unwrap();
        let found = contents(&engine).unwrap();
        prop_assert_eq!(&found, &wanted);
        // From any step on, and with steps that are passed over.
        let start = start.index(wanted.len() + 1) as u64;
        let skip = [start + 3..start + 3 + skip, start + 5 + 2 * skip..start + 6 + 3 * skip];
        let later = wanted.iter().filter(|batch| batch.0 >= start && !skip.iter().any(|skip| skip.contains(&batch.0)));
        let later: Vec<Content> = later.cloned().collect();
        for options in [laid, tight] {
            let options = Options { start, skip: skip.to_vec(), ..options };
            prop_assert_eq!(&contents(&Engine::start(Arc::clone(&run), options).unwrap()).unwrap(), &later);
        }
    }

    #[test]
    fn documents_that_are_left_out_are_as_empty_ones(
        case in cases(), left_out in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        block in prop_oneof![Just(64_usize), Just(4096)], start: prop::sample::Index, rank: prop::sample::Index,
    ) {
        let left_out: BTreeSet<usize> = left_out.iter().map(|at| at.index(case.lengths.len())).collect();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [run, others] = case.without([folders[0].path(), folders[1].path()], &left_out);
        let (Some(run), Some(others)) = (run, others) else { return Ok(()) };
        let options = case.options(folders[0].path(), rank.index(case.world as usize) as u64);
        let stored = Options { layout: LayOut::Never, ..options.clone() };
        let wanted = contents(&Engine::start(others, stored.clone()).unwrap()).unwrap();
        prop_assert_eq!(&contents(&Engine::start(Arc::clone(&run), stored.clone()).unwrap()).unwrap(), &wanted);
        let laid = Options { layout: LayOut::Always(block), ..options };
        prop_assert_eq!(&contents(&Engine::start(Arc::clone(&run), laid.clone()).unwrap()).unwrap(), &wanted);
        // The first batch comes of the fronts of pages.
        let start = start.index(wanted.len() + 1);
        for options in [stored, laid] {
            let options = Options { start: start as u64, ..options };
            let found = contents(&Engine::start(Arc::clone(&run), options).unwrap()).unwrap();
            prop_assert_eq!(found.as_slice(), &wanted[start..]);
        }
    }
}
