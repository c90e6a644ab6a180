//! Chunks of any schema, read through a store: row groups of an index, and batches of Arrow files.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use bytes::Bytes;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::table::Table;
use crate::format::table::ipc::{self, Dictionaries, Kind, Layout, Message};
use crate::format::table::row_group::RowGroup;
use crate::index::Index;
use crate::index::read::read_metadata;
use crate::per_process::PerProcess;
use crate::store::{ByteStream, Fetch, Object, Store, read};

/// Bytes between two columns that are read as well, to save a request to a remote store. Scope: a row group. Evidence:
/// a request costs 20 ms and more, in which 80 MB/s bring 1.6 MB; a tenth of it keeps what is read near what is wanted.
const REMOTE_GAP: u64 = 128 << 10;

impl Index {
    /// Reads some columns of a row group, or all of them: only their bytes, and from a remote store those in small gaps.
    ///
    /// # Errors
    /// [`Error::Argument`] for a row group that is not there, [`Error::Changed`] if the file is not the one that was
    /// indexed, and [`Error::Data`] for what cannot be decoded or a column that the file has not.
    pub fn read_rows(&self, row_group: usize, columns: Option<&[String]>, cancel: &Cancel) -> Result<Table> {
        if row_group >= self.row_groups.len() {
            let found = self.row_groups.len();
            return Err(Error::Argument(format!("there is no row group {row_group}: the dataset has {found}")));
        }
        let group = self.row_groups.get(row_group);
        let entry = &self.files[group.file as usize];
        let (object, uri) = (&entry.object, self.store.uri(&entry.object.path));
        let metadata = self.footers.get(group.file, cancel, || {
            let (metadata, digest) = read_metadata(self.store.as_ref(), object, cancel)?;
            if digest == entry.footer_digest {
                return Ok(metadata);
            }
            let [wanted, found] =
                [entry.footer_digest, digest].map(|digest| format!("a footer of digest {digest:032x}"));
            Err(Error::Changed { uri: uri.clone(), wanted, found })
        })?;
        let mut group = RowGroup::new(metadata, group.number as usize, columns, &Place::file(uri))?;
        let parts = if self.store.is_remote() {
            group = group.merged(REMOTE_GAP);
            // All at once: the process-wide limit on requests holds.
            let started: Vec<Fetch> =
                group.ranges().iter().map(|range| self.store.fetch(object, range.clone())).collect();
            let wait = |fetch: Fetch| {
                let mut bytes = Vec::new();
                fetch.wait_into(cancel, &mut bytes).map(|()| Bytes::from(bytes))
            };
            started.into_iter().map(wait).collect::<Result<_>>()?
        } else {
            let part = |range: &std::ops::Range<u64>| read(&self.store, object, range.clone(), cancel).map(Bytes::from);
            group.ranges().iter().map(part).collect::<Result<_>>()?
        };
        group.decode(parts, cancel)
    }

    /// Stored bytes of each row group, as its share of its file by rows.
    pub fn row_group_bytes(&self) -> Vec<u64> {
        let mut groups = self.row_groups.rows().iter();
        let mut bytes = Vec::with_capacity(self.row_groups.len());
        for file in self.files.iter() {
            let share = |rows: &u64| u128::from(file.object.size) * u128::from(*rows) / u128::from(file.rows.max(1));
            bytes.extend(groups.by_ref().take(file.row_groups as usize).map(|rows| share(rows) as u64));
        }
        bytes
    }
}

/// Bytes of a stream that are looked at at a time, to find where its messages are. Scope: an opened stream. Evidence:
/// locally a header has some hundred bytes, and what follows is not read; over a network a message is passed over in
/// no less time than it takes to read it, so that larger reads with some ahead are faster.
const SCAN_LOCAL: u64 = 4 << 10;
const SCAN_REMOTE: u64 = 4 << 20;
const SCAN_AHEAD: usize = 3;

/// Headers of messages that are asked for before the first is waited for, of a remote file.
const HEADERS_AHEAD: usize = 16;

/// An Arrow file or stream whose layout is known.
#[derive(Debug)]
pub struct ArrowFile {
    store: Arc<dyn Store>,
    object: Object,
    layout: Layout,
    place: Place,
    /// The dictionaries that the last batch needed, with the messages that made them.
    dictionaries: PerProcess<Mutex<(Vec<Message>, Arc<Dictionaries>)>>,
}

impl ArrowFile {
    /// Finds the batches: from the footer of a file and the batches' headers, or by passing over a stream once.
    pub fn open(store: &Arc<dyn Store>, object: &Object, cancel: &Cancel) -> Result<Self> {
        let place = Place::file(store.uri(&object.path));
        let front = read(store, object, 0..object.size.min(ipc::PREFIX_BYTES), cancel)?;
        let layout = if front.starts_with(ipc::MAGIC) {
            open_file(store, object, cancel, &place)?
        } else {
            open_stream(store, object, cancel, &place)?
        };
        let (store, object) = (Arc::clone(store), object.clone());
        Ok(Self { store, object, layout, place, dictionaries: PerProcess::default() })
    }

