//! Memory: one budget in bytes, and the arenas that windows and batches live in.
//!
//! An [`Arena`] is one mapping, anonymous or over a spill file, cut into typed regions by a [`Layout`]. A region can
//! be carved out once, as a [`SlotMut`] that one thread fills; frozen, it is a [`Slot`] that any number may read.
//! Whoever holds a part of an arena keeps it mapped; when the last part goes, an anonymous mapping returns to the
//! [`Shelf`] it came from, so that its pages need not be faulted in again.
//!
//! This is the only module of the engine with `unsafe` code.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arrow::alloc::Allocation;
use arrow::buffer::Buffer;
use memmap2::MmapMut;

use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// A memory budget of one loader. Scope: this process. Unit: bytes of anonymous memory held, not asked for.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

/// A part of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Takes `bytes` if they are left.
    pub fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Held> {
        let add = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.total);
        let used = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.peak.fetch_max(used + bytes, Ordering::Relaxed);
        Some(Held { budget: Arc::clone(self), bytes })
    }

    /// Bytes of the whole budget.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that could be taken now.
    pub fn left(&self) -> u64 {
        self.total - self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were held at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A number type of which any bytes are a value.
pub trait Plain: Copy + Send + Sync + 'static {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for u32 {}
impl Plain for i64 {}
impl Plain for u64 {}

/// Regions begin at multiples of this: a cache line, and what Arrow recommends.
pub(super) const ALIGN: usize = 64;

/// Cache lines at the front of a document: those behind them a processor foresees.
#[cfg(target_arch = "x86_64")]
const PREFETCHED: usize = 12;

/// Tells apart regions of different layouts; scope: process, only ever counts up.
static LAYOUTS: AtomicU64 = AtomicU64::new(0);

/// Has memory brought nearer, as much as a processor does not bring by itself.
fn prefetch(place: *const i8) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..PREFETCHED {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, for which an address that is not mapped is no fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(line * ALIGN)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// How an arena is cut.
#[derive(Debug)]
pub struct Layout {
    id: u64,
    bytes: usize,
}

/// A region of an arena that has not been carved out yet. Not `Clone`: it can be carved once.
#[derive(Debug)]
pub struct Region<T> {
    layout: u64,
    offset: usize,
    len: usize,
    kind: PhantomData<T>,
}

impl Layout {
    /// An empty layout.
    #[allow(clippy::new_without_default, reason = "every layout is another one")]
    pub fn new() -> Self {
        Self { id: LAYOUTS.fetch_add(1, Ordering::Relaxed), bytes: 0 }
    }

    /// Adds a region of `len` numbers. A layout that no memory could hold has `usize::MAX` bytes.
    pub fn add<T: Plain>(&mut self, len: usize) -> Region<T> {
        let offset = self.bytes;
        let size = len.checked_mul(size_of::<T>()).and_then(|size| size.checked_next_multiple_of(ALIGN));
        self.bytes = offset.saturating_add(size.unwrap_or(usize::MAX));
        Region { layout: self.id, offset, len, kind: PhantomData }
    }

    /// Bytes of an arena with this layout.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// One mapping, shared by its parts.
#[derive(Debug)]
pub struct Arena {
    layout: u64,
    bytes: usize,
    start: *mut u8,
    /// `Some` until dropped.
    map: Option<MmapMut>,
    held: Option<Held>,
    shelf: Weak<Shelf>,
}

// SAFETY: `start` points into `map`, which the arena owns and which is itself Send and Sync. The bytes are reached
// only through slots, which cover disjoint regions (see `carve`).
unsafe impl Send for Arena {}
// SAFETY: as above; a shared arena alone gives no access to its bytes.
unsafe impl Sync for Arena {}

impl Arena {
    fn over(layout: &Layout, mut map: MmapMut, held: Option<Held>, shelf: Weak<Shelf>) -> Arc<Self> {
        let start = map.as_mut_ptr();
        let bytes = map.len();
        Arc::new(Self { layout: layout.id, bytes, start, map: Some(map), held, shelf })
    }

    /// An anonymous mapping outside any budget, for small things.
    pub fn small(layout: &Layout) -> Result<Arc<Self>> {
        Ok(Self::over(layout, map_anonymous(layout.bytes)?, None, Weak::new()))
    }

    /// A mapping over a nameless file in `folder`, which the system may write out instead of holding it in memory.
    /// Its blocks are reserved at once, so a full disk is an error here and not a signal later.
    pub fn spilled(layout: &Layout, folder: &Path) -> Result<Arc<Self>> {
        Ok(Self::over(layout, map_file(layout.bytes, folder)?, None, Weak::new()))
    }

    /// Takes a region out, to be filled.
    ///
    /// # Panics
    /// If the region belongs to another layout: a bug of the caller.
    pub fn carve<T: Plain>(self: &Arc<Self>, region: Region<T>) -> SlotMut<T> {
        assert_eq!(region.layout, self.layout, "a region must be carved from an arena of its own layout");
        let end = region.len.checked_mul(size_of::<T>()).and_then(|size| size.checked_add(region.offset));
        assert!(end.is_some_and(|end| end <= self.bytes), "a region must lie within its arena");
        // SAFETY: in bounds by the assertion above.
        let start = unsafe { self.start.add(region.offset) }.cast::<T>();
        SlotMut { arena: Arc::clone(self), start, len: region.len }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let (Some(shelf), Some(map), Some(held)) = (self.shelf.upgrade(), self.map.take(), self.held.take()) {
            shelf.put_back(map, held);
        }
    }
}

fn map_anonymous(bytes: usize) -> Result<MmapMut> {
    let map = MmapMut::map_anon(bytes.max(1)).map_err(|error| Error::Disk {
        path: "memory".to_owned(),
        operation: format!("mapping {bytes} bytes"),
        detail: error.to_string(),
    })?;
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_PAGES_FROM {
        // Without them each 4 KiB cost a fault, and each document a walk of the page table. A system may refuse.
        drop(map.advise(memmap2::Advice::HugePage));
    }
    Ok(map)
}

/// A mapping over a nameless file in `folder`, of which the blocks are reserved.
fn map_file(bytes: usize, folder: &Path) -> Result<MmapMut> {
    let failed = |operation: String, error: &dyn std::fmt::Display| Error::Disk {
        path: folder.display().to_string(),
        operation,
        detail: error.to_string(),
    };
    let bytes = bytes.max(1);
    let file = std::fs::create_dir_all(folder)
        .and_then(|()| tempfile::tempfile_in(folder))
        .map_err(|error| failed("creating a spill file".to_owned(), &error))?;
    if is_in_memory(&file) {
        let what =
            "the folder is in memory itself (tmpfs)\nhint: cache_dir= or HEADRACE_CACHE on a disk, or more memory=";
        return Err(failed("creating a spill file".to_owned(), &what));
    }
    reserve(&file, bytes).map_err(|error| failed(format!("reserving {bytes} bytes for a spill file"), &error))?;
    // SAFETY: the file has no name, so no other process can reach it and cut it short.
    unsafe { MmapMut::map_mut(&file) }.map_err(|error| failed(format!("mapping a spill file of {bytes} bytes"), &error))
}

/// Mappings of at least this many bytes ask for huge pages (of 2 MiB on x86-64): a window, those of a mixture's sources too,
/// and not a batch, of which the rest that fills no such page would be most. Such a rest has pages of 4 KiB.
#[cfg(target_os = "linux")]
const HUGE_PAGES_FROM: usize = 4 << 20;

/// Whether a file's blocks are memory, which a spill file is to save.
fn is_in_memory(file: &File) -> bool {
    // SAFETY: all-zero bytes are a value of this plain C struct.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a plain system call on a descriptor that `file` keeps open, with room for its answer.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut system) };
    done == 0 && matches!(system.f_type, libc::TMPFS_MAGIC | RAMFS_MAGIC)
}

/// From linux/magic.h; libc does not have it.
const RAMFS_MAGIC: libc::__fsword_t = 0x8584_58f6;

fn reserve(file: &File, bytes: usize) -> std::io::Result<()> {
    let too_large = |_| std::io::Error::from(std::io::ErrorKind::FileTooLarge);
    let length = libc::off_t::try_from(bytes).map_err(too_large)?;
    loop {
        // SAFETY: a plain system call on a descriptor that `file` keeps open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(std::io::Error::from_raw_os_error(code)),
        }
    }
}

/// Anonymous mappings that are used again.
#[derive(Debug)]
pub struct Shelf {
    budget: Arc<Budget>,
    /// How many unused mappings are kept.
    keep: usize,
    /// Of each process: who has a batch may drop it in a forked child.
    free: PerProcess<Mutex<Vec<(MmapMut, Held)>>>,
}

impl Shelf {
    /// A shelf that charges `budget` and keeps at most `keep` unused mappings.
    pub fn new(budget: &Arc<Budget>, keep: usize) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), keep, free: PerProcess::default() })
    }

    /// An arena of anonymous memory, used before or new; `None` if the budget does not have it.
    pub fn take(self: &Arc<Self>, layout: &Layout) -> Result<Option<Arc<Arena>>> {
        let mut free = self.free();
        // One that is much too large would waste budget.
        let fits = |map: &MmapMut| map.len() >= layout.bytes && map.len() <= layout.bytes.saturating_mul(2);
        // The one that was used last: some of it may still be in a cache.
        if let Some(at) = free.iter().rposition(|(map, _)| fits(map)) {
            let (map, held) = free.remove(at);
            return Ok(Some(Arena::over(layout, map, Some(held), Arc::downgrade(self))));
        }
        // A little more than asked for, so that the next window, a little larger, still fits.
        let bytes = layout.bytes.saturating_add(layout.bytes / 32);
        let held = self.budget.try_take(bytes as u64).or_else(|| {
            free.clear();
            self.budget.try_take(bytes as u64)
        });
        let Some(held) = held else { return Ok(None) };
        Ok(Some(Arena::over(layout, map_anonymous(bytes)?, Some(held), Arc::downgrade(self))))
    }

    /// Bytes of unused mappings.
    pub fn unused(&self) -> u64 {
        self.free().iter().map(|(_, held)| held.bytes).sum()
    }

    /// Lets go of unused mappings.
    pub fn clear(&self) {
        self.free().clear();
    }

    fn put_back(&self, map: MmapMut, held: Held) {
        let mut free = self.free();
        free.push((map, held));
        if free.len() > self.keep {
            // Large ones cost most to make anew.
            let smallest = free.iter().enumerate().min_by_key(|(_, (map, _))| map.len());
            if let Some((smallest, _)) = smallest {
                free.swap_remove(smallest);
            }
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<(MmapMut, Held)>> {
        self.free.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory in blocks of one size, of which any is used again once its holder lets go of it.
///
/// Blocks are cut from extents, mappings of many blocks each, and charged with them.
#[derive(Debug)]
pub struct Blocks {
    budget: Arc<Budget>,
    /// Bytes of a block.
    bytes: usize,
    free: Mutex<Vec<Free>>,
    /// Blocks that there are, held or free.
    count: AtomicUsize,
}

/// A block of [`Blocks`], for its one holder.
#[derive(Debug)]
pub struct Block {
    start: *mut u8,
    bytes: usize,
    /// `Some` until dropped.
    extent: Option<Arc<Extent>>,
    home: Weak<Blocks>,
}

/// A block that nobody holds.
#[derive(Debug)]
struct Free {
    start: *mut u8,
    extent: Arc<Extent>,
}

/// The mapping that blocks lie in.
#[derive(Debug)]
struct Extent {
    _map: MmapMut,
    _held: Option<Held>,
}

// SAFETY: a block is the only way to its stretch of the extent, like a `Box<[u8]>`, and keeps it mapped.
unsafe impl Send for Block {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Block {}
// SAFETY: as for `Block`: what is free is reached by nobody.
unsafe impl Send for Free {}

impl Blocks {
    /// No blocks yet, of `bytes` bytes each: a multiple of the alignment of regions.
    pub fn new(budget: &Arc<Budget>, bytes: usize) -> Arc<Self> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        Arc::new(Self { budget: Arc::clone(budget), bytes, free: Mutex::new(Vec::new()), count: AtomicUsize::new(0) })
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.bytes
    }

    /// Blocks that there are, held or free.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Blocks that could be taken.
    pub fn free(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Adds `count` blocks; `false` if the budget does not have them.
    pub fn extend(&self, count: usize) -> Result<bool> {
        let Some(bytes) = self.bytes.checked_mul(count) else { return Ok(false) };
        let Some(held) = self.budget.try_take(bytes as u64) else { return Ok(false) };
        let added = self.cut(map_anonymous(bytes)?, Some(held), count);
        // Below the others, which were used before.
        self.free.lock().unwrap_or_else(PoisonError::into_inner).splice(0..0, added);
        self.count.fetch_add(count, Ordering::Relaxed);
        Ok(true)
    }

    /// Takes `count` blocks, those that were used last; `None` if there are not so many.
    pub fn take(self: &Arc<Self>, count: usize) -> Option<Vec<Block>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = free.len().checked_sub(count)?;
        Some(free.drain(kept..).rev().map(|free| self.block(free, Arc::downgrade(self))).collect())
    }

    /// As many blocks over a spill file in `folder`, which goes with the last of them.
    pub fn spilled(&self, count: usize, folder: &Path) -> Result<Vec<Block>> {
        let bytes = self.bytes.saturating_mul(count);
        let blocks = self.cut(map_file(bytes, folder)?, None, count);
        Ok(blocks.into_iter().map(|free| self.block(free, Weak::new())).collect())
    }

    /// Lets go of extents of which no block is held.
    pub fn trim(&self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        // Each block keeps its extent, held or free.
        let mut counts: HashMap<*const Extent, usize> = HashMap::new();
        free.iter().for_each(|free| *counts.entry(Arc::as_ptr(&free.extent)).or_default() += 1);
        let whole: HashSet<*const Extent> = free
            .iter()
            .filter(|free| counts.get(&Arc::as_ptr(&free.extent)) == Some(&Arc::strong_count(&free.extent)))
            .map(|free| Arc::as_ptr(&free.extent))
            .collect();
        let before = free.len();
        free.retain(|free| !whole.contains(&Arc::as_ptr(&free.extent)));
        self.count.fetch_sub(before - free.len(), Ordering::Relaxed);
    }

    /// The blocks of a mapping: the first comes last.
    fn cut(&self, mut map: MmapMut, held: Option<Held>, count: usize) -> Vec<Free> {
        assert!(map.len() / self.bytes >= count, "blocks must lie within their extent");
        let first = map.as_mut_ptr();
        let extent = Arc::new(Extent { _map: map, _held: held });
        let block = |number| Free { start: first.wrapping_add(number * self.bytes), extent: Arc::clone(&extent) };
        (0..count).rev().map(block).collect()
    }

    fn block(&self, free: Free, home: Weak<Self>) -> Block {
        Block { start: free.start, bytes: self.bytes, extent: Some(free.extent), home }
    }
}

impl Block {
    /// How many numbers it holds.
    pub fn count<T: Plain>(&self) -> usize {
        self.bytes / size_of::<T>()
    }

    /// Its numbers.
    pub fn numbers<T: Plain>(&self) -> &[T] {
        // SAFETY: mapped and in bounds as long as `extent` lives, aligned to a cache line; any bytes are a value of a
        // `Plain` type; nobody else can write the stretch.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes / size_of::<T>()) }
    }

    /// Has the memory from number `at` on brought nearer, see [`Slot::prefetch`].
    pub fn prefetch<T: Plain>(&self, at: usize) {
        prefetch(self.start.cast::<T>().wrapping_add(at).cast());
    }

    /// Its numbers, to be written.
    pub fn numbers_mut<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as for `numbers`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes / size_of::<T>()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let (Some(home), Some(extent)) = (self.home.upgrade(), self.extent.take()) {
            let mut free = home.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.push(Free { start: self.start, extent });
        }
    }
}

/// A stretch of an arena that its one holder may write.
#[derive(Debug)]
pub struct SlotMut<T> {
    arena: Arc<Arena>,
    start: *mut T,
    len: usize,
}

// SAFETY: a slot is the only way to its stretch, like a `&mut [T]`, and it keeps the arena mapped.
unsafe impl<T: Plain> Send for SlotMut<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Plain> Sync for SlotMut<T> {}

impl<T: Plain> SlotMut<T> {
    /// Cuts the slot after `at` numbers.
    ///
    /// # Panics
    /// If `at` exceeds the length.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "a slot of {} numbers cannot be cut at {at}", self.len);
        // SAFETY: in bounds by the assertion above; the halves do not overlap.
        let middle = unsafe { self.start.add(at) };
        let tail = Self { arena: Arc::clone(&self.arena), start: middle, len: self.len - at };
        (Self { len: at, ..self }, tail)
    }

    /// Cuts the slot into parts of `len` numbers each; its length must be a multiple of that.
    pub fn split_evenly(self, len: usize) -> Vec<Self> {
        let mut parts = Vec::with_capacity(self.len.checked_div(len).unwrap_or(0));
        let mut rest = self;
        while rest.len > 0 {
            let (part, tail) = rest.split_at(len);
            parts.push(part);
            rest = tail;
        }
        parts
    }

    /// Puts parts that were cut from one slot together again; `None` if they are not neighbours in this order.
    pub fn join(parts: Vec<Self>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let mut whole = parts.next()?;
        for part in parts {
            let adjacent = Arc::ptr_eq(&whole.arena, &part.arena) && whole.start.wrapping_add(whole.len) == part.start;
            if !adjacent {
                return None;
            }
            whole.len += part.len;
        }
        Some(whole)
    }

    /// Ends the writing. Only the first `len` numbers stay reachable.
    pub fn freeze(self, len: usize) -> Slot<T> {
        let len = len.min(self.len);
        Slot { arena: self.arena, start: self.start, len }
    }
}

impl<T: Plain> Deref for SlotMut<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: mapped and in bounds as long as `arena` lives; any bytes are a value of a `Plain` type; nobody
        // else can reach the stretch.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Plain> DerefMut for SlotMut<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// A filled stretch of an arena, shared for reading.
#[derive(Debug)]
pub struct Slot<T> {
    arena: Arc<Arena>,
    start: *const T,
    len: usize,
}

// SAFETY: like an `Arc<[T]>`: nobody writes the stretch any more, and the slot keeps it mapped.
unsafe impl<T: Plain> Send for Slot<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Slot<T> {}

// A slot only reads: a panic elsewhere leaves nothing half-done behind it.
impl<T> std::panic::RefUnwindSafe for Slot<T> {}
impl<T> std::panic::UnwindSafe for Slot<T> {}

impl<T: Plain> Slot<T> {
    /// Has the memory from number `at` on brought nearer, as much as a processor does not bring by itself.
    pub fn prefetch(&self, at: usize) {
        prefetch(self.start.wrapping_add(at).cast());
    }

    /// The same memory as an Arrow buffer, which keeps it mapped.
    pub fn to_arrow(&self) -> Buffer {
        let bytes = self.len * size_of::<T>();
        let start = NonNull::new(self.start.cast::<u8>().cast_mut()).unwrap_or(NonNull::dangling());
        let owner: Arc<dyn Allocation> = Arc::new(self.clone());
        // SAFETY: `start` is mapped for `bytes` bytes as long as `owner`, a slot over the same stretch, lives.
        unsafe { Buffer::from_custom_allocation(start, bytes, owner) }
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self { arena: Arc::clone(&self.arena), start: self.start, len: self.len }
    }
}

impl<T: Plain> Deref for Slot<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: mapped and in bounds as long as `arena` lives; nobody in Rust writes it any more.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_process::tests::holds_in_child;

    #[test]
    fn a_budget_counts_what_is_held() {
        let budget = Budget::new(100);
        let first = budget.try_take(60).unwrap();
        assert!(budget.try_take(41).is_none());
        assert!(budget.try_take(u64::MAX).is_none());
        drop(first);
        drop(budget.try_take(100).unwrap());
        assert_eq!(budget.peak(), 100);
    }

    #[test]
    fn regions_are_disjoint_aligned_and_come_together_again() {
        let mut layout = Layout::new();
        let (first, second) = (layout.add::<u8>(3), layout.add::<i32>(6));
        let arena = Arena::small(&layout).unwrap();
        let (mut bytes, mut numbers) = (arena.carve(first), arena.carve(second));
        bytes.fill(7);
        assert_eq!(numbers.as_ptr() as usize % ALIGN, 0);
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = at as i32;
        }
        let mut rows = numbers.split_evenly(2);
        rows[1].fill(9);
        let whole = SlotMut::join(rows).unwrap().freeze(5);
        assert_eq!(&*whole, [0, 1, 9, 9, 4]);
        assert_eq!(&*bytes, [7; 3]);
        let mut parts = bytes.split_evenly(1);
        parts.swap(0, 1);
        assert!(SlotMut::join(parts).is_none());
    }

    #[test]
    #[should_panic(expected = "its own layout")]
    fn a_region_of_another_layout_is_refused() {
        let (mut one, mut other) = (Layout::new(), Layout::new());
        let region = one.add::<u8>(1);
        other.add::<u8>(1);
        Arena::small(&other).unwrap().carve(region);
    }

    #[test]
    fn a_shelf_gives_the_same_memory_again_and_charges_it_once() {
        let budget = Budget::new(10_000);
        let shelf = Shelf::new(&budget, 1);
        let arena = |len| {
            let mut layout = Layout::new();
            let region = layout.add::<i32>(len);
            shelf.take(&layout).unwrap().map(|arena| arena.carve(region))
        };
        let first = arena(1000).unwrap();
        let place = first.as_ptr();
        assert!(arena(2000).is_none());
        drop(first);
        let again = arena(1000).unwrap().freeze(1);
        assert_eq!(again.as_ptr(), place);
        drop(again);
        // What the shelf keeps is let go when the budget is needed for something else.
        drop(arena(2000).unwrap());
        assert!(budget.try_take(10_000).is_none());
        drop(shelf);
        assert!(budget.try_take(10_000).is_some());
    }

    #[test]
    fn a_forked_child_waits_for_no_thread_of_its_parent_s() {
        let shelf = Shelf::new(&Budget::new(10_000), 2);
        let arena = || {
            let mut layout = Layout::new();
            let region = layout.add::<i32>(8);
            shelf.take(&layout).unwrap().map(|arena| arena.carve(region))
        };
        let mut slot = arena();
        let place = slot.as_ref().map(|slot| slot.as_ptr());
        let busy = shelf.free();
        assert!(holds_in_child(|| {
            drop(slot.take());
            arena().map(|slot| slot.as_ptr()) == place
        }));
        drop(busy);
        assert!(arena().map(|slot| slot.as_ptr()) != place, "the parent has it still");
    }

    #[test]
    fn blocks_are_used_again_and_extents_go_whole() {
        let budget = Budget::new(100 * 64);
        let blocks = Blocks::new(&budget, 50);
        assert_eq!(blocks.block_bytes(), 64);
        assert!(!blocks.extend(101).unwrap() && blocks.take(1).is_none());
        assert!(blocks.extend(3).unwrap() && blocks.extend(2).unwrap());
        assert_eq!((blocks.count(), blocks.free(), budget.left()), (5, 5, 95 * 64));
        let mut taken = blocks.take(4).unwrap();
        for (number, block) in taken.iter_mut().enumerate() {
            block.numbers_mut::<u16>().fill(number as u16);
        }
        assert!(taken.iter().enumerate().all(|(number, block)| block.numbers::<u16>() == [number as u16; 32]));
        assert!(blocks.take(2).is_none());
        // What was given back last is taken first.
        let last = taken.pop().unwrap();
        let place = last.numbers::<u8>().as_ptr();
        drop(last);
        assert_eq!(blocks.take(1).unwrap()[0].numbers::<u8>().as_ptr(), place);
        // The extent of two: of it one block is free, the other was given back as well.
        drop(taken.pop());
        drop(taken.pop());
        blocks.trim();
        assert!(blocks.count() < 5 && budget.left() < 100 * 64);
        drop(taken);
        blocks.trim();
        assert_eq!((blocks.count(), blocks.free(), budget.left()), (0, 0, 100 * 64));
    }

    #[test]
    fn blocks_of_a_spill_file_go_with_their_holders_and_outlive_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let budget = Budget::new(64);
        let blocks = Blocks::new(&budget, 64);
        assert!(blocks.extend(1).unwrap());
        let mut taken = blocks.spilled(3, folder.path()).unwrap();
        taken.extend(blocks.take(1).unwrap());
        drop(blocks);
        for block in &mut taken {
            block.numbers_mut::<i32>().fill(7);
        }
        assert!(taken.iter().all(|block| block.numbers::<i32>() == [7; 16]));
        assert_eq!(budget.left(), 0);
        drop(taken);
        assert_eq!(budget.left(), 64);
    }

    #[test]
    fn a_spilled_arena_works_and_a_full_disk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut layout = Layout::new();
        let region = layout.add::<u64>(1000);
        let mut slot = Arena::spilled(&layout, folder.path()).unwrap().carve(region);
        slot.fill(5);
        assert_eq!(slot.freeze(1000).iter().sum::<u64>(), 5000);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut layout = Layout::new();
        layout.add::<u8>(1 << 60);
        let _huge = layout.add::<u64>(1 << 62);
        assert_eq!(layout.bytes(), usize::MAX);
        let error = Arena::spilled(&layout, folder.path()).unwrap_err();
        assert!(matches!(error, Error::Disk { .. }), "{error}");
    }
}
