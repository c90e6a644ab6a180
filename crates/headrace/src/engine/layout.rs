//! How much memory a window takes, and how it is cut.

use std::sync::{Arc, Mutex};

use super::documents::{Documents, Stretches, TokenRegion, Tokens, tokens_of};
use super::keep::ChunkSlots;
use super::memory::{Arena, Layout, Region, SlotMut};
use super::plan::{ChunkPlan, WindowPlan};
use super::run::Run;
use super::window::{Directory, PieceOrder, Slice, Window};
use crate::error::{Error, Result};

/// The regions of a window's arenas.
#[derive(Debug)]
pub struct WindowLayout {
    /// Of the arena for where documents lie.
    pub documents: Layout,
    /// Of the arena for their tokens.
    pub tokens: Layout,
    /// Bytes of what is kept of chunks and lanes beside the arenas.
    pub overhead: u64,
    chunks: Vec<(TokenRegion, Region<u64>, Region<u32>)>,
    pieces: Region<u32>,
}

impl WindowLayout {
    /// Room for what a plan keeps, at most.
    ///
    /// # Errors
    /// [`Error::Argument`] if the window holds 2^32 documents or more.
    pub fn new(run: &Run, plan: &WindowPlan) -> Result<Self> {
        let (mut layout, mut tokens) = (Layout::new(), Layout::new());
        let column = run.column();
        let mut documents = 0_usize;
        let chunks = plan.chunks.iter().map(|chunk| {
            let most = chunk.most_documents(column);
            documents = documents.saturating_add(most);
            let region =
                TokenRegion::add(&mut tokens, chunk.most_tokens(column), column.chunks.is_narrow(chunk.chunk as usize));
            (region, layout.add(most), layout.add(most))
        });
        let chunks = chunks.collect();
        // A document that a slice's end cuts is a piece in each slice.
        let lanes: u64 = plan.lanes.iter().map(|part| part.end - part.start).sum();
        let pieces = if run.order().spec().shuffle { documents.saturating_add(lanes as usize) } else { 0 };
        if u32::try_from(documents.saturating_add(lanes as usize)).is_err() {
            return Err(Error::Argument(format!(
                "a window may hold at most 2^32 documents, got {documents}\nhint: a smaller window="
            )));
        }
        let pieces = layout.add(pieces);
        let a_lane = size_of::<Slice>() + size_of::<Mutex<PieceOrder>>();
        // A chunk's plan, its documents and, while it is decoded, its task and its result.
        let a_chunk =
            2 * (size_of::<ChunkPlan>() + size_of::<Documents>() + size_of::<Tokens>() + size_of::<ChunkSlots>());
        let overhead = lanes * a_lane as u64 + (plan.chunks.len() * a_chunk) as u64 + size_of::<Directory>() as u64;
        Ok(Self { documents: layout, tokens, overhead, chunks, pieces })
    }

    /// Bytes of both arenas.
    pub fn bytes(&self) -> u64 {
        self.documents.bytes().saturating_add(self.tokens.bytes()) as u64
    }

    /// Takes the regions out of arenas with these layouts; without one for tokens there is no room for them.
    pub fn carve(self, documents: &Arc<Arena>, tokens: Option<&Arc<Arena>>) -> (Vec<ChunkSlots>, SlotMut<u32>) {
        let chunks = self.chunks.into_iter().map(|(region, ends, rows)| ChunkSlots {
            tokens: tokens.map(|arena| region.carve(arena)),
            ends: documents.carve(ends),
            rows: documents.carve(rows),
        });
        (chunks.collect(), documents.carve(self.pieces))
    }
}

/// The regions of an arena for some stretches of a window's tokens.
#[derive(Debug)]
pub struct ExcerptLayout {
    /// Of the arena.
    pub layout: Layout,
    /// For each chunk.
    pub tokens: Vec<TokenRegion>,
}

impl ExcerptLayout {
    /// Room for stretches of each chunk of a window.
    pub fn new(run: &Run, window: &Window, needs: &[Stretches]) -> Self {
        let mut layout = Layout::new();
        let regions = window.chunks().zip(needs).map(|(chunk, stretches)| {
            TokenRegion::add(&mut layout, tokens_of(stretches), run.column().chunks.is_narrow(chunk as usize))
        });
        let tokens = regions.collect();
        Self { layout, tokens }
    }
}
