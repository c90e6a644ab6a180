//! Batches of [`StoredRows`], gathered ahead of use by threads that need nothing else.
//!
//! What is to come is known in full when a feed begins: a few stretches of batches that follow one rule each. Threads
//! claim batches in order, some small ones at a time, and put each into its slot; whoever asks gets them in that order.
//! A batch that could not be gathered is an error in its place, and those behind it follow.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::Slot;
use super::pool::guarded;
use super::stored::StoredRows;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::order::Permutation;

/// Batches that a thread claims at once have about so many bytes: waking a thread costs as much as copying some 50 KB.
const TOGETHER_BYTES: usize = 512 << 10;

/// Batches that a thread claims at once, at most.
const TOGETHER: usize = 64;

/// Batches that follow one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The step of the first one.
    pub step: u64,
    /// The place of its first row in the order.
    pub first: u64,
    /// Rows of each.
    pub rows: u64,
    /// From the first row of a batch to that of the next.
    pub apart: u64,
    /// Batches.
    pub count: u64,
}

/// Rows, and what they are.
#[derive(Debug)]
pub struct RowBatch {
    /// The step.
    pub step: u64,
    /// The number of each row's item.
    pub items: Vec<i64>,
    /// Their bytes, one behind another: an array, or one for each field.
    pub arrays: Result<Vec<Slot<u8>>>,
}

/// What [`RowFeed::next`] found.
#[derive(Debug)]
pub enum Fed {
    /// The next batch.
    Batch(Box<RowBatch>),
    /// None within the time; ask again.
    Pending,
    /// There is none.
    End,
}

/// What a feed may use.
#[derive(Debug, Clone, Copy)]
pub struct FeedMeans {
    /// Threads; with 0 whoever asks gathers.
    pub workers: usize,
    /// Batches that may be ready or begun, at least.
    pub ahead: usize,
    /// Bytes that these may take, beyond one batch. Scope: this feed.
    pub memory: u64,
}

/// Gives batches in order. Dropping it ends its threads, each after what it is at; nobody waits for them.
#[derive(Debug)]
pub struct RowFeed {
    shared: Arc<Shared>,
    workers: usize,
    /// The process that its threads live in.
    process: u32,
}

#[derive(Debug)]
struct Shared {
    rows: Arc<StoredRows>,
    /// Raised when nothing more is wanted.
    cancel: Cancel,
    /// From places to items; `None` if they are the same.
    order: Option<Permutation>,
    /// Batches that are claimed at once.
    together: usize,
    /// Batches that are ready or begun, at most; no less than twice `together`.
    limit: usize,
    state: Mutex<State>,
    /// There is room for `together` batches.
    room: Condvar,
    /// The next batch is ready.
    ready: Condvar,
}

#[derive(Debug)]
struct State {
    /// What nobody has claimed.
    left: VecDeque<Stretch>,
    /// Claimed batches that were not given, in order.
    slots: VecDeque<Option<RowBatch>>,
    /// Batches that were given.
    given: u64,
    /// Threads that wait for room.
    idle: usize,
    is_awaited: bool,
    is_closed: bool,
}

/// A claimed batch.
#[derive(Debug, Clone, Copy)]
struct Task {
    step: u64,
    first: u64,
    rows: u64,
}

