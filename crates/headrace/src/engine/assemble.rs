//! From lanes to batches: each row is written straight into the batch's memory, lanes in parallel.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::batch::{Array, ArrayKind, Batch, Numbers};
use super::cursor::{Cursor, Windows};
use super::memory::{Arena, Layout, Shelf, SlotMut};
use super::pool::Pool;
use super::run::{PackSpec, Run};
use crate::error::{Error, Result};
use crate::order::Remainder;
use crate::pack::{Boundaries, Span, Token, cu_seqlens, write_boundaries};

/// What a thread assembles at once, at least: handing out less would cost more. Evidence: waking a thread costs some 20
/// microseconds, a token about 0.5 nanoseconds. Unit: tokens.
const PART_TOKENS: usize = 1 << 17;

/// A batch to be written.
#[derive(Debug)]
pub struct Job {
    /// Its step.
    pub step: u64,
    /// The epoch of the global batch's first row.
    pub epoch: u64,
    /// The rank's rows of it.
    pub rows: Vec<u64>,
    /// Of a mixture's source: where these stand in the batch, which others write to.
    pub places: Vec<usize>,
}

impl Job {
    /// How its rows are packed: all alike.
    fn pack(&self, run: &Run) -> PackSpec {
        run.pack(self.rows.first().copied().unwrap_or(0))
    }
}

/// A row's places in the batch's memory.
#[derive(Debug)]
pub(super) struct RowOut {
    tokens: RowTokens,
    boundaries: Option<(SlotMut<i32>, SlotMut<i32>)>,
    mask: Option<SlotMut<u8>>,
}

#[derive(Debug)]
enum RowTokens {
    I32(SlotMut<i32>),
    I64(SlotMut<i64>),
}

/// A row that is to be written, and then is.
#[derive(Debug)]
pub(super) struct Row {
    row: u64,
    /// Where it stands among the rows of all batches that are written at once.
    place: usize,
    out: RowOut,
    spans: Vec<Span>,
}

/// A lane, where it stands, and all of its rows in some batches, in order.
struct LaneRows {
    lane: u64,
    cursor: Option<Cursor>,
    rows: Vec<Row>,
}

/// The lanes' places, and what is needed to write batches.
#[derive(Debug)]
pub struct Assembler {
    run: Arc<Run>,
    shelf: Arc<Shelf>,
    /// A lane that has not been used yet, or whose stream has ended, has none.
    cursors: HashMap<u64, Cursor>,
}

impl Assembler {
    /// An assembler whose batches live in memory from `shelf`.
    pub fn new(run: Arc<Run>, shelf: Arc<Shelf>) -> Self {
        Self { run, shelf, cursors: HashMap::new() }
    }

    /// Forgets where lanes are whose window ends before a unit, so that the window can go.
    pub fn retire(&mut self, unit: u64) {
        self.cursors.retain(|_, cursor| cursor.window_end() > unit);
    }

    /// Forgets where all lanes are, so that other windows can take the place of those that they are in.
    pub fn forget(&mut self) {
        self.cursors.clear();
    }

    /// Writes batches that follow one another; all windows that their rows touch must be in `windows`.
    pub fn batches(&mut self, pool: &Pool, windows: &Windows, jobs: Vec<Job>) -> Result<Vec<Batch>> {
        let padded = self.run.rows().remainder == Remainder::Pad;
        let rooms = jobs.iter().map(|job| room(&job.pack(&self.run), padded, &self.shelf, job.rows.len()));
        let rooms = rooms.collect::<Result<_>>()?;
        let mut done = self.rows(pool, windows, &jobs, rooms)?;
        jobs.into_iter().map(|job| finish(&job.pack(&self.run), job, &mut done)).collect()
    }

    /// Writes the rows of some jobs to the room for each; they come back in order.
    pub(super) fn rows(
        &mut self,
        pool: &Pool,
        windows: &Windows,
        jobs: &[Job],
        rooms: Vec<Vec<RowOut>>,
    ) -> Result<impl Iterator<Item = Row> + use<>> {
        let count: usize = jobs.iter().map(|job| job.rows.len()).sum();
        let mut lanes: Vec<LaneRows> = Vec::with_capacity(count.min(self.run.rows().lanes as usize));
        let mut numbers = HashMap::with_capacity(lanes.capacity());
        let rows = jobs.iter().flat_map(|job| &job.rows).zip(rooms.into_iter().flatten());
        for (place, (&row, out)) in rows.enumerate() {
            let lane = row % self.run.rows().lanes;
            let at = *numbers.entry(lane).or_insert_with(|| {
                lanes.push(LaneRows { lane, cursor: self.cursors.remove(&lane), rows: Vec::new() });
                lanes.len() - 1
            });
            lanes[at].rows.push(Row { row, place, out, spans: Vec::new() });
        }
        let mut done: Vec<Option<Row>> = (0..count).map(|_| None).collect();
        for LaneRows { lane, cursor, rows } in self.write(pool, windows, lanes)? {
            if let Some(cursor) = cursor {
                self.cursors.insert(lane, cursor);
            }
            for row in rows {
                let place = row.place;
                done[place] = Some(row);
            }
        }
        Ok(done.into_iter().flatten())
    }

