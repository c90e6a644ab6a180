//! What each process has for itself, of something that many threads change behind a lock.
//!
//! A fork copies locks as they are, and one that another thread of the parent held is never let go of in the child: whoever
//! takes it there waits for ever. Nor is what it guards of any use, half changed as it may be. So a child begins with
//! another one, and leaves its parent's alone, also when both are dropped.

use std::sync::Arc;

use once_cell::race::OnceBox;

/// A value that belongs to one process, and where its forked children have theirs. It is for locks and what they guard;
/// what never changes, or is one atomic number, may be shared.
#[derive(Debug)]
pub struct PerProcess<T> {
    process: u32,
    value: Arc<T>,
    child: OnceBox<PerProcess<T>>,
}

impl<T> PerProcess<T> {
    /// The value of this process.
    pub fn new(value: T) -> Self {
        Self { process: std::process::id(), value: Arc::new(value), child: OnceBox::new() }
    }

    /// This process's value. A child `begin`s with one made of its parent's, of which it must take no lock.
    pub fn get_or(&self, begin: impl Fn(&T) -> T) -> &T {
        let process = std::process::id();
        let mut found = self;
        while found.process != process {
            // Waits for nobody: of two threads that both make one, the first one's stays.
            found = found.child.get_or_init(|| Box::new(Self::new(begin(&found.value))));
        }
        &found.value
    }
}

impl<T: Default> PerProcess<T> {
    /// This process's value, which is the default one in a child that has none yet.
    pub fn get(&self) -> &T {
        self.get_or(|_| T::default())
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // One reference that stays keeps it as it is.
            std::mem::forget(Arc::clone(&self.value));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Whether something is true in a forked child, which is ended if that takes ten seconds.
    pub(crate) fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child does what `check` does, which takes no lock but the allocator's (a fork leaves that usable), and
        // ends without a destructor or a handler of the parent's.
        unsafe {
            match libc::fork() {
                0 => {
                    libc::alarm(10);
                    let code =
                        i32::from(!std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false));
                    libc::_exit(code)
                }
                child => {
                    let mut status = -1;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    status == 0
                }
            }
        }
    }

    #[test]
    fn a_child_has_its_own_and_takes_no_lock_of_its_parent_s() {
        static DROPPED: AtomicUsize = AtomicUsize::new(0);
        #[derive(Default)]
        struct Counted(Mutex<u32>);
        impl Drop for Counted {
            fn drop(&mut self) {
                drop(self.0.lock().unwrap());
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        let own = PerProcess::new(Counted(Mutex::new(7)));
        let held = own.get().0.lock().unwrap();
        assert!(holds_in_child(|| {
            let begun = own.get().0.try_lock().is_ok_and(|number| *number == 0);
            *own.get().0.lock().unwrap() += 1;
            // Its own child has yet another one.
            let of_child = own.get().0.lock().unwrap();
            let nested = holds_in_child(|| own.get().0.try_lock().is_ok_and(|number| *number == 0));
            begun && nested && *of_child == 1
        }));
        assert_eq!(*held, 7);
        // Dropped in the child, what is locked for ever is left as it is.
        std::mem::forget(held);
        let mut own = Some(own);
        assert!(holds_in_child(|| {
            own.as_ref().unwrap().get();
            drop(own.take());
            DROPPED.load(Ordering::Relaxed) == 1
        }));
        std::mem::forget(own);
    }

    #[test]
    fn a_child_may_begin_with_what_its_parent_s_knows() {
        let own = PerProcess::new((Mutex::new(5), 3));
        let begin = |parent: &(Mutex<u32>, u32)| (Mutex::new(parent.1), parent.1);
        let held = own.get_or(begin).0.lock().unwrap();
        assert!(holds_in_child(|| *own.get_or(begin).0.lock().unwrap() == 3));
        assert_eq!(*held, 5);
    }
}