impl RowFeed {
    /// Starts to gather batches of all items, or of the first ones if the order is of fewer.
    ///
    /// # Errors
    /// [`Error::Argument`] for batches of rows that there are not.
    pub fn start(
        rows: Arc<StoredRows>,
        order: Option<Permutation>,
        stretches: Vec<Stretch>,
        means: FeedMeans,
    ) -> Result<Self> {
        let size = order.as_ref().map_or(rows.len(), Permutation::size);
        if size > rows.len() {
            return Err(Error::Argument(format!("expected an order of {} items, got one of {size}", rows.len())));
        }
        for stretch in &stretches {
            let last = stretch.count.checked_sub(1).and_then(|last| last.checked_mul(stretch.apart));
            let end = last.and_then(|last| last.checked_add(stretch.first)?.checked_add(stretch.rows));
            if stretch.rows == 0 || end.is_none_or(|end| end > size) {
                return Err(Error::Argument(format!("there are no batches {stretch:?} of {size} rows")));
            }
        }
        let most = stretches.iter().map(|stretch| stretch.rows).max().unwrap_or(1);
        let bytes = (rows.row_bytes() as u64).saturating_mul(most).max(1);
        let fit = |budget: u64| usize::try_from(budget / bytes).unwrap_or(usize::MAX);
        let together = fit((TOGETHER_BYTES as u64).min(means.memory / 2)).clamp(1, TOGETHER);
        let wanted = means.ahead.max((means.workers + 1) * together);
        let limit = wanted.min(fit(means.memory)).max(2 * together);
        let state = State {
            left: stretches.into(),
            slots: VecDeque::new(),
            given: 0,
            idle: 0,
            is_awaited: false,
            is_closed: false,
        };
        let shared = Arc::new(Shared {
            rows,
            cancel: Cancel::new(),
            order,
            together,
            limit,
            state: Mutex::new(state),
            room: Condvar::new(),
            ready: Condvar::new(),
        });
        // Made first: if a thread cannot be started, those before it end with it.
        let feed = Self { shared, workers: means.workers, process: std::process::id() };
        for number in 0..means.workers {
            let shared = Arc::clone(&feed.shared);
            std::thread::Builder::new()
                .name(format!("headrace-rows-{number}"))
                .spawn(move || shared.work())
                .map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        }
        Ok(feed)
    }

    /// What makes [`Self::next`] return early, if whoever asks gathers and has to wait for a store. Nothing more can be asked
    /// for then.
    pub fn waits(&self) -> Option<&Cancel> {
        (self.workers == 0 && self.shared.rows.is_remote()).then_some(&self.shared.cancel)
    }

    /// The next batch if it is ready, without waiting for anything.
    pub fn ready(&self) -> Option<RowBatch> {
        self.shared.pop(&mut *self.shared.state.try_lock().ok()?)
    }

    /// Waits up to `timeout` for the next batch, and makes some meanwhile where no disk or store is waited for. For one thread
    /// at a time.
    pub fn next(&self, timeout: Duration) -> Fed {
        let shared = &self.shared;
        let end = Instant::now() + timeout;
        let mut state = shared.lock();
        loop {
            if let Some(batch) = shared.pop(&mut state) {
                return Fed::Batch(Box::new(batch));
            }
            if state.left.is_empty() && state.slots.is_empty() {
                return Fed::End;
            }
            let helps = self.workers == 0 || shared.rows.is_warm();
            if helps && !state.left.is_empty() && state.slots.len() < shared.limit {
                // That takes as long as to sleep until another thread has made one.
                let (number, tasks) = state.claim(1);
                drop(state);
                shared.make(number, &tasks);
                state = shared.lock();
                continue;
            }
            let Some(left) = end.checked_duration_since(Instant::now()) else { return Fed::Pending };
            state.is_awaited = true;
            state = shared.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.is_awaited = false;
        }
    }
}