    /// Its columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.layout.schema
    }

    /// Rows of each batch.
    pub fn batch_rows(&self) -> Vec<u64> {
        let rows = |message: &Message| match message.kind {
            Kind::Batch { rows } => rows,
            Kind::Dictionary { .. } => 0,
        };
        self.layout.batches.iter().map(rows).collect()
    }

    /// Stored bytes of each batch.
    pub fn batch_bytes(&self) -> Vec<u64> {
        self.layout.batches.iter().map(|message| message.header + message.body).collect()
    }

    /// Reads a batch, and makes arrays of some of its columns or of all.
    ///
    /// # Errors
    /// [`Error::Argument`] for a batch that is not there, and else as [`Index::read_rows`].
    pub fn read(&self, batch: usize, columns: Option<&[String]>, cancel: &Cancel) -> Result<Table> {
        let Some(message) = self.layout.batches.get(batch) else {
            let found = self.layout.batches.len();
            return Err(Error::Argument(format!("there is no batch {batch}: {} has {found}", self.place)));
        };
        let dictionaries = self.dictionaries(batch, cancel)?;
        let bytes = read(&self.store, &self.object, message.range(), cancel)?;
        self.layout.decode(batch, bytes, &dictionaries, columns, &self.place)
    }

    fn dictionaries(&self, batch: usize, cancel: &Cancel) -> Result<Arc<Dictionaries>> {
        let needed = self.layout.dictionaries_of(batch);
        {
            let held = self.dictionaries.get().lock().unwrap_or_else(PoisonError::into_inner);
            if held.0 == needed {
                return Ok(Arc::clone(&held.1));
            }
        }
        let mut dictionaries = Dictionaries::default();
        for message in &needed {
            let bytes = read(&self.store, &self.object, message.range(), cancel)?;
            self.layout.decode_dictionary(message, bytes, &mut dictionaries, &self.place)?;
        }
        let dictionaries = Arc::new(dictionaries);
        *self.dictionaries.get().lock().unwrap_or_else(PoisonError::into_inner) = (needed, Arc::clone(&dictionaries));
        Ok(dictionaries)
    }
}

fn open_file(store: &Arc<dyn Store>, object: &Object, cancel: &Cancel, place: &Place) -> Result<Layout> {
    let size = object.size;
    let tail = read(store, object, size.saturating_sub(ipc::TAIL_BYTES)..size, cancel)?;
    let end = size - ipc::TAIL_BYTES.min(size);
    let len = ipc::footer_len(size, &tail, place)?;
    let mut layout = ipc::read_footer(&read(store, object, end - len..end, cancel)?, size, place)?;
    let unread = layout.unread();
    let ahead = if store.is_remote() { HEADERS_AHEAD } else { 1 };
    let mut started: VecDeque<Fetch> = VecDeque::with_capacity(ahead);
    let mut next = unread.iter();
    let mut header = Vec::new();
    for number in 0..unread.len() {
        while started.len() < ahead
            && let Some(message) = next.next()
        {
            started.push_back(store.fetch(object, message.start..message.start + message.header));
        }
        let Some(fetch) = started.pop_front() else { break };
        header.clear();
        fetch.wait_into(cancel, &mut header)?;
        layout.add_rows(number, &header, place)?;
    }
    Ok(layout)
}

fn open_stream(store: &Arc<dyn Store>, object: &Object, cancel: &Cancel, place: &Place) -> Result<Layout> {
    let size = object.size;
    let (block, ahead) = if store.is_remote() { (SCAN_REMOTE, SCAN_AHEAD) } else { (SCAN_LOCAL, 0) };
    let mut stream = ByteStream::new(Arc::clone(store), object.clone(), 0..size, block, ahead, cancel.clone());
    let mut layout: Option<Layout> = None;
    // What was read and not used, and where in the stream it begins.
    let (mut bytes, mut at) = (Vec::new(), 0);
    loop {
        cancel.check()?;
        stream.fill(&mut bytes, ipc::PREFIX_BYTES as usize)?;
        let prefix = &bytes[..bytes.len().min(ipc::PREFIX_BYTES as usize)];
        let Some(header) = ipc::header_len(at, prefix, size, place)? else { break };
        stream.fill(&mut bytes, header as usize)?;
        let Some(header) = bytes.get(..header as usize) else {
            return Err(Error::data(place.clone(), format!("expected a message at byte {at}, found its end")));
        };
        let end = match &mut layout {
            Some(layout) => layout.add(at, header, size, place)?,
            None => {
                let (begun, body) = Layout::of_stream(header, place)?;
                layout = Some(begun);
                let end = (at + header.len() as u64).checked_add(body).filter(|end| *end <= size);
                end.ok_or_else(|| Error::data(place.clone(), format!("expected a schema, found one of {body} bytes")))?
            }
        };
        let passed = end - at;
        let held = (bytes.len() as u64).min(passed);
        bytes.drain(..held as usize);
        stream.skip(passed - held);
        at = end;
    }
    layout.ok_or_else(|| {
        let what = format!("expected an Arrow file or stream, found {size} bytes without a schema");
        Error::data(place.clone(), what)
    })
}
