//! A lane's way through the windows.

use std::ops::Range;
use std::sync::Arc;

use super::documents::{Document, Stretches};
use super::memory::Slot;
use super::run::Run;
use super::window::{Piece, Slice, Window, not_in_memory};
use crate::error::{Error, Result};
use crate::pack::{Span, Token};

/// Decoded windows with neighbouring ordinals.
#[derive(Debug, Clone)]
pub struct Windows(pub Arc<[Arc<Window>]>);

impl Windows {
    /// The window that holds a token of a lane's stream.
    fn holding(&self, lane: u64, token: u64) -> Result<&Arc<Window>> {
        let lane_tokens = |window: &Window| window.directory.plan.span.lane_tokens(lane);
        let at = self.0.partition_point(|window| lane_tokens(window).end <= token);
        let window = self.0.get(at).filter(|window| lane_tokens(window).start <= token);
        window.ok_or_else(|| Error::Internal(format!("token {token} of lane {lane} was not decoded in time")))
    }

    /// Which stored tokens the streams of lanes take, for each chunk of each window; `parts` are lanes with the tokens
    /// of their streams, of which those in other windows are left out. Needs no token in memory.
    pub fn needs(&self, run: &Run, parts: impl Iterator<Item = (u64, Range<u64>)>) -> Result<Vec<Vec<Stretches>>> {
        let mut needs: Vec<Vec<Stretches>> =
            self.0.iter().map(|window| vec![Stretches::new(); window.tokens.len()]).collect();
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else { return Ok(needs) };
        for (lane, tokens) in parts {
            let start = tokens.start.max(first.directory.plan.span.lane_tokens(lane).start);
            let end = tokens.end.min(last.directory.plan.span.lane_tokens(lane).end);
            if start >= end {
                continue;
            }
            let mut cursor = Cursor::seek(run, self, lane, start)?;
            cursor.pass(run, self, end - start, |part| {
                let window = &mut needs[(part.window.ordinal() - first.ordinal()) as usize];
                window[part.chunk].push(part.stored);
                Ok(())
            })?;
        }
        for stretches in needs.iter_mut().flatten() {
            stretches.retain(|stretch| !stretch.is_empty());
            stretches.sort_unstable_by_key(|stretch| stretch.start);
            stretches.dedup_by(|next, before| {
                let joined = next.start <= before.end;
                if joined {
                    before.end = before.end.max(next.end);
                }
                joined
            });
        }
        Ok(needs)
    }
}

/// A part of a piece that a cursor passes.
#[derive(Debug)]
struct Part<'a> {
    window: &'a Window,
    /// Among the window's chunks.
    chunk: usize,
    document: Document,
    /// Where it begins, in expanded tokens of the document; and how many they are.
    start: u64,
    count: u64,
    /// The document's stored tokens.
    whole: u64,
    /// Those of the part: as numbers in the document, and in the chunk.
    own: Range<u64>,
    stored: Range<u64>,
}

/// A lane's place in its stream.
#[derive(Debug, Clone)]
pub struct Cursor {
    lane: u64,
    /// Tokens of the lane's stream before the cursor.
    token: u64,
    window: Arc<Window>,
    slice: Slice,
    /// The order of the slice's pieces; `None` for that in which they lie.
    order: Option<Slot<u32>>,
    /// Pieces begun.
    begun: u32,
    piece: Option<Piece>,
    /// The one after it, looked up ahead so that its tokens are near when they are needed.
    coming: Option<Piece>,
}

impl Cursor {
    /// A cursor at the start of a lane's slice of a window.
    fn enter(run: &Run, window: &Arc<Window>, lane: u64) -> Result<Self> {
        let missing = || Error::Internal(format!("lane {lane} is not among those decoded"));
        let directory = &window.directory;
        let number = directory.plan.lane_number(lane).ok_or_else(missing)?;
        let slice = directory.slices[number].clone();
        let order = directory.order(run, number, lane);
        let token = directory.plan.span.lane_tokens(lane).start;
        Ok(Self { lane, token, window: Arc::clone(window), slice, order, begun: 0, piece: None, coming: None })
    }