impl Drop for RowFeed {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // In a forked child its threads are not there, and what they had locked stays locked for ever.
            return;
        }
        self.shared.cancel.cancel();
        let mut state = self.shared.lock();
        state.is_closed = true;
        let (left, slots) = (std::mem::take(&mut state.left), std::mem::take(&mut state.slots));
        drop(state);
        self.shared.room.notify_all();
        drop((left, slots));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next batch if it is ready, and wakes threads if there is room for much.
    fn pop(&self, state: &mut State) -> Option<RowBatch> {
        let batch = state.slots.front_mut()?.take()?;
        state.slots.pop_front();
        state.given += 1;
        if state.idle > 0 && state.slots.len() <= self.limit / 2 {
            self.room.notify_all();
        }
        Some(batch)
    }

    /// The life of a thread.
    fn work(&self) {
        while let Some((number, tasks)) = self.claim_some() {
            self.make(number, &tasks);
        }
    }

    /// Claims the next batches when there is room for them, and says how many came before them; `None` when all are
    /// claimed.
    fn claim_some(&self) -> Option<(u64, Vec<Task>)> {
        let mut state = self.lock();
        while !state.is_closed && state.slots.len() + self.together > self.limit {
            state.idle += 1;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        // The first ones come alone, so that none waits for those behind it.
        let count = if state.given == 0 && state.slots.len() < self.together { 1 } else { self.together };
        let (number, tasks) = state.claim(count);
        (!tasks.is_empty()).then_some((number, tasks))
    }

    /// Makes the batches of some tasks, before which came so many.
    fn make(&self, number: u64, tasks: &[Task]) {
        let mut batches = Vec::with_capacity(tasks.len());
        let mut items = Vec::new();
        // The places of batches that follow one another are looked up at once.
        for tasks in tasks.chunk_by(|one, next| one.end() == next.first) {
            items.clear();
            let places = tasks[0].first..tasks.last().map_or(0, Task::end);
            let found = guarded(|| match &self.order {
                Some(order) => order.take(places, &mut items),
                None => {
                    items.extend(places.map(|place| place as i64));
                    Ok(())
                }
            });
            let mut rest = &items[..];
            for task in tasks {
                let items;
                (items, rest) = rest.split_at(rest.len().min(task.rows as usize));
                batches.push(found.clone().map(|()| items.to_vec()));
            }
        }
        // What a store is asked for at once comes at once; else each batch is there for who waits when it was made.
        let together = if self.rows.is_remote() { tasks.len().max(1) } else { 1 };
        let mut numbers = number..;
        for (tasks, batches) in tasks.chunks(together).zip(batches.chunks_mut(together)) {
            let items: Vec<&[i64]> = batches.iter().map(|items| items.as_deref().unwrap_or_default()).collect();
            let taken = guarded(|| Ok(self.rows.take(&items, &self.cancel)));
            let taken = taken.unwrap_or_else(|error| vec![Err(error); tasks.len()]);
            for (((task, items), arrays), number) in tasks.iter().zip(batches).zip(taken).zip(&mut numbers) {
                let (items, arrays) = match std::mem::replace(items, Ok(Vec::new())) {
                    Ok(items) => (items, arrays),
                    Err(error) => (Vec::new(), Err(error)),
                };
                self.put(number, RowBatch { step: task.step, items, arrays });
            }
        }
    }

    /// Puts a batch, before which came so many, into its slot.
    fn put(&self, number: u64, batch: RowBatch) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        // None before a claimed one that is missing was given.
        let first = (number - state.given) as usize;
        state.slots[first] = Some(batch);
        if first == 0 && state.is_awaited {
            self.ready.notify_one();
        }
    }
}

impl State {
    /// Claims the next batches, at most `count`, and says how many came before them.
    fn claim(&mut self, count: usize) -> (u64, Vec<Task>) {
        let number = self.given + self.slots.len() as u64;
        let tasks: Vec<_> = std::iter::from_fn(|| claim(&mut self.left)).take(count).collect();
        self.slots.resize_with(self.slots.len() + tasks.len(), || None);
        (number, tasks)
    }
}

impl Task {
    /// The place behind its last row.
    fn end(&self) -> u64 {
        self.first + self.rows
    }
}

fn claim(left: &mut VecDeque<Stretch>) -> Option<Task> {
    let stretch = left.front_mut()?;
    let task = Task { step: stretch.step, first: stretch.first, rows: stretch.rows };
    stretch.count -= 1;
    if stretch.count == 0 {
        left.pop_front();
    } else {
        stretch.step += 1;
        stretch.first += stretch.apart;
    }
    Some(task)
}

