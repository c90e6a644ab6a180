//! Rows of one width, gathered from files.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headrace::engine::{
    self, Fed, FeedMeans, Field, Fields, Piece, RowBatch, RowShape, RowsKept, Stored, StoredFile, StoredObject,
    Stretch, Values, Whole,
};
use headrace::store::{Object, Version, open_file};
use pyo3::exceptions::{PyIndexError, PyOSError, PyOverflowError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::blocking::{POLL, blocking};
use crate::buffer::{Buffer, numbers};
use crate::errors::to_python;
use crate::listing::Listing;
use crate::order::Permutation;

/// A local file, as it was listed, that is open when it is read.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct OpenFile(Arc<engine::OpenFiles>);

#[pymethods]
impl OpenFile {
    /// It stays open, and what replaces it by renaming does not disturb it, while it is among the last `keep_open` files that
    /// this process used.
    ///
    /// Raises DataError if the file has another size or version, here and when it is opened again.
    #[new]
    #[pyo3(signature = (path, size, version, *, keep_open))]
    fn new(py: Python<'_>, path: PathBuf, size: u64, version: &str, keep_open: usize) -> PyResult<Self> {
        let version = Version::from_token(version).map_err(to_python)?;
        let file = engine::OpenFiles::new(vec![StoredFile::new(path, size, version)], keep_open);
        py.detach(|| file.one(0)).map_err(to_python)?;
        Ok(Self(Arc::new(file)))
    }

    /// The bytes of `range(start, stop)`.
    ///
    /// Raises DataError if the file has another size or version by now.
    fn read<'py>(&self, py: Python<'py>, start: u64, stop: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = stop.checked_sub(start).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| PyIndexError::new_err(format!("there are no bytes {start} to {stop}")))?;
        let file = py.detach(|| self.0.one(0)).map_err(to_python)?;
        let found = if bytes < LARGE { None } else { read_large(py, &file, start, bytes)? };
        if let Some(found) = found {
            py.detach(|| file.check()).map_err(to_python)?;
            return Ok(found);
        }
        let read = |out: &mut [u8]| {
            file.read_at(start, out)?;
            file.check()
        };
        PyBytes::new_with(py, bytes, |out| py.detach(|| read(out)).map_err(to_python))
    }
}

/// From so many bytes on it takes longer to fill them with zeros first than to go through `os.pread`.
const LARGE: usize = 32 << 10;