    /// Writes all lanes' rows, in parallel where that pays.
    fn write(&self, pool: &Pool, windows: &Windows, lanes: Vec<LaneRows>) -> Result<Vec<LaneRows>> {
        let rows = lanes.iter().flat_map(|lane| &lane.rows);
        let parts = rows.map(|row| self.run.rows().row_tokens(row.row) as usize).sum::<usize>() / PART_TOKENS;
        if parts < 2 {
            return lanes.into_iter().map(|lane| write_lane(&self.run, windows, lane)).collect();
        }
        // Some more than there are threads, so that the last to finish does not have much to do.
        let share = lanes.len().div_ceil(parts.min(4 * (pool.len() + 1)));
        let mut lanes = lanes.into_iter().peekable();
        let mut tasks = Vec::new();
        while lanes.peek().is_some() {
            let part: Vec<LaneRows> = lanes.by_ref().take(share).collect();
            let (run, windows) = (Arc::clone(&self.run), windows.clone());
            tasks.push(move || {
                part.into_iter().map(|lane| write_lane(&run, &windows, lane)).collect::<Result<Vec<_>>>()
            });
        }
        Ok(pool.share(tasks)?.into_iter().flatten().collect())
    }
}

/// Bytes of a batch of `rows` rows of some of `documents` documents, at most: its arrays, and its spans while they are
/// gathered.
pub(super) fn batch_bytes(pack: &PackSpec, rows: u64, documents: u64) -> u64 {
    let token = if pack.wide { 8 } else { 4 };
    let boundaries = if pack.boundaries { 8 } else { 0 };
    let places = rows.saturating_mul(pack.row_tokens());
    // A batch reaches into two passes at most. A document is one span, and one more where a row or lane cuts it.
    let spans = places.min(documents.saturating_mul(2).saturating_add(rows.saturating_mul(4)));
    let span = 2 * size_of::<Span>() as u64 + size_of::<i32>() as u64;
    places.saturating_mul(token + boundaries + 1).saturating_add(spans.saturating_mul(span))
}

/// Room for `rows` rows, one after another, in memory from `shelf`; `padded` ones have a mask.
pub(super) fn room(pack: &PackSpec, padded: bool, shelf: &Arc<Shelf>, rows: usize) -> Result<Vec<RowOut>> {
    let places = pack.row_tokens() as usize;
    let mut layout = Layout::new();
    let narrow = (!pack.wide).then(|| layout.add::<i32>(rows * places));
    let wide = pack.wide.then(|| layout.add::<i64>(rows * places));
    let boundaries = pack.boundaries.then(|| (layout.add::<i32>(rows * places), layout.add::<i32>(rows * places)));
    let mask = padded.then(|| layout.add::<u8>(rows * places));
    let arena = shelf.take(&layout)?.ok_or_else(|| Error::Internal("a batch beyond the budget".to_owned()))?;
    let mut narrow = narrow.map(|region| arena.carve(region).split_evenly(places).into_iter());
    let mut wide = wide.map(|region| arena.carve(region).split_evenly(places).into_iter());
    let mut boundaries = boundaries.map(|(ids, positions)| {
        let split = |region| arena.carve(region).split_evenly(places).into_iter();
        split(ids).zip(split(positions))
    });
    let mut mask = mask.map(|region| arena.carve(region).split_evenly(places).into_iter());
    let out = |_| {
        let narrow = narrow.as_mut().and_then(Iterator::next).map(RowTokens::I32);
        let tokens = narrow.or_else(|| wide.as_mut().and_then(Iterator::next).map(RowTokens::I64))?;
        let boundaries = boundaries.as_mut().and_then(Iterator::next);
        Some(RowOut { tokens, boundaries, mask: mask.as_mut().and_then(Iterator::next) })
    };
    Ok((0..rows).map_while(out).collect())
}