#[cfg(test)]
mod tests {
    use super::super::gather::Values;
    use super::super::open_files::StoredFile;
    use super::super::stored::{Piece, RowShape, RowsKept, Stored};
    use super::*;
    use crate::store::Version;
    use proptest::prelude::*;

    /// A file of items of two bytes, item i holds i; and its folder.
    fn stored(count: u16) -> (tempfile::TempDir, Arc<StoredRows>) {
        let bytes: Vec<u8> = (0..count).flat_map(u16::to_le_bytes).collect();
        stored_bytes(&bytes, 2)
    }

    /// A file, its items of so many bytes, and its folder.
    fn stored_bytes(bytes: &[u8], width: usize) -> (tempfile::TempDir, Arc<StoredRows>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("items");
        std::fs::write(&path, bytes).unwrap();
        let file = StoredFile::new(path, bytes.len() as u64, Version::Unknown);
        let piece = Piece { file: 0, start: 0, items: (bytes.len() / width) as u64 };
        let shape = RowShape { stride: width as u64, width, values: Values::Stored };
        let kept = RowsKept { batches: 4, files: 256 };
        (folder, Arc::new(StoredRows::new(Stored::Disk(vec![file]), vec![piece], shape, kept).unwrap()))
    }

    fn means(workers: usize, ahead: usize, memory: u64) -> FeedMeans {
        FeedMeans { workers, ahead, memory }
    }

    fn all(feed: &RowFeed) -> Vec<RowBatch> {
        std::iter::from_fn(|| match feed.next(Duration::from_secs(60)) {
            Fed::Batch(batch) => Some(*batch),
            Fed::End => None,
            Fed::Pending => panic!("no batch within a minute"),
        })
        .collect()
    }

    proptest! {
        #[test]
        fn batches_come_in_order_whoever_gathers(
            workers in 0_usize..4, ahead in 1_usize..9, memory in 0_u64..600, is_shuffled: bool,
            rows in 1_u64..9, apart in 0_u64..20, count in 1_u64..300,
        ) {
            let (_folder, stored) = stored(6_100);
            let order = is_shuffled.then(|| Permutation::new(6_100, 7, 3).unwrap());
            let stretches = vec![
                Stretch { step: 5, first: 3, rows, apart, count },
                Stretch { step: 900, first: 0, rows: 2, apart: 9, count: 1 },
            ];
            let feed = RowFeed::start(stored, order.clone(), stretches, means(workers, ahead, memory)).unwrap();
            let found = all(&feed);
            let mut wanted: Vec<(u64, u64, u64)> =
                (0..count).map(|number| (5 + number, 3 + number * apart, rows)).collect();
            wanted.push((900, 0, 2));
            prop_assert_eq!(found.len(), wanted.len());
            for (batch, (step, first, rows)) in found.iter().zip(wanted) {
                let items: Vec<i64> = (first..first + rows)
                    .map(|place| order.as_ref().map_or(place, |order| order.at(place)) as i64)
                    .collect();
                let bytes: Vec<u8> = items.iter().flat_map(|&item| (item as u16).to_le_bytes()).collect();
                prop_assert_eq!((batch.step, &batch.items), (step, &items));
                prop_assert_eq!(&*batch.arrays.as_ref().unwrap()[0], &bytes[..]);
            }
            prop_assert!(matches!(feed.next(Duration::ZERO), Fed::End) && feed.ready().is_none());
        }
    }

    #[test]
    fn no_more_is_made_ahead_than_there_may_be() {
        let (_folder, stored) = stored(6_000);
        for (memory, most) in [(u64::MAX, 192), (100, 50), (0, 2)] {
            let stretches = vec![Stretch { step: 0, first: 0, rows: 1, apart: 1, count: 6_000 }];
            let feed = RowFeed::start(Arc::clone(&stored), None, stretches, means(2, 1, memory)).unwrap();
            // When both threads wait for room, as much is there as may be.
            while feed.shared.lock().idle < 2 {
                std::thread::yield_now();
            }
            let made = feed.shared.lock().slots.len();
            assert!(made <= most && made > most / 3, "{made} of {most}");
        }
    }

