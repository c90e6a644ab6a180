//! Files that are copied from where they lie in memory, without a call of the system for each read.
//!
//! Whoever reads a mapping where its file has ended meanwhile, or where a disk fails, gets a signal, SIGBUS, and that ends the
//! process. So the process has a handler for it from the first [`Guard`] on. That puts empty memory in place of a mapping
//! in which a copy failed: the copy comes to its end, finds that its mapping is lost, and says so; who wanted the bytes reads
//! the file instead, and gets what is wrong in words. Faults elsewhere are for the handler that was there before. Another one
//! may take the place of ours at any time, so each [`Guard`] looks first: where there is none, nothing is copied.
//!
//! No reference into a mapping is ever made: what lies there may change at any time.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use libc::{BUS_ADRERR, SIGBUS, sigaction, siginfo_t};

/// Why a thread gets SIGBUS for a page that a machine found to be damaged.
const BUS_MCEERR_AR: c_int = 4;

/// Mappings at a time; files beyond them are read. Scope: the process. Four times what a process keeps open.
const MOST: usize = 1024;

/// What the handler knows of mappings. It may neither wait for a lock nor allocate.
static REGIONS: [Region; MOST] = [const { Region::new() }; MOST];

/// The handler that was there before ours.
static BEFORE: OnceLock<sigaction> = OnceLock::new();

/// That a fault in a mapping would come to our handler, as of a moment ago, in this thread. To be kept for one batch.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Pages that this thread had waited for by then.
    waited: Option<i64>,
    of_this_thread: PhantomData<*const ()>,
}

impl Guard {
    /// `None` if somebody else handles such faults now, or this thread has the signal blocked.
    pub(crate) fn now() -> Option<Self> {
        install();
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: without a set the thread's own is written to the place that is given, and nothing else happens.
        let known = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), blocked.as_mut_ptr()) } == 0;
        // SAFETY: it was written.
        let is_blocked = !known || unsafe { libc::sigismember(blocked.as_ptr(), SIGBUS) } != 0;
        let is_ours = handler().is_some_and(|now| now.sa_sigaction == ours().sa_sigaction);
        (is_ours && !is_blocked).then(|| Self { waited: pages_waited_for(), of_this_thread: PhantomData })
    }

    /// The same where another thread may be installing the handler at this moment.
    #[cfg(test)]
    pub(crate) fn soon() -> Self {
        for _ in 0..10_000 {
            if let Some(guard) = Self::now() {
                return guard;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the handler is not ours");
    }

    /// Whether this thread had to wait for a page since then: not all was in memory.
    pub(crate) fn has_waited(&self) -> bool {
        self.waited.is_none() || self.waited != pages_waited_for()
    }
}

/// A file, mapped to be read.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *const u8,
    bytes: usize,
    region: &'static Region,
}

// SAFETY: whatever it points to is there as long as it is, and is copied from only, by any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first bytes of a file; `None` if the system refuses, or there are too many mappings.
    pub(crate) fn new(file: &File, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0)?;
        let region = REGIONS.iter().find(|region| region.claim())?;
        // SAFETY: new memory is asked for, wherever there is room.
        let start = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            region.release();
            return None;
        }
        // SAFETY: it is the memory of above. A page that is not there is to be read alone; that is a wish.
        unsafe { libc::madvise(start, bytes, libc::MADV_RANDOM) };
        region.publish(start.expose_provenance(), bytes);
        Some(Self { start: start.cast(), bytes, region })
    }

    /// Whether nothing that was copied from it failed.
    pub(crate) fn is_whole(&self) -> bool {
        !self.region.is_lost.load(Ordering::Relaxed)
    }

    /// Fills `out` with the bytes from `from` on; what it holds is undefined if that failed.
    pub(crate) fn copy(&self, _: &Guard, from: u64, out: &mut [u8]) -> bool {
        let Ok(from) = usize::try_from(from) else { return false };
        if from.checked_add(out.len()).is_none_or(|end| end > self.bytes) || !self.is_whole() {
            return false;
        }
        // SAFETY: these bytes are within the mapping, and `out` is not. That they cannot be read, or are written to by others,
        // makes them wrong bytes: see the handler.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(from), out.as_mut_ptr(), out.len()) };
        // Whoever sees the memory that took the mapping's place sees below that it did. No more than loads are ordered: to wait
        // here until what was written is in memory would cost a tenth of the copy.
        fence(Ordering::Acquire);
        self.is_whole()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, as others may get its addresses next.
        self.region.release();
        // SAFETY: nobody copies from it, as nobody has it, and it is ours, whatever has taken the file's place there.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.bytes) };
    }
}

/// Where a mapping lies.
#[derive(Debug)]
struct Region {
    /// Odd while the addresses change: who reads them looks before and behind.
    turn: AtomicU64,
    start: AtomicUsize,
    /// 0 if there is no mapping.
    end: AtomicUsize,
    is_lost: AtomicBool,
}

