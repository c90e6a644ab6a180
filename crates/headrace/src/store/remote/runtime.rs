//! The one HTTP runtime of the process, its one limit on requests, and how a thread waits for work on it.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use once_cell::race::OnceBox;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// Requests under way at once. Scope: the process, all stores together, reads and listings. Unit: requests.
/// Evidence: the provider of S3 advises one request per 85 to 90 MB/s wanted, so 32 fill a 20 Gbit/s link; servers
/// of the size that people run themselves begin to refuse connections at some hundreds, and a node has several
/// processes. `HEADRACE_CONCURRENT_REQUESTS` overrides it.
///
/// A permit is held from the sending of a request to the last byte of its body, and the body is read by the
/// runtime whether or not anybody waits for it. So a holder never waits for a consumer, and the limit cannot
/// deadlock; a limit per store could not be kept for a server that serves several stores.
const CONCURRENT_REQUESTS: usize = 32;

/// Bodies under way that are written, beside the limit on requests. Scope: the process. Evidence: at 64 MiB in all they keep
/// a line of 10 Gbit/s busy whose answers take 50 ms; more would each be sent too slowly on a thin line.
const UPLOADS: usize = 8;

/// Threads of the runtime: it only moves bytes and encrypts, decoding happens elsewhere. One alone would let a
/// large decryption delay the timers of other requests.
const THREADS: usize = 2;

/// How often a waiting thread looks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);

/// What is made once, on first use, in each process: threads do not survive a fork.
struct Once<T: 'static>(OnceBox<PerProcess<Mutex<Option<&'static T>>>>);

impl<T: Sync> Once<T> {
    const fn new() -> Self {
        Self(OnceBox::new())
    }

    fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<&'static T> {
        let own = self.0.get_or_init(Box::default).get();
        let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
        match *own {
            Some(value) => Ok(value),
            None => Ok(own.insert(Box::leak(Box::new(make()?)))),
        }
    }
}

/// The runtime, started on first use and never at import.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: Once<Runtime> = Once::new();
    RUNTIME.get(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("headrace-http")
            .enable_all()
            .build()
            .map_err(|error| Error::Internal(format!("the HTTP runtime did not start: {error}")))
    })
}

/// The limit on requests under way.
pub(crate) fn permits() -> Result<&'static Arc<Semaphore>> {
    static PERMITS: Once<Arc<Semaphore>> = Once::new();
    PERMITS.get(|| {
        let wanted = std::env::var("HEADRACE_CONCURRENT_REQUESTS").ok().and_then(|text| text.parse().ok());
        Ok(Arc::new(Semaphore::new(wanted.unwrap_or(CONCURRENT_REQUESTS).clamp(1, 4096))))
    })
}

/// The limit on bodies under way that are written. Its holder may wait for a permit of a request, never the other way.
pub(crate) fn uploads() -> Result<&'static Arc<Semaphore>> {
    static UPLOADING: Once<Arc<Semaphore>> = Once::new();
    UPLOADING.get(|| Ok(Arc::new(Semaphore::new(UPLOADS))))
}

/// Work on the runtime that somebody will wait for. Dropping it stops the work.
pub(crate) struct Task<T> {
    result: Receiver<T>,
    abort: Option<AbortHandle>,
}

impl<T: Send + 'static> Task<T> {
    /// Starts the work at once.
    pub(crate) fn spawn(work: impl Future<Output = T> + Send + 'static) -> Result<Self> {
        let (sender, result) = bounded(1);
        let handle = runtime()?.spawn(async move {
            let value = work.await;
            // The receiver is gone if nobody waits any more; then the value is not wanted.
            let _ = sender.send(value);
        });
        Ok(Self { result, abort: Some(handle.abort_handle()) })
    }

    /// Waits for the result, or until `cancel` is raised.
    pub(crate) fn wait(self, cancel: &Cancel) -> Result<T> {
        loop {
            match self.result.recv_timeout(LOOK) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => cancel.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("a task of the HTTP runtime panicked".to_owned()));
                }
            }
        }
    }
}

impl<T> Task<T> {
    /// Lets the work go on without anybody, having waited for it so long.
    pub(crate) fn leave(mut self, after: Duration) {
        // Whatever came of it, nobody asks.
        drop(self.result.recv_timeout(after));
        self.abort = None;
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }
}
