//! Arrow files and streams (the IPC formats), with dictionaries and compressed buffers.
//!
//! A stream is a schema and messages, each a header (*metadata*) and a body; a file is a stream between two marks, with
//! a footer that says where its messages are. A [`Layout`] is the same of both: it is put together once, and then any
//! batch can be read by itself, after the dictionaries that it refers to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{read_dictionary, read_record_batch};
use arrow::ipc::{self, Block, CompressionType, MessageHeader, MetadataVersion};

use super::{Table, choose, guarded, hidden};
use crate::error::{Error, Place, Result};

/// What an Arrow file begins with, padded to eight bytes, and ends with.
pub const MAGIC: &[u8; 6] = b"ARROW1";
/// Bytes at a file's end that say how long its footer is.
pub const TAIL_BYTES: u64 = 10;
/// Bytes that say how long the header of a message is.
pub const PREFIX_BYTES: u64 = 8;

/// The longest header of a message, and the longest footer. Unit: bytes. Evidence: some hundred bytes a column.
const LONGEST_HEADER: u64 = 256 << 20;
/// The most rows of a batch: they are counted in 32 bits where samples are numbered.
const MOST_ROWS: i64 = u32::MAX as i64;
/// Bytes that the compressed buffers of a batch may be together once decompressed. Evidence: batches are some thousand
/// rows; a reader takes memory by what is declared, before it looks at the bytes.
const MOST_BYTES: u64 = 4 << 30;

/// Where a message lies and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Its first byte in the file.
    pub start: u64,
    /// Bytes of its header, with the prefix.
    pub header: u64,
    /// Bytes of its body.
    pub body: u64,
    /// What it holds.
    pub kind: Kind,
}

/// What a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Rows.
    Batch {
        /// How many.
        rows: u64,
    },
    /// Values that batches refer to.
    Dictionary {
        /// Which dictionary.
        id: i64,
        /// Whether they follow those that there are, rather than replace them.
        is_delta: bool,
    },
}

impl Message {
    /// Its bytes in the file.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.header + self.body
    }
}

/// What an Arrow file or stream consists of.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its batches, in order.
    pub batches: Vec<Message>,
    version: MetadataVersion,
    /// In order.
    dictionaries: Vec<Message>,
    /// A stream's dictionaries are those that came before a batch, a file's are for all of it.
    is_stream: bool,
}

/// The arrays of dictionaries by their number.
pub type Dictionaries = BTreeMap<i64, ArrayRef>;

fn flawed(place: &Place, what: impl Into<String>) -> Error {
    Error::data(place.clone(), what)
}

/// The length of a file's footer, from its last [`TAIL_BYTES`] bytes.
pub fn footer_len(size: u64, tail: &[u8], place: &Place) -> Result<u64> {
    let Some(([l0, l1, l2, l3], mark)) = tail.split_first_chunk::<4>() else {
        return Err(flawed(
            place,
            format!("expected {TAIL_BYTES} bytes at the end of an Arrow file, found {}", tail.len()),
        ));
    };
    if mark != MAGIC {
        let hint = "hint: the file may have been cut short, or be of another format";
        let found = mark.escape_ascii();
        return Err(flawed(
            place,
            format!("expected an Arrow file that ends with \"ARROW1\", found \"{found}\"\n{hint}"),
        ));
    }
    let len = u64::from(u32::from_le_bytes([*l0, *l1, *l2, *l3]));
    if len > LONGEST_HEADER || len + TAIL_BYTES + PREFIX_BYTES > size {
        return Err(flawed(
            place,
            format!("expected a footer within the file's {size} bytes, found one of {len} bytes"),
        ));
    }
    Ok(len)
}

/// What a file's footer says: the layout, with rows that are not known yet. [`Layout::add_rows`] makes them known.
pub fn read_footer(bytes: &[u8], size: u64, place: &Place) -> Result<Layout> {
    guarded(place, "the footer of an Arrow file", || {
        let unreadable = |what: String| flawed(place, format!("expected the footer of an Arrow file, found: {what}"));
        let footer = ipc::root_as_footer(bytes).map_err(|error| unreadable(error.to_string()))?;
        let schema = footer.schema().ok_or_else(|| unreadable("no schema".to_owned()))?;
        let schema = read_schema(schema, place)?;
        let message = |block: &Block, kind| message_of(block, size, kind, place);
        let (batches, dictionaries) = (footer.recordBatches(), footer.dictionaries());
        let batches = batches.into_iter().flatten().map(|block| message(block, Kind::Batch { rows: 0 }));
        let unknown = Kind::Dictionary { id: 0, is_delta: false };
        let dictionaries = dictionaries.into_iter().flatten().map(|block| message(block, unknown));
        Ok(Layout {
            schema,
            version: footer.version(),
            batches: batches.collect::<Result<_>>()?,
            dictionaries: dictionaries.collect::<Result<_>>()?,
            is_stream: false,
        })
    })
}