/// A batch of the next finished rows, in their order.
pub(super) fn finish(pack: &PackSpec, job: Job, done: &mut impl Iterator<Item = Row>) -> Result<Batch> {
    let Job { step, epoch, rows, .. } = job;
    let places = pack.row_tokens() as usize;
    let done: Vec<Row> = done.take(rows.len()).collect();
    let mut spans = Vec::with_capacity(done.iter().map(|row| row.spans.len()).sum());
    let mut span_ends = Vec::with_capacity(rows.len());
    let (mut narrow, mut wide) = (Vec::new(), Vec::new());
    let (mut ids, mut positions, mut masks) = (Vec::new(), Vec::new(), Vec::new());
    for row in done {
        spans.extend(row.spans);
        span_ends.push(spans.len() as u32);
        match row.out.tokens {
            RowTokens::I32(slot) => narrow.push(slot),
            RowTokens::I64(slot) => wide.push(slot),
        }
        if let Some((id, position)) = row.out.boundaries {
            ids.push(id);
            positions.push(position);
        }
        masks.extend(row.out.mask);
    }
    let mut arrays = Vec::new();
    let mut add = |kind, numbers: Option<Numbers>| {
        arrays.extend(numbers.map(|numbers| Array { kind, numbers, width: Some(places) }));
    };
    add(ArrayKind::Tokens, whole(narrow).map(Numbers::I32).or_else(|| whole(wide).map(Numbers::I64)));
    add(ArrayKind::DocumentIds, whole(ids).map(Numbers::I32));
    add(ArrayKind::PositionIds, whole(positions).map(Numbers::I32));
    add(ArrayKind::LossMask, whole(masks).map(Numbers::U8));
    let mut batch = Batch { step, epoch, rows, arrays, max_seqlen: None, spans, span_ends, owners: Vec::new() };
    if pack.boundaries {
        let sources = (0..batch.rows.len()).map(|row| batch.sources(row));
        let (lengths, longest) = cu_seqlens(sources, pack.seq_len as usize);
        let mut layout = Layout::new();
        let region = layout.add::<i32>(lengths.len());
        let mut slot = Arena::small(&layout)?.carve(region);
        slot.copy_from_slice(&lengths);
        let numbers = Numbers::I32(slot.freeze(lengths.len()));
        batch.arrays.push(Array { kind: ArrayKind::CuSeqlens, numbers, width: None });
        batch.max_seqlen = Some(longest);
    }
    Ok(batch)
}

fn whole<T: super::memory::Plain>(parts: Vec<SlotMut<T>>) -> Option<super::memory::Slot<T>> {
    let slot = SlotMut::join(parts)?;
    let len = slot.len();
    Some(slot.freeze(len))
}

/// The lanes that rows are of, and which tokens of the lanes' streams they hold.
pub fn lane_tokens(run: &Run, rows: &[u64]) -> impl Iterator<Item = (u64, Range<u64>)> {
    rows.iter().map(|&row| {
        let start = run.rows().first_token(row);
        (row % run.rows().lanes, start..start + run.rows().tokens_of(row))
    })
}

fn write_lane(run: &Run, windows: &Windows, mut own: LaneRows) -> Result<LaneRows> {
    let LaneRows { lane, cursor, rows } = &mut own;
    for Row { row, out, spans, .. } in rows {
        let (start, pack) = (run.rows().first_token(*row), run.pack(*row));
        let there = run.rows().tokens_of(*row);
        if there > 0 {
            match &mut *cursor {
                Some(cursor) if cursor.token() <= start => cursor.advance(run, windows, start)?,
                other => *other = Some(Cursor::seek(run, windows, *lane, start)?),
            }
        }
        match &mut out.tokens {
            RowTokens::I32(tokens) => write_row(run, windows, &pack, cursor.as_mut(), (tokens, there), spans)?,
            RowTokens::I64(tokens) => write_row(run, windows, &pack, cursor.as_mut(), (tokens, there), spans)?,
        }
        if let Some((document_ids, position_ids)) = &mut out.boundaries {
            write_boundaries(spans, Boundaries { document_ids, position_ids });
        }
        if let Some(mask) = &mut out.mask {
            mask[..there as usize].fill(1);
            mask[there as usize..].fill(0);
        }
    }
    Ok(own)
}

/// Writes `there` tokens and padding, and leaves the cursor where the lane's next row begins.
fn write_row<T: Token>(
    run: &Run,
    windows: &Windows,
    pack: &PackSpec,
    cursor: Option<&mut Cursor>,
    (tokens, there): (&mut [T], u64),
    spans: &mut Vec<Span>,
) -> Result<()> {
    let (body, padding) = tokens.split_at_mut(there as usize);
    padding.fill(T::from_token(pack.pad_id));
    let Some(cursor) = cursor.filter(|_| there > 0) else { return Ok(()) };
    let (own, shared) = body.split_at_mut(there.min(pack.seq_len) as usize);
    cursor.fill(run, windows, own, spans)?;
    if shared.is_empty() {
        return Ok(());
    }
    // The overlap is read ahead of the cursor: a part that goes on there is one part.
    let mut ahead = cursor.clone();
    let mut more = Vec::new();
    ahead.fill(run, windows, shared, &mut more)?;
    join_spans(spans, more, cursor.is_within_piece());
    Ok(())
}

/// Appends `more` to `spans`; the last and the first become one if they are of the same piece.
fn join_spans(spans: &mut Vec<Span>, mut more: Vec<Span>, same_piece: bool) {
    if let (true, Some(last), Some(first)) = (same_piece, spans.last_mut(), more.first()) {
        last.tokens += first.tokens;
        last.positions += first.positions;
        more.remove(0);
    }
    spans.extend(more);
}
