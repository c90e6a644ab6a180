//! Batches that several engines write rows to: each has the rows of its own run, and the batch is there when all are.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::assemble::{RowDone, RowOut, room};
use super::memory::Shelf;
use super::pool::POLL;
use super::run::PackSpec;
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// A row that was written, and which source it is of.
pub(super) type Written = (usize, RowDone);

/// The batches under way.
#[derive(Debug)]
pub(super) struct Board {
    state: Mutex<State>,
    /// A batch was taken, and others may be begun.
    taken: Condvar,
    /// A batch is whole, or will never be.
    ended: Condvar,
    pack: PackSpec,
    shelf: Arc<Shelf>,
    /// How many steps from the next one on may be begun.
    ahead: u64,
}

#[derive(Debug)]
struct State {
    /// The next step to be taken.
    next: u64,
    batches: BTreeMap<u64, Making>,
    /// The first step that cannot be made, and why.
    fault: Option<(u64, Option<Error>)>,
}

/// A batch under way.
#[derive(Debug)]
struct Making {
    /// Room for rows that nobody has begun.
    room: Vec<Option<RowOut>>,
    written: Vec<Option<Written>>,
    missing: usize,
}

impl Board {
    /// Batches from `step` on, of which `ahead` may be begun, in memory from `shelf`.
    pub(super) fn new(pack: PackSpec, shelf: Arc<Shelf>, step: u64, ahead: u64) -> Self {
        let state = Mutex::new(State { next: step, batches: BTreeMap::new(), fault: None });
        Self { state, taken: Condvar::new(), ended: Condvar::new(), pack, shelf, ahead }
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

    /// Room for some of the `rows` rows of a step.
    pub(super) fn room(&self, step: u64, rows: usize, places: &[usize]) -> Result<Vec<RowOut>> {
        let mut state = self.lock();
        let making = match state.batches.entry(step) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let room = room(&self.pack, false, &self.shelf, rows)?.into_iter().map(Some).collect();
                entry.insert(Making { room, written: (0..rows).map(|_| None).collect(), missing: rows })
            }
        };
        let twice = || Error::Internal(format!("a row of step {step} was asked for twice"));
        places.iter().map(|&place| making.room.get_mut(place).and_then(Option::take).ok_or_else(twice)).collect()
    }

    /// Takes rows of a step that were written, with their places.
    pub(super) fn put(&self, step: u64, source: usize, rows: impl Iterator<Item = (usize, RowDone)>) {
        let mut state = self.lock();
        let is_next = step == state.next;
        let Some(making) = state.batches.get_mut(&step) else { return };
        for (place, row) in rows {
            making.written[place] = Some((source, row));
            making.missing -= 1;
        }
        // Nobody waits for a later one.
        if making.missing == 0 && is_next {
            self.ended.notify_all();
        }
    }

    /// Says that a step cannot be made.
    pub(super) fn fail(&self, step: u64, error: Error) {
        let mut state = self.lock();
        if state.fault.as_ref().is_none_or(|(first, _)| step < *first) {
            state.fault = Some((step, Some(error)));
        }
        self.ended.notify_all();
    }

    /// Waits up to `timeout` for the rows of a step, in their order, and goes on to `next`.
    pub(super) fn take(&self, step: u64, next: u64, timeout: Duration) -> Result<Option<Vec<Written>>> {
        let mut state = self.lock();
        if state.next < step {
            // Steps were passed over.
            state.next = step;
            self.taken.notify_all();
        }
        let waits = |state: &mut State| {
            state.batches.get(&step).is_none_or(|making| making.missing > 0)
                && state.fault.as_ref().is_none_or(|(first, _)| *first > step)
        };
        let waited = self.ended.wait_timeout_while(state, timeout, waits);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.batches.get(&step).is_some_and(|making| making.missing == 0) {
            let making = state.batches.remove(&step);
            state.next = next;
            // Whoever waits is woken for several steps at once.
            if self.ahead < 4 || next.is_multiple_of(self.ahead / 2) {
                self.taken.notify_all();
            }
            return Ok(making.map(|making| making.written.into_iter().flatten().collect()));
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