fn message_of(block: &Block, size: u64, kind: Kind, place: &Place) -> Result<Message> {
    let number = |number: i64| u64::try_from(number).ok();
    let message = match (number(block.offset()), number(block.metaDataLength().into()), number(block.bodyLength())) {
        (Some(start), Some(header), Some(body)) => Message { start, header, body, kind },
        _ => return Err(flawed(place, "expected places of messages in the footer, found negative numbers")),
    };
    let end = message.start.checked_add(message.header).and_then(|end| end.checked_add(message.body));
    if end.is_none_or(|end| end > size) || !(PREFIX_BYTES..=LONGEST_HEADER).contains(&message.header) {
        let Message { start, header, body, .. } = message;
        let what = format!("a message of {header} and {body} bytes at {start}");
        return Err(flawed(place, format!("expected messages within the file's {size} bytes, found {what}")));
    }
    Ok(message)
}

fn read_schema(schema: ipc::Schema<'_>, place: &Place) -> Result<SchemaRef> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err(flawed(place, "expected little-endian data, found big-endian"));
    }
    let schema = try_fb_to_schema(schema);
    schema.map(Arc::new).map_err(|error| flawed(place, format!("expected a schema, found: {error}")))
}

/// The length of a message's header, prefix included, from its first [`PREFIX_BYTES`] bytes (or fewer at the end of a
/// stream, where there are no more); `None` at the end of a stream.
pub fn header_len(at: u64, prefix: &[u8], size: u64, place: &Place) -> Result<Option<u64>> {
    let number = |bytes: &[u8]| bytes.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    let (len, prefix_len) = match (number(prefix), prefix.get(4..).and_then(number)) {
        (None, _) if prefix.is_empty() => return Ok(None),
        (Some(u32::MAX), Some(len)) => (len, 8),
        // Before version 0.15 there was no mark before the length.
        (Some(len), _) if len != u32::MAX => (len, 4),
        _ => return Err(flawed(place, format!("expected a message at byte {at}, found its end"))),
    };
    if len == 0 {
        return Ok(None);
    }
    let whole = u64::from(len) + prefix_len;
    if whole > LONGEST_HEADER || whole > size.saturating_sub(at) {
        let left = size.saturating_sub(at);
        return Err(flawed(
            place,
            format!("expected a message at byte {at} within {left} bytes, found a header of {len}"),
        ));
    }
    Ok(Some(whole))
}

/// A message from its header, or from all of it.
fn root<'a>(bytes: &'a [u8], at: u64, place: &Place) -> Result<ipc::Message<'a>> {
    let cut = if bytes.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = ipc::root_as_message(bytes.get(cut..).unwrap_or_default());
    message.map_err(|error| flawed(place, format!("expected a message at byte {at}, found: {error}")))
}

impl Layout {
    /// A stream of which the first message, the schema, is `header`; and the length of that message's body.
    pub fn of_stream(header: &[u8], place: &Place) -> Result<(Self, u64)> {
        guarded(place, "a schema", || {
            let message = root(header, 0, place)?;
            let Some(schema) = message.header_as_schema() else {
                return Err(flawed(place, "expected an Arrow stream that begins with a schema, found another message"));
            };
            let (schema, version) = (read_schema(schema, place)?, message.version());
            let body = u64::try_from(message.bodyLength()).unwrap_or(u64::MAX);
            Ok((Self { schema, version, batches: Vec::new(), dictionaries: Vec::new(), is_stream: true }, body))
        })
    }

    /// Adds the message of a stream that has this header; where the next begins.
    pub fn add(&mut self, start: u64, header: &[u8], size: u64, place: &Place) -> Result<u64> {
        let (kind, body) = read_header(header, start, place)?;
        let message = Message { start, header: header.len() as u64, body, kind };
        let end = (start + message.header).checked_add(body).filter(|end| *end <= size);
        let Some(end) = end else {
            let left = size - start;
            return Err(flawed(place, format!("expected a message at byte {start} within {left} bytes, found {body}")));
        };
        match kind {
            Kind::Batch { .. } => self.batches.push(message),
            Kind::Dictionary { .. } => self.dictionaries.push(message),
        }
        Ok(end)
    }

