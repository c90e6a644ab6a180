//! How far the building of an index is, for another thread to look at.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing yet.
    Idle,
    /// Files are being listed.
    Listing,
    /// Footers are being read.
    Footers,
    /// Levels of column chunks are being read, to count tokens that footers do not tell.
    Levels,
    /// Row groups are being read whole, to find what is damaged.
    Pages,
    /// All is done.
    Done,
}

/// Counts that grow while an index is built. All orderings are relaxed: they are for people to look at.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    /// Files that the listing has seen.
    pub found: AtomicU64,
    /// What the current phase has done: footers read, or column chunks counted.
    pub done: AtomicU64,
    /// What the current phase has to do; 0 while that is not known.
    pub total: AtomicU64,
}

impl Progress {
    /// All counts at nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is being done now.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Idle,
            1 => Phase::Listing,
            2 => Phase::Footers,
            3 => Phase::Levels,
            4 => Phase::Pages,
            _ => Phase::Done,
        }
    }

    /// Begins a phase that has `total` things to do.
    pub(crate) fn begin(&self, phase: Phase, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// One more thing of the current phase is done.
    pub(crate) fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}
