//! A lane's way through the windows.

use std::ops::Range;
use std::sync::Arc;

use super::documents::{Document, Stretches};
use super::laid::LaidSlice;
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
    /// Tokens of the lane's stream before the cursor, and those before and up to the end of its window.
    token: u64,
    slice: Range<u64>,
    window: Arc<Window>,
    way: Way,
}

/// A lane's way through its slice of a window.
#[derive(Debug, Clone)]
enum Way {
    Stored(StoredWay),
    /// The lane's number among the own ones, and that of the piece which the next token lies in.
    Laid(usize, usize),
}

/// The way through a slice in the order of storage.
#[derive(Debug, Clone)]
struct StoredWay {
    slice: Slice,
    /// The order of the slice's pieces; `None` for that in which they lie.
    order: Option<Slot<u32>>,
    /// Pieces begun.
    begun: u32,
    piece: Option<Piece>,
    /// The one after it, looked up ahead so that its tokens are near when they are needed.
    coming: Option<Piece>,
}

impl StoredWay {
    /// The piece that the next token lies in.
    fn piece(&mut self, run: &Run, window: &Window) -> Result<&mut Piece> {
        while self.piece.is_none_or(|piece| piece.next == piece.end) {
            self.piece = self.coming.take().or_else(|| self.look_up(window, self.begun));
            if self.piece.is_none() {
                break;
            }
            self.begun += 1;
            self.coming = self.look_up(window, self.begun);
            if let Some(Piece { chunk, document, next, .. }) = &self.coming {
                let first = window.directory.chunks[*chunk].first_stored(document, *next, run.specials());
                window.tokens[*chunk].prefetch(first);
            }
        }
        self.piece.as_mut().ok_or_else(|| Error::Internal("a cursor without a piece".to_owned()))
    }

    /// The slice's piece `number`, if it has so many.
    fn look_up(&self, window: &Window, number: u32) -> Option<Piece> {
        if number as usize >= self.slice.documents.len() {
            return None;
        }
        let number = self.order.as_ref().map_or(number, |order| order[number as usize]);
        Some(window.directory.piece(&self.slice, number))
    }
}

impl Cursor {
    /// A cursor at the start of a lane's slice of a window.
    fn enter(run: &Run, window: &Arc<Window>, lane: u64) -> Result<Self> {
        let missing = || Error::Internal(format!("lane {lane} is not among those decoded"));
        let directory = &window.directory;
        let number = directory.plan.lane_number(lane).ok_or_else(missing)?;
        let way = match window.laid {
            Some(_) => Way::Laid(number, 0),
            None => Way::Stored(StoredWay {
                slice: directory.slices[number].clone(),
                order: directory.order(run, number, lane),
                begun: 0,
                piece: None,
                coming: None,
            }),
        };
        let slice = directory.plan.span.lane_tokens(lane);
        Ok(Self { lane, token: slice.start, slice, window: Arc::clone(window), way })
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
        match &self.way {
            Way::Stored(way) => way.piece.is_some_and(|piece| piece.next < piece.end),
            Way::Laid(_, piece) => {
                self.laid_slice().is_ok_and(|slice| slice.is_within(*piece, self.token - self.slice.start))
            }
        }
    }

    /// The lane's slice, in a window in the order of use.
    fn laid_slice(&self) -> Result<&LaidSlice> {
        let number = match self.way {
            Way::Laid(number, _) => Some(number),
            Way::Stored(_) => None,
        };
        let laid = self.window.laid.as_ref().zip(number).and_then(|(laid, number)| laid.slices.get(number));
        laid.ok_or_else(|| Error::Internal("a window that is not in the order of use".to_owned()))
    }

    /// Goes on to a later token.
    pub fn advance(&mut self, run: &Run, windows: &Windows, token: u64) -> Result<()> {
        if token > self.slice.end {
            *self = Self::enter(run, windows.holding(self.lane, token)?, self.lane)?;
        }
        while self.token < token {
            let left = token - self.token;
            let count = match &mut self.way {
                Way::Stored(way) => {
                    let piece = way.piece(run, &self.window)?;
                    let count = (piece.end - piece.next).min(left);
                    piece.next += count;
                    count
                }
                Way::Laid(number, _) => {
                    let (number, at) = (*number, token - self.slice.start);
                    let piece = self.laid_slice()?.piece_at(at);
                    self.way = Way::Laid(number, piece);
                    left
                }
            };
            self.token += count;
        }
        Ok(())
    }

    /// Enters the next window where this one has no more tokens of the lane, and says how many of the next `count`
    /// tokens lie in one.
    fn settle(&mut self, run: &Run, windows: &Windows, count: u64) -> Result<u64> {
        if self.token == self.slice.end {
            *self = Self::enter(run, windows.holding(self.lane, self.token)?, self.lane)?;
        }
        Ok(count.min(self.slice.end - self.token))
    }

    /// Goes on by `count` tokens, of windows in the order of storage, and shows each part of a piece on the way.
    fn pass(
        &mut self,
        run: &Run,
        windows: &Windows,
        count: u64,
        mut see: impl FnMut(Part<'_>) -> Result<()>,
    ) -> Result<()> {
        let (specials, end) = (run.specials(), self.token + count);
        while self.token < end {
            let left = self.settle(run, windows, end - self.token)?;
            let Way::Stored(way) = &mut self.way else {
                return Err(Error::Internal("a window that is not in the order of storage".to_owned()));
            };
            let piece = way.piece(run, &self.window)?;
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
        let mut rest = out;
        while !rest.is_empty() {
            let count = self.settle(run, windows, rest.len() as u64)?;
            let (own, tail) = std::mem::take(&mut rest).split_at_mut(count as usize);
            rest = tail;
            let Way::Laid(number, mut piece) = self.way else {
                self.fill_stored(run, windows, own, spans)?;
                continue;
            };
            let (slice, at) = (self.laid_slice()?, self.token - self.slice.start);
            slice.copy(at, own)?;
            slice.spans(run.specials(), (&mut piece, at), count, spans)?;
            self.way = Way::Laid(number, piece);
            self.token += count;
        }
        Ok(())
    }

    /// Fills `out` from a window in the order of storage.
    fn fill_stored<T: Token>(
        &mut self,
        run: &Run,
        windows: &Windows,
        out: &mut [T],
        spans: &mut Vec<Span>,
    ) -> Result<()> {
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
