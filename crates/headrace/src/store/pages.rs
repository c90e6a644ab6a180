//! A listing that is taken page by page, while a thread goes on with it.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded, never};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::store::{Entry, Store};

/// Entries of a page. Scope: a listing. Evidence: what a page of a bucket's listing has.
const PAGE: usize = 1000;

/// Pages that wait to be taken. Scope: a listing. Evidence: one is used while the next is asked for.
const WAITING: usize = 2;

/// How often a thread that waits looks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// The files whose paths begin with something, in pages. Dropping it ends the listing.
#[derive(Debug)]
pub struct Pages {
    pages: Receiver<Result<Vec<Entry>>>,
    cancel: Cancel,
    /// Its thread does not live in a forked child.
    process: u32,
}

impl Pages {
    /// Begins to list. `ordered` gives the files by their paths' bytes, once all are known; otherwise they come as the store
    /// tells them, and only some pages are in memory.
    pub fn start(store: Arc<dyn Store>, start: String, ordered: bool) -> Result<Self> {
        let (sender, pages) = bounded(WAITING);
        let cancel = Cancel::new();
        let own = cancel.clone();
        let work = move || {
            if let Err(error) = list(store.as_ref(), &start, ordered, &own, &sender) {
                give(&sender, &own, Err(error));
            }
        };
        let spawned = std::thread::Builder::new().name("headrace-list".to_owned()).spawn(work);
        spawned.map_err(|e| Error::Internal(format!("a thread for a listing did not start: {e}")))?;
        Ok(Self { pages, cancel, process: std::process::id() })
    }

    /// The next files; none after the last, and it is not asked again.
    pub fn next(&self, cancel: &Cancel) -> Result<Vec<Entry>> {
        if self.process != std::process::id() {
            return Err(Error::Argument("a listing that another process began cannot be gone on with".to_owned()));
        }
        loop {
            match self.pages.recv_timeout(LOOK) {
                Ok(page) => return page,
                Err(RecvTimeoutError::Timeout) => cancel.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("the thread of a listing ended before the listing".to_owned()));
                }
            }
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.cancel.cancel();
        if self.process != std::process::id() {
            // What its thread had locked stays locked for ever.
            std::mem::forget(std::mem::replace(&mut self.pages, never()));
        }
    }
}

fn list(
    store: &dyn Store,
    start: &str,
    ordered: bool,
    cancel: &Cancel,
    sender: &Sender<Result<Vec<Entry>>>,
) -> Result<()> {
    let mut found = Vec::new();
    store.entries(start, cancel, &mut |entry| {
        found.push(entry);
        if !ordered && found.len() == PAGE {
            give(sender, cancel, Ok(std::mem::take(&mut found)));
        }
    })?;
    found.sort_unstable_by(|a, b| a.object.path.cmp(&b.object.path));
    let mut rest = found.into_iter();
    loop {
        let page: Vec<Entry> = rest.by_ref().take(PAGE).collect();
        let is_end = page.is_empty();
        if !give(sender, cancel, Ok(page)) || is_end {
            return Ok(());
        }
    }
}

/// Hands a page over; whether it is still wanted.
fn give(sender: &Sender<Result<Vec<Entry>>>, cancel: &Cancel, page: Result<Vec<Entry>>) -> bool {
    let mut page = page;
    while !cancel.is_cancelled() {
        match sender.send_timeout(page, LOOK) {
            Ok(()) => return true,
            Err(SendTimeoutError::Timeout(back)) => page = back,
            Err(SendTimeoutError::Disconnected(_)) => return false,
        }
    }
    false
}
