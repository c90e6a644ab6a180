//! Memory for chunks that are decoded but not laid out.
//!
//! The sources of a mixture need it in turns, mostly. So those whose drafts are of one size use the same: it is still in a
//! cache, and fresh memory costs more than what is put into it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::memory::{Arena, Budget, Held, Layout, Shelf};
use crate::error::{Error, Result};

/// Unused memory for drafts, of all that share it.
#[derive(Debug)]
pub struct DraftShelves {
    sharers: u64,
    /// By the bytes of a draft.
    shelves: Mutex<HashMap<usize, Weak<Shelf>>>,
}

impl DraftShelves {
    /// No memory yet, for so many supplies.
    pub fn new(sharers: usize) -> Arc<Self> {
        Arc::new(Self { sharers: sharers.max(1) as u64, shelves: Mutex::default() })
    }

    /// How many share it.
    pub fn sharers(&self) -> u64 {
        self.sharers
    }

    fn shelf(&self, each: usize) -> Arc<Shelf> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.retain(|_, shelf| shelf.strong_count() > 0);
        if let Some(shelf) = shelves.get(&each).and_then(Weak::upgrade) {
            return shelf;
        }
        // Charged by those who take from it: no more arenas than these may have at once are ever made.
        let shelf = Shelf::new(&Budget::new(u64::MAX), usize::MAX);
        shelves.insert(each, Arc::downgrade(&shelf));
        shelf
    }
}

/// Memory for so many drafts of one size, for one window at a time.
#[derive(Debug)]
pub struct Drafts {
    count: usize,
    each: usize,
    shelf: Arc<Shelf>,
    held: Mutex<Option<Held>>,
}

impl Drafts {
    /// Memory for `count` drafts of `each` bytes; `None` if the budget does not have it.
    pub fn new((count, each): (usize, usize), budget: &Arc<Budget>, shelves: &DraftShelves) -> Option<Arc<Self>> {
        let held = budget.try_take(Self::bytes((count, each)))?;
        Some(Arc::new(Self { count, each, shelf: shelves.shelf(each), held: Mutex::new(Some(held)) }))
    }

    /// Gives the memory back, once no window is being laid out.
    pub fn close(&self) {
        // Others that share it make theirs anew: so there is never more than is charged.
        self.shelf.clear();
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Bytes of `count` drafts of `each` bytes.
    pub fn bytes((count, each): (usize, usize)) -> u64 {
        // What a shelf adds.
        (each.saturating_add(each / 32) as u64).saturating_mul(count as u64)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there are so many, and so large.
    pub fn hold(&self, (count, each): (usize, usize)) -> bool {
        self.count >= count && self.each >= each
    }

    /// An arena for a draft: the caller has no more than `count` at once.
    pub fn take(&self, mut layout: Layout) -> Result<Arc<Arena>> {
        // All of one size, so that each can take the place of any other.
        let rest = self.each.saturating_sub(layout.bytes());
        let _padding = layout.add::<u8>(rest);
        self.shelf.take(&layout)?.ok_or_else(|| Error::Internal("a draft beyond the budget".to_owned()))
    }
}

impl Drop for Drafts {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_of_a_size_share_memory_and_each_is_charged() {
        let (one, other, shelves) = (Budget::new(400), Budget::new(400), DraftShelves::new(2));
        assert!(Drafts::new((5, 100), &one, &shelves).is_none());
        let first = Drafts::new((2, 64), &one, &shelves).unwrap();
        let second = Drafts::new((1, 64), &other, &shelves).unwrap();
        let larger = Drafts::new((1, 128), &other, &shelves).unwrap();
        assert_eq!((one.left(), other.left()), (400 - 2 * 66, 400 - 66 - 132));
        let place = |drafts: &Drafts| {
            let mut layout = Layout::new();
            let region = layout.add::<u8>(10);
            drafts.take(layout).unwrap().carve(region).as_ptr()
        };
        let used = place(&first);
        assert_eq!((place(&second), place(&first)), (used, used));
        place(&larger);
        assert_eq!((first.shelf.unused(), larger.shelf.unused()), (66, 132));
        // With what was charged for it goes the memory.
        drop(first);
        assert_eq!((second.shelf.unused(), one.left()), (0, 400));
        assert_eq!(larger.shelf.unused(), 132);
    }
}
