//! Reading footers: many files at once, at most two requests each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parquet::file::metadata::ParquetMetaData;
use xxhash_rust::xxh3::xxh3_128;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::FileFooter;
use crate::format::parquet::footer::{TAIL_BYTES, footer_len, parse, read_footer};
use crate::index::Progress;
use crate::index::table::FileRead;
use crate::store::{Fetch, Object, Store};

/// Bytes first read from a file's end. Scope: a file. Evidence: a footer has some hundred bytes a column and row
/// group, so most are below this; a second request to a store costs as much as 64 KiB take to arrive, a second
/// read of a local file next to nothing.
const TAIL_REMOTE: u64 = 64 << 10;
const TAIL_LOCAL: u64 = 16 << 10;

/// The longest footer that is read. Scope: a file, times the threads. Unit: bytes. Evidence: ten thousand row groups
/// of a hundred columns take about 100 MiB; a length beyond this is far more likely to be a damaged one.
const LONGEST_FOOTER: u64 = 512 << 20;

/// Files that a thread has asked for before it waits, for remote stores: with [`threads`], as many as the limit on
/// requests lets through, twice.
const AHEAD: usize = 16;

/// Threads for work on many files.
pub(crate) fn threads(wanted: Option<usize>, store: &dyn Store, work: usize) -> usize {
    let cores = thread::available_parallelism().map_or(2, |n| n.get());
    let usual = if store.is_remote() { 4 } else { cores };
    wanted.unwrap_or(usual).clamp(1, 64).min(work.max(1))
}

/// Runs `work` for each number below `count` on several threads, each with a state of its own, and gives the results
/// in order. After a failure no new work is begun; of several failures that of the lowest number is returned, along
/// with the results that there are.
pub(crate) fn parallel<S, T: Send>(
    count: usize,
    threads: usize,
    cancel: &Cancel,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &mut dyn FnMut() -> Option<usize>, &mut dyn FnMut(usize, T)) -> Result<(), (usize, Error)> + Sync,
) -> (Vec<(usize, T)>, Result<()>) {
    let next = AtomicUsize::new(0);
    let one = || {
        let mut state = state();
        let mut done = Vec::new();
        let mut take = || {
            let number = next.fetch_add(1, Ordering::Relaxed);
            (number < count && !cancel.is_cancelled()).then_some(number)
        };
        let result = work(&mut state, &mut take, &mut |number, value| done.push((number, value)));
        if result.is_err() {
            next.store(count, Ordering::Relaxed);
        }
        (done, result)
    };
    let mut all = Vec::with_capacity(count);
    let mut failure: Option<(usize, Error)> = None;
    thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|number| thread::Builder::new().name(format!("headrace-index-{number}")).spawn_scoped(scope, one))
            .collect();
        for thread in spawned {
            let (done, result) = match thread.map(|thread| thread.join()) {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) => (Vec::new(), Err((0, Error::Internal("a thread of the index panicked".to_owned())))),
                Err(e) => (Vec::new(), Err((0, Error::Internal(format!("a thread could not be started: {e}"))))),
            };
            all.extend(done);
            if let Err((number, error)) = result
                && failure.as_ref().is_none_or(|(other, _)| number < *other)
            {
                failure = Some((number, error));
            }
        }
    });
    all.sort_unstable_by_key(|(number, _)| *number);
    let result = match failure {
        Some((_, error)) => Err(error),
        None => cancel.check(),
    };
    (all, result)
}

/// Reads the footers of some of `objects`, by number; results are in the order of `wanted`.
pub(crate) fn read_footers(
    store: &Arc<dyn Store>,
    objects: &[Object],
    wanted: &[usize],
    limit: Option<usize>,
    cancel: &Cancel,
    progress: &Progress,
) -> Result<Vec<FileRead>> {
    let keep =
        |_: &Object, read: Result<(FileFooter, u128)>| read.map(|(footer, digest)| FileRead::new(footer, digest));
    each_footer(store, objects, wanted, limit, cancel, progress, keep)
}

