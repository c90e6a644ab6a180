//! Footers that are kept for a while, because the row groups of a file are read one after another.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use parquet::file::metadata::ParquetMetaData;

use crate::cancel::Cancel;
use crate::error::Result;

/// Bytes of footers that are kept. Scope: an index. Evidence: a footer of a hundred columns and ten row groups takes
/// about 1 MiB once parsed, and a window rarely touches more than some ten files at a time.
const MOST_BYTES: usize = 64 << 20;

/// How often one who waits for another's reading looks whether it is to stop.
const POLL: Duration = Duration::from_millis(20);

/// The footers that were used last.
#[derive(Debug, Default)]
pub(crate) struct Footers {
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
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
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
            held = self.changed.wait_timeout(held, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        held.reading.push(file);
        drop(held);
        let reading = Reading { footers: self, file };
        let footer = read().map(Arc::new);
        if let Ok(footer) = &footer {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Says that a file is being read, and no more once dropped: a panic must leave nobody waiting.
struct Reading<'a> {
    footers: &'a Footers,
    file: u32,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut held = self.footers.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.reading.retain(|file| *file != self.file);
        self.footers.changed.notify_all();
    }
}
