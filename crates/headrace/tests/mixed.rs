//! Mixtures of runs: their rows are those of each run alone, wherever windows lie and whoever starts where.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int32Builder, ListBuilder, RecordBatch};
use headrace::cancel::Cancel;
use headrace::engine::{
    Batch, Changes, Engine, LayOut, MixedEngine, Next, Numbers, Options, PackSpec, Run, mixed_sources,
};
use headrace::index::{Index, OpenOptions, Progress};
use headrace::order::{Mixture, OrderSpec, Phase, Remainder, Strides, rank_rows};
use headrace::pack::Specials;
use headrace::state::Steps;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

const LANES: u64 = 12;
const ROW: usize = 5;

/// Documents of up to six tokens, in row groups of ten; all tokens of one are its number.
fn run(folder: &Path, documents: std::ops::Range<i32>, lanes: u64, window: u64) -> Arc<Run> {
    std::fs::create_dir_all(folder).unwrap();
    let mut lists = ListBuilder::new(Int32Builder::new());
    for document in documents {
        lists.values().append_value_n(document, document as usize % 7);
        lists.append(true);
    }
    let column: ArrayRef = Arc::new(lists.finish());
    let batch = RecordBatch::try_from_iter([("tokens", column)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
    let file = std::fs::File::create(folder.join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let cancel = Cancel::new();
    let options = OpenOptions { cache_dir: Some(folder.join("_cache")), ..OpenOptions::default() };
    let mut index = Index::open(&[folder.to_str().unwrap().to_owned()], &options, &cancel, &Progress::new()).unwrap();
    index.count("tokens", &cancel, &Progress::new()).unwrap();
    let column = Arc::clone(index.token_column("tokens").unwrap());
    let spec = OrderSpec { seed: 1, shuffle: true, lanes, window };
    let specials = Specials { bos: None, eos: None };
    let pack = PackSpec { seq_len: ROW as u64, overlap: 0, specials, boundaries: false, wide: false, pad_id: 0 };
    Arc::new(Run::new(Arc::new(index), column, spec, pack, Changes::default(), None, Remainder::Drop).unwrap())
}

fn options(folder: &Path) -> Options {
    Options {
        world: 1,
        rank: 0,
        steps: Steps::new(LANES).unwrap(),
        start: 0,
        stop: Some(60),
        skip: Vec::new(),
        workers: 2,
        memory: 64 << 20,
        prefetch: 2,
        spill: folder.join("_spill"),
        layout: LayOut::Auto,
        part: None,
    }
}

fn numbers(batch: &Batch) -> &[i32] {
    match &batch.arrays[0].numbers {
        Numbers::I32(numbers) => numbers,
        other => panic!("expected i32 tokens, got {other:?}"),
    }
}

/// (row, source, tokens) of each row of some ranks' batches.
fn rows(next: impl Fn() -> headrace::Result<Next>) -> Vec<(u64, usize, Vec<i32>)> {
    let mut rows = Vec::new();
    loop {
        match next().unwrap() {
            Next::Batch(batch) => {
                let tokens = numbers(&batch).chunks(batch.arrays[0].width.unwrap()).map(<[i32]>::to_vec);
                let found = batch.rows.iter().enumerate().zip(tokens);
                rows.extend(found.map(|((place, &row), tokens)| (row, batch.source(place), tokens)));
            }
            Next::Pending => {}
            Next::End => return rows,
        }
    }
}

/// Runs of 12, 6 and 1 lanes, over documents that tell of which they are.
fn three_runs(folder: &Path) -> [Arc<Run>; 3] {
    [
        run(&folder.join("a"), 0..400, 12, 3),
        run(&folder.join("b"), 1000..1200, 6, 20),
        run(&folder.join("c"), 2000..2012, 1, 2),
    ]
}

#[test]
fn rows_are_those_of_each_run_alone_on_any_ranks_and_with_any_windows() {
    let folder = tempfile::tempdir().unwrap();
    let runs = three_runs(folder.path());
    let weights = vec![5.0, 3.0, 1.0, 0.0];
    let phases = vec![Phase { round: 0, draw: 0, every: 1, weights }];
    let mixture = Arc::new(Mixture::new(3, LANES, false, vec![12, 6, 1, 1], phases, Strides::new(ROW as u64)).unwrap());
    let sources: Vec<Option<Arc<Run>>> = runs.iter().cloned().map(Some).chain([None]).collect();
    let options = options(folder.path());
    // Each source alone, and its rows in the order in which its lanes are drawn.
    let alone: Vec<Vec<(u64, usize, Vec<i32>)>> = runs
        .iter()
        .map(|run| {
            let steps = Steps::new(run.rows().lanes).unwrap();
            let options = Options { steps, stop: Some(720), ..options.clone() };
            let engine = Engine::start(Arc::clone(run), options).unwrap();
            rows(|| engine.next(Duration::from_secs(1)))
        })
        .collect();
    let mut given: Vec<Vec<u64>> = (0..3).map(|source| vec![0; mixture.source_lanes(source) as usize]).collect();
    let wanted: Vec<_> = (0..60 * LANES)
        .map(|row| {
            let source = mixture.source(row);
            let lane = mixture.source_lane(source, row % LANES);
            let count = &mut given[source][lane as usize];
            *count += 1;
            let own = (*count - 1) * mixture.source_lanes(source) + lane;
            (row, source, alone[source][own as usize].2.clone())
        })
        .collect();
    for layout in [LayOut::Never, LayOut::Always(64), LayOut::Always(4096), LayOut::Auto] {
        for (world, start) in [(1, 0), (2, 0), (3, 0), (4, 17), (12, 41), (1, 59)] {
            for rank in 0..world {
                let options = Options { world, rank, start, layout, ..options.clone() };
                let engine = MixedEngine::start(Arc::clone(&mixture), &sources, options).unwrap();
                let own = (start..60).flat_map(|step| rank_rows(LANES, step * LANES, LANES, world, rank));
                let own: Vec<_> = own.map(|row| wanted[row as usize].clone()).collect();
                assert_eq!(rows(|| engine.next(Duration::from_secs(1))), own, "{layout:?}, {rank} of {world}");
            }
        }
    }
    // One step alone reads what its rows need.
    let batch = mixed_sources(mixture, &sources, Options { start: 23, ..options }, &Cancel::new()).unwrap().unwrap();
    for place in 0..LANES as usize {
        let row = &wanted[23 * LANES as usize + place];
        let run = &runs[row.1];
        let tokens = batch.sources(place).iter().flat_map(|span| {
            let document = (row.1 as u32 * 1000 + run.place(span.chunk).row_group.unwrap() * 10 + span.row) as i32;
            std::iter::repeat_n(document, span.tokens as usize)
        });
        assert_eq!(tokens.collect::<Vec<_>>(), row.2);
    }
}

#[test]
fn rows_change_their_length_with_the_rounds_of_the_mixture() {
    let folder = tempfile::tempdir().unwrap();
    let runs = three_runs(folder.path());
    let phases = vec![Phase { round: 0, draw: 0, every: 1, weights: vec![5.0, 3.0, 1.0] }];
    let lengths = Strides::new(ROW as u64).changed(20, 9).unwrap().changed(33, 3).unwrap();
    let mixture = Arc::new(Mixture::new(3, LANES, false, vec![12, 6, 1], phases, lengths.clone()).unwrap());
    let sources: Vec<Option<Arc<Run>>> =
        (0..3).map(|source| Some(Arc::new(runs[source].in_mixture(&mixture, source).unwrap()))).collect();
    assert!(runs[0].in_mixture(&mixture, 1).is_err());
    let options = options(folder.path());
    // The streams of each source's lanes, and what the mixture's lanes take of them in turn.
    let mut streams: Vec<Vec<Vec<i32>>> = runs
        .iter()
        .map(|run| {
            let lanes = run.rows().lanes;
            let options = Options { steps: Steps::new(lanes).unwrap(), stop: Some(720), ..options.clone() };
            let engine = Engine::start(Arc::clone(run), options).unwrap();
            let mut streams = vec![Vec::new(); lanes as usize];
            for (row, _, tokens) in rows(|| engine.next(Duration::from_secs(1))) {
                streams[(row % lanes) as usize].extend(tokens);
            }
            streams
        })
        .collect();
    let wanted: Vec<_> = (0..60 * LANES)
        .map(|row| {
            let source = mixture.source(row);
            let lane = mixture.source_lane(source, row % LANES);
            let length = lengths.of(row / LANES) as usize;
            (row, source, streams[source][lane as usize].drain(..length).collect::<Vec<_>>())
        })
        .collect();
    for layout in [LayOut::Never, LayOut::Always(64), LayOut::Auto] {
        for (world, start) in [(1, 33), (2, 40), (3, 33), (4, 47), (12, 41), (1, 59)] {
            for rank in 0..world {
                let options = Options { world, rank, start, layout, ..options.clone() };
                let engine = MixedEngine::start(Arc::clone(&mixture), &sources, options).unwrap();
                let own = (start..60).flat_map(|step| rank_rows(LANES, step * LANES, LANES, world, rank));
                let own: Vec<_> = own.map(|row| wanted[row as usize].clone()).collect();
                assert_eq!(rows(|| engine.next(Duration::from_secs(1))), own, "{layout:?}, {rank} of {world}");
            }
        }
    }
    let before = MixedEngine::start(Arc::clone(&mixture), &sources, Options { start: 32, ..options.clone() });
    assert_eq!(before.unwrap_err().to_string(), "step 32 lies before row 396, where rows change their length");
    let alike: Vec<_> = runs.iter().cloned().map(Some).collect();
    assert!(MixedEngine::start(Arc::clone(&mixture), &alike, Options { start: 33, ..options.clone() }).is_err());
    // But any one step is told of.
    for step in [0, 19, 20, 32, 33] {
        let options = Options { start: step, ..options.clone() };
        let batch = mixed_sources(Arc::clone(&mixture), &sources, options, &Cancel::new()).unwrap().unwrap();
        let width = batch.arrays[0].width.unwrap();
        assert_eq!(width as u64, lengths.of(step));
        for (place, tokens) in numbers(&batch).chunks(width).enumerate() {
            assert_eq!(tokens, wanted[step as usize * LANES as usize + place].2);
            assert_eq!(batch.sources(place).iter().map(|span| span.tokens as usize).sum::<usize>(), width);
        }
    }
}

#[test]
fn runs_that_are_not_alike_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(&folder.path().join("a"), 0..400, 12, 3);
    let mixture = |lanes, weight| {
        let phases = vec![Phase { round: 0, draw: 0, every: 1, weights: vec![1.0, weight] }];
        Arc::new(Mixture::new(3, LANES, false, vec![lanes, 12], phases, Strides::new(ROW as u64)).unwrap())
    };
    let start = |mixture, runs: &[_]| MixedEngine::start(mixture, runs, options(folder.path()));
    assert!(start(mixture(12, 0.0), &[Some(Arc::clone(&run)), None]).is_ok());
    assert!(start(mixture(12, 1.0), &[Some(Arc::clone(&run)), None]).is_err());
    assert!(start(mixture(6, 0.0), &[Some(Arc::clone(&run)), None]).is_err());
    assert!(start(mixture(12, 0.0), &[Some(run)]).is_err());
    assert!(start(mixture(12, 0.0), &[None, None]).is_err());
}