    /// The messages whose headers are to be read after a footer, with those of dictionaries first.
    pub fn unread(&self) -> Vec<Message> {
        self.dictionaries.iter().chain(&self.batches).copied().collect()
    }

    /// Notes what the header of message `number` of [`Self::unread`] says.
    pub fn add_rows(&mut self, number: usize, header: &[u8], place: &Place) -> Result<()> {
        let message = match number.checked_sub(self.dictionaries.len()) {
            None => &mut self.dictionaries[number],
            Some(batch) => &mut self.batches[batch],
        };
        let (kind, body) = read_header(header, message.start, place)?;
        let same = matches!((kind, message.kind), (Kind::Batch { .. }, Kind::Batch { .. }))
            || matches!((kind, message.kind), (Kind::Dictionary { .. }, Kind::Dictionary { .. }));
        if !same || body > message.body {
            let what = format!("expected the message at byte {} that the footer names, found another", message.start);
            return Err(flawed(place, what));
        }
        message.kind = kind;
        Ok(())
    }

    /// The dictionaries that a batch refers to, in the order in which they are to be decoded.
    pub fn dictionaries_of(&self, batch: usize) -> Vec<Message> {
        let before = if self.is_stream { self.batches[batch].start } else { u64::MAX };
        let mut needed: Vec<Message> = Vec::new();
        for message in self.dictionaries.iter().filter(|message| message.start < before) {
            if let Kind::Dictionary { id, is_delta: false } = message.kind {
                needed.retain(|other| !matches!(other.kind, Kind::Dictionary { id: old, .. } if old == id));
            }
            needed.push(*message);
        }
        needed
    }

    /// Decodes a dictionary from all bytes of its message.
    pub fn decode_dictionary(
        &self,
        message: &Message,
        bytes: Vec<u8>,
        held: &mut Dictionaries,
        place: &Place,
    ) -> Result<()> {
        guarded(place, "a dictionary", || {
            let (header, body) = self.parts(message, bytes, place)?;
            let root = root(&header, message.start, place)?;
            let Some(dictionary) = root.header_as_dictionary_batch() else {
                return Err(flawed(
                    place,
                    format!("expected a dictionary at byte {}, found another message", message.start),
                ));
            };
            check_buffers(dictionary.data(), &body, message.start, place)?;
            // The reader wants a map of another kind. It looks into it and never goes through it.
            let (id, mut known) = (dictionary.id(), held.clone().into_iter().collect());
            let read = read_dictionary(&body, dictionary, &self.schema, &mut known, &self.version);
            read.map_err(|error| {
                flawed(place, format!("expected a dictionary at byte {}, found: {error}", message.start))
            })?;
            held.extend(known.remove(&id).map(|values| (id, values)));
            Ok(())
        })
    }

    /// Decodes some columns of a batch from all bytes of its message.
    pub fn decode(
        &self,
        batch: usize,
        bytes: Vec<u8>,
        dictionaries: &Dictionaries,
        columns: Option<&[String]>,
        place: &Place,
    ) -> Result<Table> {
        let message = &self.batches[batch];
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let chosen = choose(&names, columns, place)?;
        let read = guarded(place, "a batch", || {
            let (header, body) = self.parts(message, bytes, place)?;
            let root = root(&header, message.start, place)?;
            let Some(found) = root.header_as_record_batch() else {
                return Err(flawed(
                    place,
                    format!("expected a batch at byte {}, found another message", message.start),
                ));
            };
            check_buffers(Some(found), &body, message.start, place)?;
            let schema = Arc::clone(&self.schema);
            let (mut known, mut empty) = (dictionaries.clone(), Vec::new());
            for values in known.values_mut() {
                if let Some(instead) = hidden::in_place_of(values) {
                    empty.push(instead.to_data());
                    *values = instead;
                }
            }
            let fail = |what: String| flawed(place, format!("expected batch {batch} of the schema, found: {what}"));
            let known = known.into_iter().collect();
            let read = read_record_batch(&body, found, schema, &known, Some(&chosen), &self.version);
            let read = read.map_err(|error| fail(error.to_string()))?;
            let is_flawed = |column: &ArrayRef| hidden::has_value_of(column, None, &empty);
            match read.columns().iter().position(|column| !empty.is_empty() && is_flawed(column)) {
                None => Ok(read),
                Some(column) => {
                    let name = read.schema_ref().field(column).name();
                    Err(fail(format!("values of an empty dictionary in the column {name:?}")))
                }
            }
        })?;
        let (Kind::Batch { rows }, found) = (message.kind, read.num_rows()) else {
            return Err(Error::Internal("a dictionary among batches".to_owned()));
        };
        if rows != found as u64 {
            return Err(flawed(place, format!("expected {rows} rows in batch {batch}, found {found}")));
        }
        Ok(Table::new(read.schema(), vec![read], found))
    }