    /// A cursor at a token of a lane's stream.
    pub fn seek(run: &Run, windows: &Windows, lane: u64, token: u64) -> Result<Self> {
        let mut cursor = Self::enter(run, windows.holding(lane, token)?, lane)?;
        cursor.advance(run, windows, token)?;
        Ok(cursor)
    }

    /// Tokens of the lane's stream before the cursor.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The unit of the dealt line behind the cursor's window.
    pub fn window_end(&self) -> u64 {
        self.window.end()
    }

    /// Whether the next token goes on with the piece of the one before.
    pub fn is_within_piece(&self) -> bool {
        self.piece.is_some_and(|piece| piece.next < piece.end)
    }

    /// Goes on to a later token.
    pub fn advance(&mut self, run: &Run, windows: &Windows, token: u64) -> Result<()> {
        if token > self.window.directory.plan.span.lane_tokens(self.lane).end {
            *self = Self::enter(run, windows.holding(self.lane, token)?, self.lane)?;
        }
        while self.token < token {
            let left = token - self.token;
            let piece = self.piece(run, windows)?;
            let count = (piece.end - piece.next).min(left);
            piece.next += count;
            self.token += count;
        }
        Ok(())
    }

    /// The piece that the next token lies in.
    fn piece(&mut self, run: &Run, windows: &Windows) -> Result<&mut Piece> {
        while self.piece.is_none_or(|piece| piece.next == piece.end) {
            if self.begun as usize == self.slice.documents.len() {
                *self = Self::enter(run, windows.holding(self.lane, self.token)?, self.lane)?;
                continue;
            }
            self.piece = self.coming.take().or_else(|| self.look_up(self.begun));
            self.begun += 1;
            self.coming = self.look_up(self.begun);
            if let Some(Piece { chunk, document, next, .. }) = &self.coming {
                let first = self.window.directory.chunks[*chunk].first_stored(document, *next, run.specials());
                self.window.tokens[*chunk].prefetch(first);
            }
        }
        self.piece.as_mut().ok_or_else(|| Error::Internal("a cursor without a piece".to_owned()))
    }

    /// The slice's piece `number`, if it has so many.
    fn look_up(&self, number: u32) -> Option<Piece> {
        if number as usize >= self.slice.documents.len() {
            return None;
        }
        let number = self.order.as_ref().map_or(number, |order| order[number as usize]);
        Some(self.window.directory.piece(&self.slice, number))
    }

    /// Goes on by `count` tokens and shows each part of a piece on the way.
    fn pass(
        &mut self,
        run: &Run,
        windows: &Windows,
        count: u64,
        mut see: impl FnMut(Part<'_>) -> Result<()>,
    ) -> Result<()> {
        let (specials, end) = (run.specials(), self.token + count);
        while self.token < end {
            let left = end - self.token;
            let piece = self.piece(run, windows)?;
            let count = (piece.end - piece.next).min(left);
            let Piece { chunk, document, next, .. } = *piece;
            piece.next += count;
            let whole = document.end - document.start - specials.added();
            let start = next - document.start;
            let own = specials.stored(whole, start, count);
            let stored = self.window.directory.chunks[chunk].stored(&document, own.clone(), specials);
            see(Part { window: &self.window, chunk, document, start, count, whole, own, stored })?;
            self.token += count;
        }
        Ok(())
    }

    /// Fills `out` with the next tokens of the lane's stream and appends where they come from.
    pub fn fill<T: Token>(&mut self, run: &Run, windows: &Windows, out: &mut [T], spans: &mut Vec<Span>) -> Result<()> {
        let (count, mut rest) = (out.len() as u64, out);
        self.pass(run, windows, count, |part| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(part.count as usize);
            rest = tail;
            let tokens = part.window.tokens[part.chunk].get(part.stored).ok_or_else(not_in_memory)?;
            run.specials().write(tokens, part.whole, part.start, head);
            spans.push(Span {
                chunk: part.window.directory.chunks[part.chunk].chunk,
                row: part.document.row,
                first: part.own.start,
                tokens: (part.own.end - part.own.start) as u32,
                positions: part.count as u32,
            });
            Ok(())
        })
    }
}
