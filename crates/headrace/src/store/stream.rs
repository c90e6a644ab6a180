//! A byte range of an object, read in order, block by block, with reads started ahead of use.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cancel::Cancel;
use crate::error::Result;
use crate::store::{Fetch, Object, Store};

/// Reads a byte range of one object from its start to its end.
///
/// Not for random access. It holds at most `ahead` started reads of `block` bytes each, plus what [`Self::fill`]
/// was asked to put into its caller's buffer.
#[derive(Debug)]
pub struct ByteStream {
    store: Arc<dyn Store>,
    object: Object,
    /// First byte that no read was started for.
    next: u64,
    end: u64,
    block: u64,
    ahead: usize,
    /// Started reads in order, with their lengths.
    started: VecDeque<(Fetch, u64)>,
    /// Bytes at the front of the first started read that nobody wants.
    unwanted: u64,
    cancel: Cancel,
    counter: Option<Arc<AtomicU64>>,
}

impl ByteStream {
    /// A stream over `range` of `object`, which must lie within it.
    ///
    /// `block` is the length of one read in bytes (at least 1), `ahead` how many reads may be under way beyond the
    /// one that is waited for; 0 is right for local files.
    pub fn new(
        store: Arc<dyn Store>,
        object: Object,
        range: Range<u64>,
        block: u64,
        ahead: usize,
        cancel: Cancel,
    ) -> Self {
        let (next, end) = (range.start, range.end.max(range.start));
        Self {
            store,
            object,
            next,
            end,
            block: block.max(1),
            ahead,
            started: VecDeque::new(),
            unwanted: 0,
            cancel,
            counter: None,
        }
    }

    /// Adds the bytes of each read that is started to a counter.
    pub fn counted(self, counter: Arc<AtomicU64>) -> Self {
        Self { counter: Some(counter), ..self }
    }

    /// Bytes that [`Self::fill`] has not handed out yet.
    pub fn remaining(&self) -> u64 {
        self.end - self.next + self.started.iter().map(|(_, len)| len).sum::<u64>() - self.unwanted
    }

    /// Whether all that is left comes with one read of a remote store.
    pub fn is_last_read(&self) -> bool {
        self.store.is_remote() && self.unwanted == 0 && self.remaining() <= self.block
    }

    /// Starts the first reads, so that they are under way before they are waited for.
    pub fn start(&mut self) {
        self.start_at_least(self.block);
    }

    fn start_at_least(&mut self, bytes: u64) {
        while self.started.len() <= self.ahead && self.next < self.end {
            let len = self.block.max(bytes).min(self.end - self.next);
            let fetch = self.store.fetch(&self.object, self.next..self.next + len);
            self.started.push_back((fetch, len));
            self.next += len;
            if let Some(counter) = &self.counter {
                counter.fetch_add(len, Ordering::Relaxed);
            }
        }
    }

    /// Appends whole blocks until `buffer` holds at least `want` bytes or the range ends.
    ///
    /// What `buffer` held before counts, so that a reader can leave in it what it has not used.
    pub fn fill(&mut self, buffer: &mut Vec<u8>, want: usize) -> Result<()> {
        while buffer.len() < want {
            // A local file is read as far as it is wanted; what is asked of a remote one does not depend on pages.
            let missing = if self.store.is_remote() { 0 } else { want - buffer.len() };
            self.start_at_least(missing as u64);
            let Some((fetch, _)) = self.started.pop_front() else { break };
            self.cancel.check()?;
            let before = buffer.len();
            fetch.wait_into(&self.cancel, buffer)?;
            let unwanted = std::mem::take(&mut self.unwanted) as usize;
            buffer.drain(before..before + unwanted);
        }
        Ok(())
    }

    /// Passes over the next `count` bytes, or all that are left.
    ///
    /// No read is started for them. One that was started already is abandoned if it holds nothing else, and else its
    /// front is dropped when it comes.
    pub fn skip(&mut self, count: u64) {
        let mut left = count;
        if !self.store.is_remote() {
            // Local reads happen only when they are waited for.
            self.next -= self.started.drain(..).map(|(_, len)| len).sum::<u64>();
            left += std::mem::take(&mut self.unwanted);
        }
        while let Some((_, len)) = self.started.front()
            && left > 0
        {
            let rest = len - self.unwanted;
            if rest > left {
                self.unwanted += left;
                return;
            }
            left -= rest;
            self.unwanted = 0;
            self.started.pop_front();
        }
        self.next = self.next.saturating_add(left).min(self.end);
    }
}