impl Region {
    const fn new() -> Self {
        Self {
            turn: AtomicU64::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Takes one that is free, to be published or released.
    fn claim(&self) -> bool {
        let turn = self.turn.load(Ordering::SeqCst);
        let is_free = turn.is_multiple_of(2) && self.end.load(Ordering::SeqCst) == 0;
        is_free && self.turn.compare_exchange(turn, turn + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes a mapping known, by who claimed it.
    fn publish(&self, start: usize, bytes: usize) {
        self.is_lost.store(false, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.end.store(start + bytes, Ordering::SeqCst);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes it free, by who claimed or published it.
    fn release(&self) {
        self.turn.fetch_or(1, Ordering::SeqCst);
        self.end.store(0, Ordering::SeqCst);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// If `address`, which this thread has just failed to read, lies there: puts empty memory in place of the mapping. Says
    /// whether that was done.
    fn give_up(&self, address: usize) -> bool {
        let turn = self.turn.load(Ordering::SeqCst);
        let (start, end) = (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        if self.turn.load(Ordering::SeqCst) != turn || !turn.is_multiple_of(2) || !(start..end).contains(&address) {
            return false;
        }
        self.is_lost.store(true, Ordering::SeqCst);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: it is a mapping, which none but copies read, and it stays until this thread goes on with its copy.
        let empty = unsafe { libc::mmap(start, end - start.addr(), libc::PROT_READ, flags, -1, 0) };
        empty != libc::MAP_FAILED
    }
}

/// Installs our handler, the first time.
fn install() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.load(Ordering::Relaxed) || IS_DONE.swap(true, Ordering::SeqCst) {
        return;
    }
    let Some(before) = handler() else { return };
    let expected = before.sa_sigaction;
    // Before it is needed, which may be at once.
    BEFORE.set(before).ok();
    let mut before = MaybeUninit::<sigaction>::zeroed();
    // SAFETY: the handler does what may be done in one.
    let is_set = unsafe { libc::sigaction(SIGBUS, &ours(), before.as_mut_ptr()) } == 0;
    // SAFETY: all of it may be 0, and else it was written.
    let before = unsafe { before.assume_init() };
    if is_set && before.sa_sigaction != expected {
        // Another thread installed one in between, which ours does not know.
        // SAFETY: it was there a moment ago.
        unsafe { libc::sigaction(SIGBUS, &raw const before, null_mut()) };
    }
}

/// Our handler. It runs on the stack that the thread has for signals, if there is one, as others expect that.
fn ours() -> sigaction {
    // SAFETY: all of it may be 0; no signal is blocked then.
    let mut ours: sigaction = unsafe { std::mem::zeroed() };
    ours.sa_sigaction = (on_fault as extern "C" fn(c_int, *mut siginfo_t, *mut c_void)) as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    ours
}

/// Who handles such faults now.
fn handler() -> Option<sigaction> {
    let mut now = MaybeUninit::zeroed();
    // SAFETY: without a new handler the present one is written to the place that is given, and nothing else happens.
    let known = unsafe { libc::sigaction(SIGBUS, null(), now.as_mut_ptr()) } == 0;
    // SAFETY: it was written.
    known.then(|| unsafe { now.assume_init() })
}

/// The handler. Nothing here waits, allocates, or changes `errno` but where the process ends.
extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: it is what the system says about a signal, as SA_SIGINFO asks for; faults have an address.
    let (cause, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    let is_fault = matches!(cause, BUS_ADRERR | BUS_MCEERR_AR);
    if is_fault && REGIONS.iter().any(|region| region.give_up(address)) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    // As if ours had not been there: the one before gets the same signal again, from the system, by its own flags.
    // SAFETY: it was installed like this; the other calls are of this thread alone, and say what the system said.
    unsafe {
        libc::sigaction(signal, before, null_mut());
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
    }
}

/// Pages that this thread had to wait for so far.
fn pages_waited_for() -> Option<i64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: it is written to the place that is given.
    let known = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } == 0;
    // SAFETY: it was written.
    known.then(|| unsafe { usage.assume_init().ru_majflt })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        file
    }

    #[test]
    fn what_is_there_is_copied_and_nothing_else() {
        let file = file(b"abcdefgh");
        let mapping = Mapping::new(&file, 8).unwrap();
        let guard = Guard::soon();
        let mut out = [0; 3];
        assert!(mapping.copy(&guard, 5, &mut out));
        assert_eq!(&out, b"fgh");
        for from in [6, 8, u64::MAX] {
            assert!(!mapping.copy(&guard, from, &mut out));
        }
        assert!(mapping.copy(&guard, 8, &mut []));
        assert!(mapping.is_whole());
        assert!(Mapping::new(&file, 0).is_none());
    }

    #[test]
    fn a_copy_behind_the_end_that_a_file_has_now_fails_and_others_do_not() {
        let (cut, other) = (file(&[7; 100_000]), file(&[8; 100_000]));
        let (mapping, untouched) = (Mapping::new(&cut, 100_000).unwrap(), Mapping::new(&other, 100_000).unwrap());
        let guard = Guard::soon();
        let mut out = vec![0; 50_000];
        assert!(mapping.copy(&guard, 50_000, &mut out));
        cut.set_len(10).unwrap();
        // From all threads at once.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut out = vec![0; 50_000];
                    assert!(!mapping.copy(&Guard::soon(), 50_000, &mut out));
                    // Or else nothing need be copied.
                    std::hint::black_box(out);
                });
            }
        });
        assert!(!mapping.is_whole() && !mapping.copy(&guard, 0, &mut out[..1]));
        drop(mapping);
        assert!(untouched.copy(&guard, 50_000, &mut out) && out == [8; 50_000]);
    }

    #[test]
    fn the_handler_knows_where_mappings_lie() {
        let file = file(&[7; 8]);
        let known = |address: usize| {
            let holds = |region: &&Region| {
                (region.start.load(Ordering::SeqCst)..region.end.load(Ordering::SeqCst)).contains(&address)
            };
            REGIONS.iter().filter(holds).count()
        };
        for _ in 0..4 {
            // More in all than there may be at a time: those that went leave their places.
            let held: Vec<_> = (0..MOST / 2).map(|_| Mapping::new(&file, 8).unwrap()).collect();
            assert!(held.iter().all(|mapping| known(mapping.start.addr()) == 1));
            assert!(held.iter().all(|mapping| known(mapping.start.addr() + 8) == 0));
        }
        assert_eq!(known(std::ptr::from_ref(&file).addr()), 0);
    }
}
