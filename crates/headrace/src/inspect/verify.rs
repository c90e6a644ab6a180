//! Reading everything, to find all that is damaged rather than the first of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::file::metadata::ParquetMetaData;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::check::{check_chunk, range};
use crate::format::parquet::footer::ChunkFooter;
use crate::format::parquet::{FileFooter, Limits, PageValues, TokenSink, TokensMut};
use crate::index::chunks::{ChunkReader, LARGEST, stream};
use crate::index::count::Count;
use crate::index::listing::find_files;
use crate::index::read::{each_footer, parallel, read_whole, threads};
use crate::index::{Phase, Progress};
use crate::store::{Object, Store};

/// What a Parquet file begins with.
const MAGIC: &[u8; 4] = b"PAR1";

/// How a dataset is to be verified.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions {
    /// Settings of the store, see [`crate::store::remote`].
    pub storage_options: BTreeMap<String, String>,
    /// The token column, which every file with rows must have; all other columns need only be readable. By default
    /// every list of integers is taken for tokens.
    pub column: Option<String>,
    /// Threads; by default chosen from the machine and the store.
    pub threads: Option<usize>,
}

/// What was read, and all that was found wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files, with those that cannot be read.
    pub files: u64,
    /// Row groups of the files whose footers can be read.
    pub row_groups: u64,
    /// Their rows.
    pub rows: u64,
    /// Tokens that were decoded, of all token columns.
    pub tokens: u64,
    /// Everything that is wrong, by file, row group and column.
    pub faults: Vec<Fault>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub uri: String,
    /// The row group, unless it is the file as a whole.
    pub row_group: Option<u32>,
    /// The column, unless it is all of them.
    pub column: Option<String>,
    /// The row of the row group, where it is known.
    pub row: Option<u64>,
    /// What was expected and what was found.
    pub message: String,
}

impl Fault {
    /// An error that came up at `place`, or a more precise one that it names itself.
    fn new(error: Error, place: Place) -> Self {
        let (place, message) = match error {
            Error::Data { place: own, what } => {
                let place = Place {
                    uri: own.uri,
                    row_group: own.row_group.or(place.row_group),
                    column: own.column.or(place.column),
                    row: own.row,
                };
                (place, what)
            }
            // What the error says of a memory budget is for those who train.
            Error::Memory { needed, available, .. } => {
                (place, format!("expected a page of at most {available} bytes, found one of {needed}"))
            }
            other => (place, other.to_string()),
        };
        let Place { uri, column, row_group, row } = place;
        Self { uri, row_group, column, row, message }
    }
}

/// Reads every page of every column of every file below `urls`.
///
/// Token columns are decoded as in a run, with their values, and their counts compared with what the footers say;
/// all other columns are decoded by the `parquet` crate. Checksums are compared where pages have them.
///
/// # Errors
/// Only what keeps all files from being found, and [`Error::Cancelled`]: whatever is wrong with a file is a [`Fault`].
pub fn verify(urls: &[String], options: &VerifyOptions, cancel: &Cancel, progress: &Progress) -> Result<VerifyReport> {
    let (store, objects, _) = find_files(urls, &options.storage_options, cancel, progress)?;
    let verifier = Verifier { store, column: options.column.as_deref(), cancel, found: Mutex::default() };
    let all: Vec<usize> = (0..objects.len()).collect();
    progress.begin(Phase::Footers, all.len() as u64);
    let keep =
        |object: &Object, read: Result<(FileFooter, u128)>| verifier.footer(object, read.map(|(footer, _)| footer));
    let groups = each_footer(&verifier.store, &objects, &all, options.threads, cancel, progress, keep)?;
    // The first task of each file: a task is a row group.
    let mut starts = Vec::with_capacity(groups.len());
    let mut tasks = 0_usize;
    for groups in groups {
        starts.push(tasks);
        tasks += groups as usize;
    }
    progress.begin(Phase::Pages, tasks as u64);
    let work = |reader: &mut Reader, take: &mut dyn FnMut() -> Option<usize>, _: &mut dyn FnMut(usize, ())| {
        while let Some(task) = take() {
            let file = starts.partition_point(|start| *start <= task) - 1;
            let group = (task - starts[file]) as u32;
            verifier.row_group(reader, file, &objects[file], group).map_err(|error| (task, error))?;
            progress.step();
        }
        Ok(())
    };
    let threads = threads(options.threads, verifier.store.as_ref(), tasks);
    let reader = || Reader { chunks: ChunkReader::new(), open: None };
    parallel(tasks, threads, cancel, reader, work).1?;
    progress.begin(Phase::Done, 0);
    let mut report = verifier.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.files = objects.len() as u64;
    // Paths are sorted, and names of files are paths below one root.
    let place = |fault: &Fault| (fault.uri.clone(), fault.row_group, fault.column.clone(), fault.row);
    report.faults.sort_by_cached_key(place);
    // A file that is gone is found so by each thread that wanted to read of it.
    report.faults.dedup();
    Ok(report)
}

/// What a thread keeps between row groups.
struct Reader {
    chunks: ChunkReader,
    /// The file that was read last, by number, with its footer: row groups come in order.
    open: Option<(usize, Arc<(FileFooter, ParquetMetaData)>)>,
}

