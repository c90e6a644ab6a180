//! Worker threads: CPU work in two queues, of which the urgent one goes first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};

use super::decode::Scratch;
use crate::error::{Error, Result};

/// A piece of work. It reports its own result; a panic inside it must be caught there, see [`guarded`].
pub type Task = Box<dyn FnOnce(&mut Scratch) + Send>;

/// Threads that end when the pool is dropped, after the tasks that are queued; those of a cancelled engine end at once.
///
/// The queues are unbounded: what is in them is bounded by the windows and the batch in progress.
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

    /// Queues work that a batch waits for.
    pub fn urgent(&self, task: impl FnOnce(&mut Scratch) + Send + 'static) {
        if let Some((urgent, _)) = &self.queues {
            // Threads end only after `queues` is gone, so there is a receiver.
            drop(urgent.send(Box::new(task)));
        }
    }

    /// Queues work ahead.
    pub fn regular(&self, task: impl FnOnce(&mut Scratch) + Send + 'static) {
        if let Some((_, regular)) = &self.queues {
            drop(regular.send(Box::new(task)));
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_tasks_run_and_dropping_waits_for_them() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = Pool::start(2, 1 << 10).unwrap();
        for number in 0..100 {
            let done = Arc::clone(&done);
            let task = move |_: &mut Scratch| {
                done.fetch_add(1, Ordering::Relaxed);
            };
            if number % 2 == 0 { pool.urgent(task) } else { pool.regular(task) }
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let error = guarded::<()>(|| panic!("boom")).unwrap_err();
        assert!(error.to_string().contains("boom"));
    }
}
