//! Builds column chunks by hand, page by page, with what the `parquet` crate's writer never does: documents that go
//! over pages, checksums, old encodings of levels, unknown pages.

use super::super::{TokenChunk, TokenShape};

/// Optional list of optional int32.
pub(super) const SHAPE: TokenShape = TokenShape { value_bytes: 4, bits: 32, signed: true, max_def: 3, list_def: 2 };

/// A chunk that grows.
#[derive(Debug, Clone)]
pub(super) struct Builder {
    pub(super) chunk: TokenChunk,
    pub(super) bytes: Vec<u8>,
    /// Whether pages get a checksum.
    pub(super) crc: bool,
}

/// Appends Thrift fields to a struct.
struct Fields {
    out: Vec<u8>,
    last: u8,
}

impl Fields {
    fn new() -> Self {
        Self { out: Vec::new(), last: 0 }
    }

    fn head(&mut self, field: u8, kind: u8) {
        self.out.push((field - self.last) << 4 | kind);
        self.last = field;
    }

    fn int(mut self, field: u8, value: i64) -> Self {
        self.head(field, 5);
        varint(&mut self.out, ((value << 1) ^ (value >> 63)) as u64);
        self
    }

    fn flag(mut self, field: u8, value: bool) -> Self {
        self.head(field, if value { 1 } else { 2 });
        self
    }

    fn nested(mut self, field: u8, inner: Fields) -> Self {
        self.head(field, 12);
        self.out.extend(inner.end());
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.out.push(0);
        self.out
    }
}

pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Levels as runs only.
pub(super) fn runs(levels: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in levels.chunk_by(|a, b| a == b) {
        varint(&mut out, (run.len() as u64) << 1);
        out.push(run[0]);
    }
    out
}

/// The repetition and definition levels of documents in [`SHAPE`].
pub(super) fn levels(documents: &[Vec<i32>], continued: bool) -> (Vec<u8>, Vec<u8>) {
    let (mut rep, mut def) = (Vec::new(), Vec::new());
    for (i, document) in documents.iter().enumerate() {
        for j in 0..document.len().max(1) {
            rep.push(u8::from(j > 0 || (i == 0 && continued)));
            def.push(if document.is_empty() { (i % 2) as u8 } else { 3 });
        }
    }
    (rep, def)
}

/// Values one after another.
pub(super) fn plain(documents: &[Vec<i32>]) -> Vec<u8> {
    documents.iter().flatten().flat_map(|value| value.to_le_bytes()).collect()
}

impl Builder {
    /// A chunk of no pages.
    pub(super) fn new() -> Self {
        let chunk =
            TokenChunk { shape: SHAPE, codec: 0, encodings: 0, start: 4, len: 0, levels: 0, rows: 0, narrow: false };
        Self { chunk, bytes: Vec::new(), crc: true }
    }

    /// Appends a page of any kind: its number, the size once decompressed, its bytes, its own header.
    fn page(&mut self, kind: i64, size: usize, body: &[u8], field: u8, own: Fields) {
        let mut header = Fields::new().int(1, kind).int(2, size as i64).int(3, body.len() as i64);
        if self.crc {
            header = header.int(4, i64::from(crc32fast::hash(body) as i32));
        }
        self.bytes.extend(header.nested(field, own).end());
        self.bytes.extend(body);
        self.chunk.len = self.bytes.len() as u64;
    }

    /// A page of a kind that no reader knows.
    pub(super) fn unknown(&mut self) {
        self.page(9, 5, b"later", 6, Fields::new().int(1, 7));
    }

    /// A dictionary page.
    pub(super) fn dictionary(&mut self, entries: &[i32]) {
        let body: Vec<u8> = entries.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.page(2, body.len(), &body, 7, Fields::new().int(1, entries.len() as i64).int(2, 0));
    }

    /// A version 1 page with these levels and encoded values.
    pub(super) fn v1(&mut self, count: usize, rep: &[u8], def: &[u8], values: &[u8], encodings: [i64; 3]) {
        let mut body = Vec::new();
        for section in [rep, def] {
            if encodings[1] != 4 {
                body.extend((section.len() as u32).to_le_bytes());
            }
            body.extend(section);
        }
        body.extend(values);
        let [encoding, def_encoding, rep_encoding] = encodings;
        let own = Fields::new().int(1, count as i64).int(2, encoding).int(3, def_encoding).int(4, rep_encoding);
        self.page(0, body.len(), &body, 5, own);
    }

    /// A version 1 page of plain documents, the first of which may go on with the last of the page before.
    pub(super) fn documents(&mut self, documents: &[Vec<i32>], continued: bool) {
        let (rep, def) = levels(documents, continued);
        self.count(&rep);
        self.v1(rep.len(), &runs(&rep), &runs(&def), &plain(documents), [0, 3, 3]);
    }

    /// A version 2 page of plain documents.
    pub(super) fn documents_v2(&mut self, documents: &[Vec<i32>], continued: bool, rows: usize) {
        let (rep, def) = levels(documents, continued);
        self.count(&rep);
        let (levels, rep, def) = (rep.len(), runs(&rep), runs(&def));
        let body = [rep.clone(), def.clone(), plain(documents)].concat();
        let own = Fields::new()
            .int(1, levels as i64)
            .int(2, 0)
            .int(3, rows as i64)
            .int(4, 0)
            .int(5, def.len() as i64)
            .int(6, rep.len() as i64)
            .flag(7, false);
        self.page(3, body.len(), &body, 8, own);
    }

    /// Counts levels and rows of a page.
    pub(super) fn count(&mut self, rep: &[u8]) {
        self.chunk.levels += rep.len() as u64;
        self.chunk.rows += rep.iter().filter(|rep| **rep == 0).count() as u64;
    }
}
