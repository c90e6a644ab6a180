//! What a run reads and in which order: everything about it that no rank, thread or budget can change.

use std::sync::Arc;

use crate::error::{Error, Place, Result};
use crate::format::parquet::TokenChunk;
use crate::index::{Index, TokenColumn, UNKNOWN};
use crate::order::{LaneOrder, LaneStrides, Mixture, OrderSpec, Remainder, Rows, Strides};
use crate::pack::Specials;

/// How documents are packed to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackSpec {
    /// L, of the first rows of a run that changes it.
    pub seq_len: u64,
    /// o: further tokens in a row that the next row of the lane begins with.
    pub overlap: u64,
    /// What is put around documents.
    pub specials: Specials,
    /// Whether batches hold `document_ids`, `position_ids`, `cu_seqlens`.
    pub boundaries: bool,
    /// Whether tokens are handed out as i64 rather than i32.
    pub wide: bool,
    /// What fills the places after the last token.
    pub pad_id: i32,
}

impl PackSpec {
    /// Tokens in a row.
    pub fn row_tokens(&self) -> u64 {
        self.seq_len + self.overlap
    }
}

/// What became another thing in the course of a run, in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Changes<'a> {
    /// L: a row, and the length of that and of those behind it.
    pub lengths: &'a [(u64, u64)],
    /// The data: a pass, and of how many chunks, the first ones, that is and those behind it; from pass 0 on. Empty for
    /// all chunks in each pass.
    pub data: &'a [(u64, u64)],
}

/// A dataset's token column in its order, packed: a pure description, shared by everything that reads it.
#[derive(Debug, Clone)]
pub struct Run {
    index: Arc<Index>,
    column: Arc<TokenColumn>,
    order: LaneOrder,
    rows: Rows,
    pack: PackSpec,
}

impl Run {
    /// A run over a column of which all counts are known.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] if there is nothing to order, `spec` is out of range, `changes` do not fit, or L changes
    /// elsewhere than where a round of all lanes begins.
    pub fn new(
        index: Arc<Index>,
        column: Arc<TokenColumn>,
        spec: OrderSpec,
        pack: PackSpec,
        changes: Changes<'_>,
        epochs: Option<u64>,
        remainder: Remainder,
    ) -> Result<Self> {
        let weights = if pack.specials.added() == 0 {
            // Without added tokens nobody needs to know the documents, and they may not have been counted.
            Arc::clone(&column.tokens)
        } else {
            let counts = column.tokens.iter().zip(column.documents.iter());
            counts.map(|(&tokens, &documents)| pack.specials.weight(tokens, documents)).collect()
        };
        let rows = |chunk: &usize| column.chunks.rows(*chunk);
        if let Some(chunk) = (0..column.chunks.len()).find(|chunk| u32::try_from(rows(chunk)).is_err()) {
            let group = index.row_groups.get(chunk);
            let place = Place::file(index.store.uri(&index.files[group.file as usize].object.path));
            let what = format!("expected a row group of less than 2^32 rows, found {}", group.rows);
            return Err(Error::data(place.at_row_group(group.number), what));
        }
        let order = LaneOrder::grown(spec, weights, changes.data)?;
        let mut strides = Strides::new(pack.seq_len);
        for &(row, seq_len) in changes.lengths {
            if row % spec.lanes != 0 {
                let lanes = spec.lanes;
                return Err(Error::Argument(format!("row {row} is in the middle of a round of {lanes} rows")));
            }
            strides = strides.changed(row / spec.lanes, seq_len)?;
        }
        let (passes, strides) = (order.passes().clone(), LaneStrides::alike(strides));
        let rows = Rows { lanes: spec.lanes, strides, overlap: pack.overlap, passes, epochs, remainder };
        rows.check_countable(0)?;
        Ok(Self { index, column, order, rows, pack })
    }

    /// The same as a source of a mixture, whose rows are as long as those of the rounds that they are of.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] if the source has other lanes there, or more tokens than can be counted.
    pub fn in_mixture(&self, mixture: &Mixture, source: usize) -> Result<Self> {
        if mixture.source_lanes(source) != self.rows.lanes {
            let (wanted, lanes) = (mixture.source_lanes(source), self.rows.lanes);
            return Err(Error::Argument(format!("source {source} of the mixture has {wanted} lanes, the run {lanes}")));
        }
        let rows = Rows { strides: mixture.strides(source)?, ..self.rows.clone() };
        Ok(Self { rows, ..self.clone() })
    }

    /// The dataset.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// The token column.
    pub fn column(&self) -> &Arc<TokenColumn> {
        &self.column
    }

    /// Which tokens come next.
    pub fn order(&self) -> &LaneOrder {
        &self.order
    }

    /// How they are cut to rows.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// How documents are packed to a row.
    pub fn pack(&self, row: u64) -> PackSpec {
        PackSpec { seq_len: self.rows.stride(row), ..self.pack }
    }

    /// What is put around documents.
    pub fn specials(&self) -> Specials {
        self.pack.specials
    }

    /// How to decode a chunk.
    pub fn chunk(&self, chunk: u32) -> TokenChunk {
        self.column.chunks.get(chunk as usize)
    }

    /// Tokens of a chunk, and documents with a token if that was counted, as indexed.
    pub fn counts(&self, chunk: u32) -> (u64, Option<u64>) {
        let documents = self.column.documents[chunk as usize];
        (self.column.tokens[chunk as usize], (documents != UNKNOWN).then_some(documents))
    }

    /// Rows of a chunk whose documents count as empty.
    pub fn left_out(&self, chunk: u32) -> &[u32] {
        self.column.left_out.get(&chunk).map_or(&[], AsRef::as_ref)
    }

    /// A chunk's place, for messages.
    pub fn place(&self, chunk: u32) -> Place {
        let group = self.index.row_groups.get(chunk as usize);
        let path = &self.index.files[group.file as usize].object.path;
        Place::file(self.index.store.uri(path)).in_column(&self.column.name).at_row_group(group.number)
    }
}