    /// A message's header and its body.
    fn parts(&self, message: &Message, mut bytes: Vec<u8>, place: &Place) -> Result<(Vec<u8>, Buffer)> {
        let (wanted, found) = (message.header + message.body, bytes.len() as u64);
        if wanted != found {
            return Err(flawed(
                place,
                format!("expected {wanted} bytes of a message at {}, found {found}", message.start),
            ));
        }
        let header = bytes[..message.header as usize].to_vec();
        // Kept in one piece: arrays are slices of it.
        bytes.shrink_to_fit();
        Ok((header, Buffer::from_vec(bytes).slice(message.header as usize)))
    }
}

fn read_header(header: &[u8], start: u64, place: &Place) -> Result<(Kind, u64)> {
    guarded(place, "a message", || {
        let message = root(header, start, place)?;
        let fail = |what: String| Err(flawed(place, format!("message at byte {start}: {what}")));
        let Ok(body) = u64::try_from(message.bodyLength()) else {
            return fail(format!("expected the length of a body, found {}", message.bodyLength()));
        };
        let kind = match message.header_type() {
            MessageHeader::RecordBatch => match message.header_as_record_batch().map(|batch| batch.length()) {
                Some(rows @ 0..=MOST_ROWS) => Kind::Batch { rows: rows as u64 },
                rows => return fail(format!("expected 0 to {MOST_ROWS} rows, found {}", rows.unwrap_or_default())),
            },
            MessageHeader::DictionaryBatch => match message.header_as_dictionary_batch() {
                Some(batch) => Kind::Dictionary { id: batch.id(), is_delta: batch.isDelta() },
                None => return fail("expected a dictionary, found none".to_owned()),
            },
            other => return fail(format!("expected a batch or a dictionary, found {other:?}")),
        };
        Ok((kind, body))
    })
}

/// Checks that buffers lie in the body, and what compressed ones say they become: memory is taken by it.
fn check_buffers(batch: Option<ipc::RecordBatch<'_>>, body: &[u8], start: u64, place: &Place) -> Result<()> {
    let fail = |what: String| Err(flawed(place, format!("message at byte {start}: {what}")));
    let Some(batch) = batch else { return fail("expected data, found none".to_owned()) };
    let codec = batch.compression().map(|compression| compression.codec());
    let mut sum = 0_u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let (offset, len) = (usize::try_from(buffer.offset()), usize::try_from(buffer.length()));
        let bytes = match (offset, len) {
            (Ok(offset), Ok(len)) => offset.checked_add(len).and_then(|end| body.get(offset..end)),
            _ => None,
        };
        let Some(bytes) = bytes else {
            let found = format!("{} bytes at {}", buffer.length(), buffer.offset());
            return fail(format!("expected buffers within a body of {} bytes, found {found}", body.len()));
        };
        let (Some(codec), false) = (codec, bytes.is_empty()) else { continue };
        let Some((declared, compressed)) = bytes.split_first_chunk::<8>() else {
            return fail(format!("expected the length of a compressed buffer, found {} bytes", bytes.len()));
        };
        let declared = i64::from_le_bytes(*declared);
        if declared == -1 {
            continue;
        }
        let factor = match codec {
            CompressionType::LZ4_FRAME => 256,
            // The most that blocks of one repeated byte make.
            _ => 1 << 16,
        };
        let most = (compressed.len() as u64).saturating_mul(factor);
        match u64::try_from(declared) {
            Ok(declared) if declared <= most => sum = sum.saturating_add(declared),
            _ => {
                return fail(format!(
                    "expected at most {most} bytes of a compressed buffer, found {declared} declared"
                ));
            }
        }
    }
    if sum > MOST_BYTES {
        return fail(format!("expected at most {MOST_BYTES} bytes once decompressed, found {sum} declared"));
    }
    Ok(())
}
