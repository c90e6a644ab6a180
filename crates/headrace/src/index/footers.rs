//! Footers that are kept for a while, because the row groups of a file are read one after another.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use parquet::file::metadata::ParquetMetaData;

use crate::cancel::Cancel;
use crate::error::Result;
use crate::per_process::PerProcess;

/// Bytes of footers that are kept. Scope: an index. Evidence: a footer of a hundred columns and ten row groups takes
/// about 1 MiB once parsed, and a window rarely touches more than some ten files at a time.
const MOST_BYTES: usize = 64 << 20;

/// How often one who waits for another's reading looks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);

/// The footers that were used last, by this process.
#[derive(Debug, Default)]
pub(crate) struct Footers(PerProcess<Shared>);

#[derive(Debug, Default)]
struct Shared {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// By file, the one used last at the end.
    ready: Vec<(u32, Arc<ParquetMetaData>)>,
    /// Files that somebody is reading.
    reading: Vec<u32>,
}

impl Footers {
    /// The footer of a file, from `read` if it is not kept. Of several who ask at once one reads.
    pub(crate) fn get(
        &self,
        file: u32,
        cancel: &Cancel,
        read: impl FnOnce() -> Result<ParquetMetaData>,
    ) -> Result<Arc<ParquetMetaData>> {
        let shared = self.0.get();
        let mut held = shared.lock();
        loop {
            cancel.check()?;
            if let Some(at) = held.ready.iter().position(|(other, _)| *other == file) {
                let found = held.ready.remove(at);
                let footer = Arc::clone(&found.1);
                held.ready.push(found);
                return Ok(footer);
            }
            if !held.reading.contains(&file) {
                break;
            }
            held = shared.changed.wait_timeout(held, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        held.reading.push(file);
        drop(held);
        let reading = Reading { shared, file };
        let footer = read().map(Arc::new);
        if let Ok(footer) = &footer {
            let mut held = shared.lock();
            held.ready.push((file, Arc::clone(footer)));
            let mut bytes: usize = held.ready.iter().map(|(_, footer)| footer.memory_size()).sum();
            while bytes > MOST_BYTES && held.ready.len() > 1 {
                bytes -= held.ready.remove(0).1.memory_size();
            }
        }
        drop(reading);
        footer
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a file is being read, and no more once dropped: a panic must leave nobody waiting.
struct Reading<'a> {
    shared: &'a Shared,
    file: u32,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.shared.lock().reading.retain(|file| *file != self.file);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::per_process::tests::holds_in_child;

    #[test]
    fn a_forked_child_reads_what_a_thread_of_its_parent_s_reads_or_looks_up() {
        let footers = Footers::default();
        let ask = || {
            let read = || Err(Error::Argument("read".to_owned()));
            matches!(footers.get(3, &Cancel::new(), read), Err(Error::Argument(_)))
        };
        let busy = footers.0.get().lock();
        assert!(holds_in_child(ask));
        drop(busy);
        footers.0.get().lock().reading.push(3);
        assert!(holds_in_child(ask));
    }
}