    #[test]
    fn a_batch_that_cannot_be_read_is_an_error_in_its_place() {
        let (folder, stored) = stored(100);
        std::fs::write(folder.path().join("items"), b"short").unwrap();
        let stretches = vec![Stretch { step: 0, first: 0, rows: 5, apart: 5, count: 20 }];
        let feed = RowFeed::start(stored, None, stretches, means(2, 4, u64::MAX)).unwrap();
        let found = all(&feed);
        assert_eq!(found.len(), 20);
        assert!(found.iter().all(|batch| matches!(batch.arrays, Err(Error::Changed { .. }))));
    }

    #[test]
    fn rows_that_there_are_not_are_refused() {
        let (_folder, stored) = stored(10);
        let refused = |order, first, rows, apart, count| {
            let stretches = vec![Stretch { step: 0, first, rows, apart, count }];
            let found = RowFeed::start(Arc::clone(&stored), order, stretches, means(0, 1, 0));
            assert!(matches!(found, Err(Error::Argument(_))), "{found:?}");
        };
        for (first, rows, apart, count) in
            [(0, 0, 1, 1), (0, 4, 4, 3), (8, 3, 0, 1), (0, 1, 1, 0), (0, u64::MAX, 0, 1), (0, 1, u64::MAX, 3)]
        {
            refused(None, first, rows, apart, count);
        }
        refused(Some(Permutation::new(11, 0, 0).unwrap()), 0, 1, 1, 1);
    }

    #[test]
    fn who_asks_makes_batches_where_nothing_is_waited_for() {
        let (_folder, stored) = stored_bytes(&vec![7; 64 << 16], 1 << 16);
        let alone = |rows: &Arc<StoredRows>| {
            let stretches = vec![Stretch { step: 0, first: 0, rows: 8, apart: 8, count: 8 }];
            let mut feed = RowFeed::start(Arc::clone(rows), None, stretches, means(0, 1, u64::MAX)).unwrap();
            // As if it had threads that never come to it.
            feed.workers = 2;
            feed
        };
        assert!(matches!(alone(&stored).next(Duration::from_millis(1)), Fed::Pending));
        let numbers: Vec<i64> = (0..64).collect();
        for _ in 0..4 {
            stored.take(&[&numbers], &Cancel::new()).remove(0).unwrap();
        }
        if !stored.is_warm() {
            // Its file system does not tell, or memory is full.
            return;
        }
        let feed = alone(&stored);
        for number in 0..8 {
            let Fed::Batch(batch) = feed.next(Duration::from_millis(1)) else {
                assert!(!stored.is_warm(), "nobody made batch {number}");
                return;
            };
            assert_eq!(batch.items, (number * 8..number * 8 + 8).collect::<Vec<_>>());
            assert!(batch.arrays.unwrap()[0].iter().all(|&byte| byte == 7));
        }
        assert!(matches!(feed.next(Duration::ZERO), Fed::End));
    }

    #[test]
    fn dropping_ends_the_threads() {
        let (_folder, stored) = stored(6_000);
        let stretches = vec![Stretch { step: 0, first: 0, rows: 1, apart: 1, count: 6_000 }];
        let feed = RowFeed::start(stored, None, stretches, means(3, 1, 100)).unwrap();
        assert!(matches!(feed.next(Duration::from_secs(60)), Fed::Batch(_)));
        let shared = Arc::downgrade(&feed.shared);
        drop(feed);
        let end = Instant::now() + Duration::from_secs(60);
        while shared.upgrade().is_some() {
            assert!(Instant::now() < end, "a thread did not end");
            std::thread::yield_now();
        }
    }
}