/// Bytes of a file as `os.pread` gives them, which reads into memory that nothing was written to; `None` if it does not give
/// them all, and why is for another read to say.
fn read_large<'py>(
    py: Python<'py>,
    file: &open_file::OpenFile,
    start: u64,
    bytes: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let found = py.import("os")?.call_method1("pread", (file.as_fd().as_raw_fd(), bytes, start));
    match found.and_then(|found| Ok(found.cast_into::<PyBytes>()?)) {
        Ok(found) => Ok(Some(found).filter(|found| found.as_bytes().len() == bytes)),
        Err(error) if error.is_instance_of::<PyOSError>(py) || error.is_instance_of::<PyOverflowError>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Gathers rows, and keeps the memory of arrays that went.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct Gather(engine::Gather);

#[pymethods]
impl Gather {
    /// Keeps the memory of at most `keep` arrays that nobody refers to.
    #[new]
    #[pyo3(signature = (*, keep))]
    fn new(keep: usize) -> Self {
        Self(engine::Gather::new(keep))
    }

    /// The bytes of rows that are `width` long each: row n begins at byte `starts[n]` of file `which[n]`, both buffers
    /// of 64-bit numbers. With `convert` they are numbers of its first type, and come as its second.
    #[pyo3(signature = (files, which, starts, width, *, convert=None))]
    #[allow(clippy::needless_pass_by_value, reason = "as PyO3 extracts it")]
    fn take(
        &self,
        py: Python<'_>,
        files: Vec<PyRef<'_, OpenFile>>,
        which: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        width: usize,
        convert: Option<(String, String)>,
    ) -> PyResult<Buffer> {
        let values = values(convert.as_ref(), None)?;
        let mut rows = Vec::new();
        for (file, start) in numbers(which)?.into_iter().zip(numbers(starts)?) {
            let (Ok(file), Ok(start)) = (usize::try_from(file), u64::try_from(start)) else {
                return Err(PyIndexError::new_err(format!("there is no byte {start} of file {file}")));
            };
            rows.push(engine::Row { file, start });
        }
        let files: Vec<_> = files.iter().map(|file| Arc::clone(&file.0)).collect();
        let take = || {
            let opened = files.iter().map(|file| file.one(0)).collect::<Result<Vec<_>, _>>()?;
            self.0.take(&opened, &rows, width, &values)
        };
        let arrays = py.detach(take).map_err(to_python)?;
        arrays.into_iter().map(Buffer::slot).next().ok_or_else(|| PyValueError::new_err("nothing is gathered"))
    }
}

/// Items that are rows of one width in files.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct StoredRows(Arc<engine::StoredRows>);

#[pymethods]
impl StoredRows {
    /// Items of pieces of `files`, each with its path, size and version: local ones, which are opened as they are needed, or
    /// with `stores`, one for each, files below the roots of these. Piece n begins at byte `starts[n]` of file
    /// `which[n]` and has `counts[n]` items, each `stride` bytes behind the one before; all buffers of 64-bit numbers.
    /// `convert` as for `Gather.take`, or `split`: items are records of so many bytes, and each of some fields (first byte
    /// in a record, bytes) becomes an array of its own. The memory of at most `keep` batches and at most `keep_open`
    /// files that nobody uses are kept, with those of others.
    #[new]
    #[pyo3(signature = (files, stores, which, starts, counts, *, stride, width, convert, split, keep, keep_open))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one call from samples/stored.py")]
    fn new(
        files: Vec<(String, u64, String)>,
        stores: Option<Vec<PyRef<'_, Listing>>>,
        which: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        counts: &Bound<'_, PyAny>,
        stride: u64,
        width: usize,
        convert: Option<(String, String)>,
        split: Option<SplitTuple>,
        keep: usize,
        keep_open: usize,
    ) -> PyResult<Self> {
        let version = |version: &str| Version::from_token(version).map_err(to_python);
        let files = match stores {
            None => {
                let file = |(path, size, token): (String, u64, String)| {
                    Ok(StoredFile::new(PathBuf::from(path), size, version(&token)?))
                };
                Stored::Disk(files.into_iter().map(file).collect::<PyResult<_>>()?)
            }
            Some(stores) => {
                let object = |((path, size, token), listing): ((String, u64, String), PyRef<'_, Listing>)| {
                    let object = Object { path, size, version: version(&token)? };
                    Ok(StoredObject { store: Arc::clone(&listing.store), object })
                };
                Stored::Remote(files.into_iter().zip(stores).map(object).collect::<PyResult<_>>()?)
            }
        };
        let mut pieces = Vec::new();
        for ((file, start), items) in numbers(which)?.into_iter().zip(numbers(starts)?).zip(numbers(counts)?) {
            let (Ok(file), Ok(start), Ok(items)) = (usize::try_from(file), u64::try_from(start), u64::try_from(items))
            else {
                return Err(PyIndexError::new_err(format!("there are no {items} items at {start} of file {file}")));
            };
            pieces.push(Piece { file, start, items });
        }
        let shape = RowShape { stride, width, values: values(convert.as_ref(), split)? };
        let kept = RowsKept { batches: keep, files: keep_open };
        let rows = engine::StoredRows::new(files, pieces, shape, kept).map_err(to_python)?;
        Ok(Self(Arc::new(rows)))
    }
}

/// Batches of stored rows, gathered ahead of use.
#[pyclass(frozen, module = "headrace._core")]
pub(crate) struct RowFeed {
    /// `None` once closed.
    feed: Mutex<Option<Arc<engine::RowFeed>>>,
}

/// Bytes of a record, and of each field its first byte there and its bytes.
type SplitTuple = (usize, Vec<(usize, usize)>);

/// The step, the numbers of the items, and their bytes: an array, or one for each field; None if they could not be read.
type FedBatch = (u64, Buffer, Option<Vec<Buffer>>);

#[pymethods]
impl RowFeed {
    /// Stretches of batches are (step, first place, rows, places from one batch to the next, batches); `order` is from
    /// places to items, or None.
    #[new]
    #[pyo3(signature = (rows, order, stretches, *, workers, ahead, memory))]
    fn new(
        rows: &StoredRows,
        order: Option<&Permutation>,
        stretches: Vec<(u64, u64, u64, u64, u64)>,
        workers: usize,
        ahead: usize,
        memory: u64,
    ) -> PyResult<Self> {
        let stretch = |(step, first, rows, apart, count)| Stretch { step, first, rows, apart, count };
        let stretches = stretches.into_iter().map(stretch).collect();
        let (order, means) = (order.map(Permutation::order), FeedMeans { workers, ahead, memory });
        let feed = engine::RowFeed::start(Arc::clone(&rows.0), order, stretches, means).map_err(to_python)?;
        Ok(Self { feed: Mutex::new(Some(Arc::new(feed))) })
    }

    /// Waits for the next batch; None behind the last one. Ctrl-C interrupts, and nothing is lost by it, but that without
    /// workers a feed from a store has no more to give.
    ///
    /// Raises TimeoutError after `timeout` seconds, and StoreError where a store did not answer.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<FedBatch>> {
        let Some(feed) = self.feed() else { return Ok(None) };
        if let Some(batch) = feed.ready() {
            return given(batch).map(Some);
        }
        let begin = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout - begin.elapsed().as_secs_f64());
            let wait = left.map_or(POLL, |left| POLL.min(Duration::from_secs_f64(left.max(0.0))));
            let fed = match feed.waits() {
                None => py.detach(|| feed.next(wait)),
                Some(cancel) => blocking(py, cancel, |_| Ok(()), || Ok(feed.next(wait)))?,
            };
            match fed {
                Fed::Batch(batch) => return given(*batch).map(Some),
                Fed::End => return Ok(None),
                Fed::Pending => py.check_signals()?,
            }
            if left.is_some_and(|left| left <= POLL.as_secs_f64()) {
                return Err(PyTimeoutError::new_err("no batch in that time"));
            }
        }
    }

    /// Ends the threads, each after what it is at; waits for nothing.
    fn close(&self) {
        drop(self.feed.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl RowFeed {
    fn feed(&self) -> Option<Arc<engine::RowFeed>> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A batch for Python, where one that could not be read is made again, which tells more; but for what was tried for long.
fn given(batch: RowBatch) -> PyResult<FedBatch> {
    let arrays = match batch.arrays {
        Ok(arrays) => Some(arrays.into_iter().map(Buffer::slot).collect()),
        Err(error) if error.retryable() => return Err(to_python(error)),
        Err(_) => None,
    };
    Ok((batch.step, Buffer::i64(batch.items), arrays))
}

/// What becomes of stored bytes.
fn values(convert: Option<&(String, String)>, split: Option<SplitTuple>) -> PyResult<Values> {
    Ok(match (convert, split) {
        (None, None) => Values::Stored,
        (Some((from, to)), None) => Values::Converted(whole(from)?, whole(to)?),
        (None, Some((record, fields))) => {
            let fields = fields.into_iter().map(|(start, size)| Field { start, size }).collect();
            Values::Split(Fields::new(record, fields).map_err(to_python)?)
        }
        (Some(_), Some(_)) => return Err(PyValueError::new_err("numbers are converted, or records split, not both")),
    })
}

/// A type of whole numbers by NumPy's name.
fn whole(name: &str) -> PyResult<Whole> {
    Ok(match name {
        "uint8" => Whole::U8,
        "int8" => Whole::I8,
        "uint16" => Whole::U16,
        "int16" => Whole::I16,
        "uint32" => Whole::U32,
        "int32" => Whole::I32,
        "uint64" => Whole::U64,
        "int64" => Whole::I64,
        _ => return Err(PyValueError::new_err(format!("expected a type of whole numbers, got {name:?}"))),
    })
}