/// The same, with what `keep` makes of each footer, or of the error that came in its stead. What it returns as an
/// error ends the reading.
pub(crate) fn each_footer<T: Send>(
    store: &Arc<dyn Store>,
    objects: &[Object],
    wanted: &[usize],
    limit: Option<usize>,
    cancel: &Cancel,
    progress: &Progress,
    keep: impl Fn(&Object, Result<(FileFooter, u128)>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let ahead = if store.is_remote() { AHEAD } else { 1 };
    let work = |buffer: &mut Vec<u8>,
                take: &mut dyn FnMut() -> Option<usize>,
                done: &mut dyn FnMut(usize, T)|
     -> Result<(), (usize, Error)> {
        let mut started: VecDeque<(usize, Fetch)> = VecDeque::with_capacity(ahead);
        loop {
            while started.len() < ahead {
                let Some(number) = take() else { break };
                started.push_back((number, start(store.as_ref(), &objects[wanted[number]])));
            }
            let Some((number, fetch)) = started.pop_front() else { return Ok(()) };
            let object = &objects[wanted[number]];
            let read = finish(store.as_ref(), object, fetch, cancel, buffer, read_footer);
            done(number, keep(object, read).map_err(|error| (number, error))?);
            progress.step();
        }
    };
    let threads = threads(limit, store.as_ref(), wanted.len());
    let (reads, result) = parallel(wanted.len(), threads, cancel, Vec::new, work);
    result?;
    Ok(reads.into_iter().map(|(_, read)| read).collect())
}

/// Reads the footer of one file.
pub(crate) fn read_one(store: &dyn Store, object: &Object, cancel: &Cancel) -> Result<FileFooter> {
    let (footer, _) = finish(store, object, start(store, object), cancel, &mut Vec::new(), read_footer)?;
    Ok(footer)
}

/// What the `parquet` crate makes of the footer of one file, after it was checked, and the digest of its bytes.
pub(crate) fn read_metadata(store: &dyn Store, object: &Object, cancel: &Cancel) -> Result<(ParquetMetaData, u128)> {
    let ((_, metadata), digest) = finish(store, object, start(store, object), cancel, &mut Vec::new(), parse)?;
    Ok((metadata, digest))
}

/// Reads the footer of one file, and all that the `parquet` crate makes of it.
pub(crate) fn read_whole(store: &dyn Store, object: &Object, cancel: &Cancel) -> Result<(FileFooter, ParquetMetaData)> {
    let (read, _) = finish(store, object, start(store, object), cancel, &mut Vec::new(), parse)?;
    Ok(read)
}

fn start(store: &dyn Store, object: &Object) -> Fetch {
    let tail = if store.is_remote() { TAIL_REMOTE } else { TAIL_LOCAL };
    store.fetch(object, object.size.saturating_sub(tail)..object.size)
}

/// What `parse` makes of the footer, and the digest of its bytes.
fn finish<T>(
    store: &dyn Store,
    object: &Object,
    tail: Fetch,
    cancel: &Cancel,
    buffer: &mut Vec<u8>,
    parse: impl Fn(&[u8], u64, &Place) -> Result<T>,
) -> Result<(T, u128)> {
    let place = Place::file(store.uri(&object.path));
    buffer.clear();
    if object.size == 0 {
        // Nothing is read of an empty file, so this is what finds that it is gone or cannot be opened.
        store.head(&object.path, cancel)?;
    }
    tail.wait_into(cancel, buffer)?;
    let len = u64::from(footer_len(object.size, buffer, &place)?);
    if len > LONGEST_FOOTER {
        return Err(Error::data(place, format!("expected a footer of at most {LONGEST_FOOTER} bytes, found {len}")));
    }
    let whole = len + TAIL_BYTES;
    let held = buffer.len() as u64;
    if whole > held {
        let mut front = Vec::new();
        store.fetch(object, object.size - whole..object.size - held).wait_into(cancel, &mut front)?;
        front.append(buffer);
        *buffer = front;
    }
    let end = buffer.len() - TAIL_BYTES as usize;
    let bytes = &buffer[end - len as usize..end];
    let footer = parse(bytes, object.size, &place)?;
    let digest = xxh3_128(bytes);
    // A rare huge footer must not stay in memory for all the files that follow.
    if buffer.capacity() > 4 << 20 {
        *buffer = Vec::new();
    }
    Ok((footer, digest))
}