/// Reads every token, and keeps none.
#[derive(Default)]
struct All {
    count: Count,
    tokens: Vec<i32>,
}

/// Tokens that [`All`] reads at a time: what stays in a core's own cache.
const AT_A_TIME: u64 = 16 << 10;

impl TokenSink for All {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        true
    }

    fn documents(&mut self, continued: bool, lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        while values.left() > 0 {
            self.tokens.resize(values.left().min(AT_A_TIME) as usize, 0);
            values.read(TokensMut::I32(&mut self.tokens))?;
        }
        self.count.add(continued, lengths);
        Ok(())
    }
}

struct Verifier<'a> {
    store: Arc<dyn Store>,
    column: Option<&'a str>,
    cancel: &'a Cancel,
    found: Mutex<VerifyReport>,
}

impl Verifier<'_> {
    fn note(&self, note: impl FnOnce(&mut VerifyReport)) {
        note(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Goes on after a fault; only a cancellation ends the work.
    fn survive<T>(&self, result: Result<T>, place: impl FnOnce() -> Place) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(error) => {
                let fault = Fault::new(error, place());
                self.note(|report| report.faults.push(fault));
                Ok(None)
            }
        }
    }

    /// Checks a file as a whole: how many of its row groups are to be read.
    fn footer(&self, object: &Object, read: Result<FileFooter>) -> Result<u32> {
        let place = || Place::file(self.store.uri(&object.path));
        let Some(footer) = self.survive(read, place)? else { return Ok(0) };
        self.survive(self.magic(object, place), place)?;
        if let Some(column) = self.column
            && !footer.row_groups.is_empty()
        {
            self.survive(footer.column(column, &place()), || place().in_column(column))?;
        }
        self.note(|report| {
            report.row_groups += footer.row_groups.len() as u64;
            report.rows += footer.rows;
        });
        Ok(footer.row_groups.len() as u32)
    }

    fn magic(&self, object: &Object, place: impl FnOnce() -> Place) -> Result<()> {
        let mut bytes = Vec::new();
        self.store.fetch(object, 0..MAGIC.len() as u64).wait_into(self.cancel, &mut bytes)?;
        if bytes == MAGIC {
            return Ok(());
        }
        let what = format!("expected a Parquet file that begins with \"PAR1\", found \"{}\"", bytes.escape_ascii());
        Err(Error::data(place(), what))
    }

    /// Reads all columns of a row group.
    fn row_group(&self, reader: &mut Reader, file: usize, object: &Object, group: u32) -> Result<()> {
        let place = Place::file(self.store.uri(&object.path));
        let open = match &reader.open {
            Some((number, open)) if *number == file => Arc::clone(open),
            _ => {
                reader.open = None;
                let read = read_whole(self.store.as_ref(), object, self.cancel);
                let Some(read) = self.survive(read, || place.clone())? else { return Ok(()) };
                Arc::clone(&reader.open.insert((file, Arc::new(read))).1)
            }
        };
        let (footer, metadata) = open.as_ref();
        let number = group as usize;
        // The file was found to be the one that was listed, so that these are there.
        let (Some(group_footer), Some(columns)) = (footer.row_groups.get(number), metadata.row_groups().get(number))
        else {
            return Ok(());
        };
        let place = place.at_row_group(group);
        for (leaf, column) in columns.columns().iter().enumerate() {
            self.cancel.check()?;
            let mut named = footer.columns.iter().filter(|column| column.leaf == leaf);
            let tokens = named.find(|column| self.column.is_none_or(|name| name == column.name));
            if let Some(tokens) = tokens {
                let place = place.clone().in_column(&tokens.name);
                let read = self.tokens(&mut reader.chunks, object, &tokens.chunks[number], &place);
                if let Some(count) = self.survive(read, || place)? {
                    self.note(|report| report.tokens += count);
                }
                continue;
            }
            let place = place.clone().in_column(column.column_path().string());
            let (start, len) = range(column);
            let mut stream = stream(&self.store, object, start, len, self.cancel);
            let fill = Box::new(move |buffer: &mut Vec<u8>, want: usize| stream.fill(buffer, want));
            let limits = Limits { page_bytes: LARGEST };
            self.survive(check_chunk(column, group_footer.rows, &place, limits, fill), || place)?;
        }
        Ok(())
    }

    /// Decodes a token column's chunk, and compares its counts with the footer's.
    fn tokens(&self, reader: &mut ChunkReader, object: &Object, footer: &ChunkFooter, place: &Place) -> Result<u64> {
        let mut all = All::default();
        reader.read(&self.store, object, &footer.chunk, place.clone(), self.cancel, &mut all)?;
        let count = all.count;
        let counts =
            [("tokens", footer.tokens, count.tokens), ("documents with a token", footer.documents, count.documents)];
        for (name, wanted, found) in counts {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                let what = format!("expected {wanted} {name} as the footer's statistics say, found {found}");
                return Err(Error::data(place.clone(), what));
            }
        }
        Ok(count.tokens)
    }
}
