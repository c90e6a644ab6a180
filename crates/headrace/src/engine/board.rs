//! Batches that several engines write rows to: each has the rows of its own run, and whoever writes the last ones puts
//! the batch together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::assemble::{Job, Row, RowOut, finish, room};
use super::batch::{Array, ArrayKind, Batch, Numbers};
use super::conductor::Options;
use super::memory::{Budget, Layout, Shelf, SlotMut};
use super::pool::POLL;
use super::run::PackSpec;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::order::rank_rows;

/// The batches under way.
#[derive(Debug)]
pub(super) struct Board {
    state: Mutex<State>,
    /// A batch was taken, and others may be begun.
    taken: Condvar,
    /// A batch is whole, or will never be.
    ended: Condvar,
    pack: PackSpec,
    options: Options,
    /// The mixture's.
    lanes: u64,
    /// For the batches' arrays, and for the numbers of their rows' sources.
    shelf: Arc<Shelf>,
    sources: Arc<Shelf>,
    /// How many steps from the next one on may be begun.
    ahead: u64,
}

#[derive(Debug)]
struct State {
    /// The next step to be taken.
    next: u64,
    making: BTreeMap<u64, Making>,
    whole: BTreeMap<u64, Batch>,
    /// The first step that cannot be made, and why.
    fault: Option<(u64, Option<Error>)>,
}

/// A batch under way.
#[derive(Debug)]
struct Making {
    /// Room for rows that nobody has begun.
    room: Vec<Option<RowOut>>,
    written: Vec<Option<Row>>,
    /// The source of each row.
    sources: SlotMut<i32>,
    missing: usize,
}

impl Board {
    /// The batches that `options` want of a mixture with so many lanes, of which `ahead` may be begun.
    pub(super) fn new(pack: PackSpec, options: Options, lanes: u64, ahead: usize) -> Self {
        let next = options.start;
        let state = State { next, making: BTreeMap::new(), whole: BTreeMap::new(), fault: None };
        // Batches are charged in `Shares::fixed`: no more are under way.
        let shelf = || Shelf::new(&Budget::new(u64::MAX), ahead);
        Self {
            state: Mutex::new(state),
            taken: Condvar::new(),
            ended: Condvar::new(),
            pack,
            options,
            lanes,
            shelf: shelf(),
            sources: shelf(),
            ahead: ahead as u64,
        }
    }

    /// Batches that a source makes its rows of at once, at most: it is woken when so many more may be begun.
    pub(super) fn group(&self) -> usize {
        if self.ahead < 4 { 1 } else { self.ahead as usize / 2 }
    }

    /// Waits until a step may be begun; `false` if it is not to be.
    pub(super) fn wait(&self, step: u64, cancel: &Cancel) -> bool {
        let mut state = self.lock();
        while step >= state.next + self.ahead {
            if cancel.check().is_err() {
                return false;
            }
            state = self.taken.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        cancel.check().is_ok()
    }

    /// Whether a step may be begun.
    pub(super) fn is_open(&self, step: u64) -> bool {
        step < self.lock().next + self.ahead
    }

    /// Room for some of the rows of a step, by their places among the rank's.
    pub(super) fn room(&self, step: u64, places: &[usize]) -> Result<Vec<RowOut>> {
        let mut state = self.lock();
        let making = match state.making.entry(step) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.begin(step)?),
        };
        let twice = || Error::Internal(format!("a row of step {step} was asked for twice"));
        places.iter().map(|&place| making.room.get_mut(place).and_then(Option::take).ok_or_else(twice)).collect()
    }

    fn begin(&self, step: u64) -> Result<Making> {
        let rows = (self.options.steps.batch_of(step) / self.options.world) as usize;
        let mut layout = Layout::new();
        let sources = layout.add::<i32>(rows);
        let arena =
            self.sources.take(&layout)?.ok_or_else(|| Error::Internal("a batch beyond the budget".to_owned()))?;
        Ok(Making {
            room: room(&self.pack, false, &self.shelf, rows)?.into_iter().map(Some).collect(),
            written: (0..rows).map(|_| None).collect(),
            sources: arena.carve(sources),
            missing: rows,
        })
    }

    /// Takes rows of a step that were written, with their places. Nobody hears of it before [`Board::tell`].
    pub(super) fn put(&self, step: u64, source: usize, rows: impl Iterator<Item = (usize, Row)>) -> Result<()> {
        let mut state = self.lock();
        let Some(making) = state.making.get_mut(&step) else { return Ok(()) };
        for (place, row) in rows {
            making.written[place] = Some(row);
            making.sources[place] = source as i32;
            making.missing -= 1;
        }
        if making.missing > 0 {
            return Ok(());
        }
        let whole = state.making.remove(&step);
        drop(state);
        let Some(batch) = whole.map(|making| self.finish(step, making)).transpose()? else { return Ok(()) };
        self.lock().whole.insert(step, batch);
        Ok(())
    }

    /// Wakes who waits for a batch, if rows that were taken have made it whole: once for all of these.
    pub(super) fn tell(&self) {
        let state = self.lock();
        if state.whole.contains_key(&state.next) {
            self.ended.notify_all();
        }
    }

    /// The batch of a step, of which all rows were written.
    fn finish(&self, step: u64, making: Making) -> Result<Batch> {
        let Options { steps, world, rank, .. } = &self.options;
        let rows = rank_rows(self.lanes, steps.row_of(step), steps.batch_of(step), *world, *rank);
        let job = Job { step, epoch: 0, rows, places: Vec::new() };
        let mut batch = finish(&self.pack, job, &mut making.written.into_iter().flatten())?;
        batch.owners = making.sources[..batch.rows.len()].iter().map(|&source| source as u32).collect();
        let numbers = Numbers::I32(making.sources.freeze(batch.rows.len()));
        batch.arrays.push(Array { kind: ArrayKind::Source, numbers, width: None });
        Ok(batch)
    }

    /// Says that a step cannot be made.
    pub(super) fn fail(&self, step: u64, error: Error) {
        let mut state = self.lock();
        if state.fault.as_ref().is_none_or(|(first, _)| step < *first) {
            state.fault = Some((step, Some(error)));
        }
        self.ended.notify_all();
    }

    /// Waits up to `timeout` for the batch of a step, and goes on to `next`.
    pub(super) fn take(&self, step: u64, next: u64, timeout: Duration) -> Result<Option<Batch>> {
        let mut state = self.lock();
        if state.next < step {
            // Steps were passed over.
            state.next = step;
            self.taken.notify_all();
        }
        let waits = |state: &mut State| {
            !state.whole.contains_key(&step) && state.fault.as_ref().is_none_or(|(first, _)| *first > step)
        };
        let waited = self.ended.wait_timeout_while(state, timeout, waits);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(batch) = state.whole.remove(&step) {
            state.next = next;
            if next.is_multiple_of(self.group() as u64) {
                self.taken.notify_all();
            }
            return Ok(Some(batch));
        }
        match &mut state.fault {
            Some((first, error)) if *first <= step => {
                Err(error.take().unwrap_or_else(|| Error::Internal("a batch after a fault".to_owned())))
            }
            _ => Ok(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
