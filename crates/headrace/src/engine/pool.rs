//! Worker threads: CPU work in two queues, of which the urgent one goes first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};

use super::decode::Scratch;
use crate::cancel::Cancel;
use crate::error::{Error, Result};

/// A piece of work. It reports its own result; a panic inside it must be caught there, see [`guarded`].
type Task = Box<dyn FnOnce(&mut Scratch) + Send>;

/// How often a thread that waits for work looks whether it was cancelled.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// Threads that end when the pool is dropped, after the tasks that are queued; those of a cancelled engine end at once.
///
/// The queues are unbounded: what is in them is bounded by the windows and the batches in progress.
#[derive(Debug)]
pub struct Pool {
    queues: Option<(Sender<Task>, Sender<Task>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` threads, each with its own scratch for blocks of `block` bytes.
    pub fn start(threads: usize, block: usize) -> Result<Self> {
        let (urgent, urgent_tasks) = unbounded();
        let (regular, regular_tasks) = unbounded();
        let mut pool = Self { queues: Some((urgent, regular)), threads: Vec::new() };
        for number in 0..threads {
            let (urgent, regular) = (urgent_tasks.clone(), regular_tasks.clone());
            let thread = std::thread::Builder::new()
                .name(format!("headrace-{number}"))
                .spawn(move || work(&urgent, &regular, Scratch::new(block)))
                .map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Threads of the pool.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Queues work ahead of use, and returns what will have its results.
    pub fn decode<T: Send + 'static>(
        &self,
        tasks: impl ExactSizeIterator<Item = impl FnOnce(&mut Scratch) -> Result<T> + Send + 'static>,
    ) -> Pending<T> {
        let results = Arc::new(Results::new(tasks.len()));
        for (number, task) in tasks.enumerate() {
            let results = Arc::clone(&results);
            self.queue(false, move |scratch| results.put(number, guarded(|| task(scratch))));
        }
        Pending(results)
    }

    /// Queues one piece of work ahead of use; it reports what came of it, a panic included, itself.
    pub fn later(&self, task: impl FnOnce(&mut Scratch) + Send + 'static) {
        self.queue(false, task);
    }

    /// Does work that a batch waits for: on this thread, and on those of the pool that have nothing more urgent. So it
    /// never waits for a thread that is in the middle of decoding.
    pub fn share<T: Send + 'static>(&self, tasks: Vec<impl FnOnce() -> Result<T> + Send + 'static>) -> Result<Vec<T>> {
        let helpers = tasks.len().saturating_sub(1).min(self.len());
        let results = Arc::new(Results::new(tasks.len()));
        let (queue, rest) = unbounded();
        tasks.into_iter().enumerate().for_each(|task| drop(queue.send(task)));
        drop(queue);
        for _ in 0..helpers {
            let (rest, results) = (rest.clone(), Arc::clone(&results));
            self.queue(true, move |_| {
                rest.try_iter().for_each(|(number, task)| results.put(number, guarded(task)));
            });
        }
        rest.try_iter().for_each(|(number, task)| results.put(number, guarded(task)));
        // What is left is short, and nothing that others do can hold it up.
        Pending(results).finish(&Cancel::new())
    }

    fn queue(&self, is_urgent: bool, task: impl FnOnce(&mut Scratch) + Send + 'static) {
        if let Some((urgent, regular)) = &self.queues {
            // Threads end only after `queues` is gone, so there is a receiver.
            drop(if is_urgent { urgent } else { regular }.send(Box::new(task)));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queues = None;
        for thread in self.threads.drain(..) {
            // A panic was reported by the task that had it.
            drop(thread.join());
        }
    }
}

/// Results that are still to come.
#[derive(Debug)]
pub struct Pending<T>(Arc<Results<T>>);

#[derive(Debug)]
struct Results<T> {
    /// How many are missing, and those that are there.
    state: Mutex<(usize, Vec<Option<Result<T>>>)>,
    complete: Condvar,
}

impl<T> Pending<T> {
    /// Waits for all results. Of several faults that of the first task is reported.
    pub fn finish(self, cancel: &Cancel) -> Result<Vec<T>> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.0 > 0 {
            cancel.check()?;
            state = self.0.complete.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        let missing = || Error::Internal("a task without a result".to_owned());
        std::mem::take(&mut state.1).into_iter().map(|result| result.ok_or_else(missing)?).collect()
    }
}

impl<T> Results<T> {
    fn new(count: usize) -> Self {
        let state = Mutex::new((count, (0..count).map(|_| None).collect()));
        Self { state, complete: Condvar::new() }
    }

    fn put(&self, number: usize, result: Result<T>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 -= 1;
        state.1[number] = Some(result);
        if state.0 == 0 {
            self.complete.notify_all();
        }
    }
}

fn work(urgent: &Receiver<Task>, regular: &Receiver<Task>, mut scratch: Scratch) {
    loop {
        let task = select_biased! {
            recv(urgent) -> task => task,
            recv(regular) -> task => task,
        };
        match task {
            Ok(task) => task(&mut scratch),
            Err(_) => {
                // One queue is closed and empty; so will the other be.
                urgent.iter().chain(regular.iter()).for_each(|task| task(&mut scratch));
                return;
            }
        }
    }
}

/// Runs `work`, and turns a panic into an error.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Internal(text.unwrap_or_else(|| "a worker panicked".to_owned())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_their_tasks_and_dropping_waits() {
        let pool = Pool::start(2, 1 << 10).unwrap();
        let pending = pool.decode((0..100).map(|number| move |_: &mut Scratch| Ok(number)));
        let shared = pool.share((0..100).map(|number| move || Ok(number * 2)).collect()).unwrap();
        assert_eq!(shared, (0..100).map(|number| number * 2).collect::<Vec<_>>());
        drop(pool);
        assert_eq!(pending.finish(&Cancel::new()).unwrap(), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn sharing_does_not_wait_for_threads_that_are_busy() {
        let pool = Pool::start(1, 1 << 10).unwrap();
        let (go, gate) = unbounded::<()>();
        let pending = pool.decode(std::iter::once(move |_: &mut Scratch| {
            gate.recv().unwrap_err();
            Ok(())
        }));
        assert_eq!(pool.share(vec![|| Ok(1), || Ok(1)]).unwrap(), [1, 1]);
        drop(go);
        pending.finish(&Cancel::new()).unwrap();
    }

    #[test]
    fn the_first_fault_is_reported() {
        let pool = Pool::start(2, 1 << 10).unwrap();
        let task = |number: u64| move || if number % 2 == 1 { panic!("task {number}") } else { Ok(number) };
        let error = pool.share((0..10).map(task).collect()).unwrap_err();
        assert!(error.to_string().contains("task 1"), "{error}");
        assert!(pool.share(Vec::<fn() -> Result<()>>::new()).unwrap().is_empty());
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let error = guarded::<()>(|| panic!("boom")).unwrap_err();
        assert!(error.to_string().contains("boom"));
    }
}
