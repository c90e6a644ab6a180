//! Planning for a million row groups and sixteen thousand ranks. The figures come from
//! `cargo test --release -p headrace --lib -- --ignored --nocapture a_million_row_groups`.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::layout::WindowLayout;
use super::plan::WindowPlan;
use super::run::{Changes, PackSpec, Run};
use super::{Report, report};
use crate::format::parquet::{TokenChunk, TokenShape};
use crate::index::compact::{ColumnBuilder, RowGroups};
use crate::index::{FileEntry, Index};
use crate::order::{OrderSpec, Remainder, default_lanes, default_window, rank_lanes};
use crate::pack::Specials;
use crate::store::local::LocalStore;
use crate::store::{Object, Version};

const FILES: u32 = 1000;
const CHUNKS: u64 = 1_000_000;
const RANKS: u64 = 16_384;
const ROWS: u64 = 1000;

/// A dataset of a million row groups of about a million tokens each, of which nothing is ever read.
fn dataset() -> Arc<Index> {
    let shape = TokenShape { value_bytes: 4, bits: 32, signed: true, max_def: 1, list_def: 1 };
    let mut column = ColumnBuilder::new("tokens");
    for at in 0..CHUNKS {
        let (start, levels) = ((at % 1000) << 21, 1_000_000 + at * 7919 % 100_000);
        let chunk =
            TokenChunk { shape, codec: 6, encodings: 1, start, len: levels * 2, levels, rows: ROWS, narrow: true };
        column.push(&chunk, levels, ROWS);
    }
    let each = (CHUNKS / u64::from(FILES)) as u32;
    let entry = |number: u32| FileEntry {
        object: Object { path: format!("{number:04}.parquet"), size: 1 << 31, version: Version::Unknown },
        rows: ROWS * u64::from(each),
        row_groups: each,
        footer_digest: number.into(),
    };
    let files = (0..FILES).flat_map(|file| std::iter::repeat_n(file, each as usize)).collect();
    let row_groups = RowGroups::new(files, vec![ROWS; CHUNKS as usize]);
    let column = Arc::new(column.finish(row_groups.rows()));
    let store = Arc::new(LocalStore::new(&std::env::temp_dir()).unwrap());
    Arc::new(Index::new(store, (0..FILES).map(entry).collect(), row_groups, vec![column]))
}

fn run(index: &Arc<Index>, lanes: u64, window: u64) -> Run {
    let spec = OrderSpec { seed: 1, shuffle: true, lanes, window };
    let specials = Specials { bos: None, eos: Some(0) };
    let pack = PackSpec { seq_len: 4096, overlap: 0, specials, boundaries: false, wide: false, pad_id: 0 };
    Run::new(Arc::clone(index), Arc::clone(&index.columns[0]), spec, pack, Changes::default(), None, Remainder::Drop)
        .unwrap()
}

/// The longest that a rank takes from the index to the plan of its first window.
fn longest(index: &Arc<Index>, lanes: u64, window: u64) -> Duration {
    let plan = |rank: u64| {
        let start = Instant::now();
        let run = run(index, lanes, window);
        let pass = run.order().pass(0);
        let own = rank_lanes(lanes, 0, RANKS, RANKS, rank);
        let plan = WindowPlan::new(run.order(), &pass, 0, own);
        let layout = WindowLayout::new(&run, &plan).unwrap();
        assert!(!plan.chunks.is_empty() && layout.bytes() > 0);
        start.elapsed()
    };
    [0, RANKS / 2, RANKS - 1].map(plan).into_iter().max().unwrap()
}

/// Windows of 64 row groups and of the default's, with a lane a rank and with as many as the default gives.
fn cases() -> [(u64, u64); 3] {
    let window = default_window(CHUNKS, CHUNKS * 1_050_000, RANKS);
    [(RANKS, 64), (RANKS, window), (default_lanes(RANKS, CHUNKS * ROWS, CHUNKS, 64), 64)]
}

#[test]
fn a_rank_plans_its_first_window_of_a_million_row_groups_soon() {
    let index = dataset();
    for (lanes, window) in cases() {
        let took = longest(&index, lanes, window);
        assert!(took < Duration::from_secs(10), "{lanes} lanes, window {window}: {took:?}");
    }
}

#[test]
#[ignore = "figures are those of a release build"]
fn a_million_row_groups_are_planned_within_a_second_a_rank() {
    let index = dataset();
    let mut out = std::io::stderr();
    for (lanes, window) in cases() {
        let took = longest(&index, lanes, window);
        let run = run(&index, lanes, window);
        let start = Instant::now();
        let Report { bytes, windows, .. } = report(&run, 0, RANKS, RANKS, RANKS / 2, 8 << 20).unwrap();
        let pass = start.elapsed();
        let all = index.columns[0].tokens.len() as u64;
        writeln!(
            out,
            "{lanes} lanes, window {window}: first window {took:?}; whole pass {pass:?} ({windows} of {} windows, \
             {bytes} bytes, {all} row groups)",
            run.order().passes().windows()
        )
        .unwrap();
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
