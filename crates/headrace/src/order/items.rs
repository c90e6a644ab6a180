//! The order of items: lanes over chunks of which the weight is a number of items, and a row is one item.
//!
//! With rows of one unit, row g is unit g of the dealt line: the rows of a window are a permutation of its items, and
//! the epoch of row g is g / M for M items in a pass.

use std::ops::Range;
use std::sync::Arc;

use super::lanes::{LaneOrder, MOST_UNITS, OrderSpec, Pass, WindowSpan};
use crate::error::{Error, Result};

/// Items that a default window holds at least, on average.
const WINDOW_ITEMS: u64 = 65_536;
/// Items that a default window holds for each lane at least, on average.
const WINDOW_ITEMS_PER_LANE: u64 = 16;
/// Stored bytes that a default window holds at most, on average, but for one chunk.
const WINDOW_BYTES: u64 = 256 << 20;

/// The chunks that a window of items holds by default: see "Defaults" in `docs/order.md`.
pub fn default_item_window(chunks: u64, items: u64, stored_bytes: u64, lanes: u64) -> u64 {
    let chunks = chunks.max(1);
    let target = WINDOW_ITEMS.max(lanes.saturating_mul(WINDOW_ITEMS_PER_LANE));
    let share = |target: u64, all: u64| u128::from(target) * u128::from(chunks) / u128::from(all.max(1));
    let for_items = (u128::from(target) * u128::from(chunks)).div_ceil(u128::from(items.max(1)));
    let needed = for_items.min(share(WINDOW_BYTES, stored_bytes));
    u64::try_from(needed).unwrap_or(u64::MAX).clamp(1, chunks)
}

/// The order of a dataset's items: a pure function of the chunks' numbers of items and an [`OrderSpec`].
#[derive(Debug, Clone)]
pub struct ItemOrder(LaneOrder);

/// The items of a window, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowItems {
    /// The rows of the run that the window holds.
    pub rows: Range<u64>,
    /// Of each row, the chunk.
    pub chunks: Vec<u32>,
    /// Of each row, the item's number in its chunk.
    pub items: Vec<u32>,
}

impl ItemOrder {
    /// An order over chunks of the given numbers of items.
    ///
    /// # Errors
    /// [`Error::Argument`] if `spec` is out of range, if there is nothing to order, or if it is too much.
    pub fn new(spec: OrderSpec, items: Arc<[u64]>) -> Result<Self> {
        if let Some((chunk, &held)) = items.iter().enumerate().find(|(_, items)| **items > u64::from(u32::MAX)) {
            return Err(Error::Argument(format!("chunk {chunk}: expected at most 2^32 - 1 items, got {held}")));
        }
        let total: u64 = items.iter().sum();
        if total == 0 {
            return Err(Error::Argument("the dataset holds no item".to_owned()));
        }
        LaneOrder::new(spec, items).map(Self)
    }

    /// Items of a pass.
    pub fn total(&self) -> u64 {
        self.0.passes().total()
    }

    /// Windows in a pass.
    pub fn windows(&self) -> u64 {
        self.0.passes().windows()
    }

    /// The epoch of a row.
    pub fn epoch_of(&self, row: u64) -> u64 {
        self.0.passes().of(row)
    }

    /// The chunk order and windows of an epoch: O(chunks).
    pub fn pass(&self, epoch: u64) -> Pass {
        self.0.pass(epoch)
    }

    /// Refuses a row that is beyond counting.
    pub fn check_row(&self, row: u64) -> Result<()> {
        if row < MOST_UNITS {
            return Ok(());
        }
        Err(Error::Argument(format!("row {row} lies beyond the 2^61 items that can be counted")))
    }

    /// The window that holds a row; `pass` must be that of the row's epoch.
    pub fn window(&self, pass: &Pass, row: u64) -> WindowSpan {
        self.0.window(pass, pass.window_of(row))
    }

    /// The items of a window of `pass`, in the order of their rows.
    ///
    /// # Errors
    /// [`Error::Argument`] if the window holds more items than can be put in order.
    pub fn items(&self, pass: &Pass, window: &WindowSpan) -> Result<WindowItems> {
        let count = usize::try_from(window.weight).ok().filter(|count| u32::try_from(*count).is_ok());
        let Some(count) = count else {
            let what = "a window holds at most 2^32 - 1 items";
            return Err(Error::Argument(format!("{what}, got {}\nhint: a smaller window=", window.weight)));
        };
        let (chunks, begin) = (&pass.chunks[window.chunks.clone()], window.begin);
        let weights = self.0.weights();
        // The items end to end, as the chunks lie in the window: which chunk, and which item of it.
        let mut stored: Vec<(u32, u32)> = Vec::with_capacity(count);
        for &chunk in chunks {
            stored.extend((0..weights[chunk as usize] as u32).map(|item| (chunk, item)));
        }
        let lanes = self.0.spec().lanes;
        let mut result = WindowItems { rows: begin..window.end(), chunks: vec![0; count], items: vec![0; count] };
        let mut pieces = Vec::new();
        for lane in 0..lanes.min(window.weight) {
            // Windows that are smaller than the lanes: only those lanes that get something.
            let lane = (begin + lane) % lanes;
            let slice = window.slice(lane);
            pieces.resize((slice.end - slice.start) as usize, 0);
            self.0.order_pieces(window, lane, &mut pieces);
            let slice = &stored[slice.start as usize..slice.end as usize];
            let mut at = (window.lane_tokens(lane).start * lanes + lane - begin) as usize;
            for &piece in &pieces {
                (result.chunks[at], result.items[at]) = slice[piece as usize];
                at += lanes as usize;
            }
        }
        Ok(result)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(lanes: u64, window: u64, items: &[u64]) -> ItemOrder {
        ItemOrder::new(OrderSpec { seed: 5, shuffle: true, lanes, window }, items.into()).unwrap()
    }

    proptest! {
        #[test]
        fn windows_tile_the_rows_and_hold_each_item_once(
            lanes in 1_u64..40,
            window in 1_u64..6,
            items in prop::collection::vec(0_u64..30, 1..20).prop_filter("some", |items| items.iter().sum::<u64>() > 0),
        ) {
            let order = order(lanes, window, &items);
            let all: Vec<(u32, u32)> =
                items.iter().zip(0..).flat_map(|(&n, chunk)| (0..n as u32).map(move |item| (chunk, item))).collect();
            let mut row = 0;
            for epoch in 0..3 {
                let pass = order.pass(epoch);
                let mut seen = Vec::new();
                while row < (epoch + 1) * order.total() {
                    prop_assert_eq!(order.epoch_of(row), epoch);
                    let window = order.window(&pass, row);
                    prop_assert_eq!(&order.window(&pass, window.end() - 1), &window);
                    let held = order.items(&pass, &window).unwrap();
                    prop_assert_eq!(held.rows.start, row);
                    prop_assert_eq!(held.items.len() as u64, held.rows.end - row);
                    let chunks = &pass.chunks[window.chunks.clone()];
                    prop_assert!(held.chunks.iter().all(|chunk| chunks.contains(chunk)));
                    seen.extend(held.chunks.into_iter().zip(held.items));
                    row = held.rows.end;
                }
                seen.sort_unstable();
                prop_assert_eq!(&seen, &all);
            }
        }

        /// A lane's items of a window are those of its slice, put in the order of its pieces.
        #[test]
        fn rows_of_a_lane_are_its_slice_in_the_order_of_its_pieces(
            lanes in 1_u64..9, items in prop::collection::vec(0_u64..30, 1..9), row in 0_u64..300,
        ) {
            prop_assume!(items.iter().sum::<u64>() > 0);
            let order = order(lanes, 3, &items);
            let pass = order.pass(order.epoch_of(row));
            let window = order.window(&pass, row);
            let held = order.items(&pass, &window).unwrap();
            let chunks = &pass.chunks[window.chunks.clone()];
            let stored: Vec<(u32, u32)> =
                chunks.iter().flat_map(|&c| (0..items[c as usize] as u32).map(move |item| (c, item))).collect();
            let lane = row % lanes;
            let slice = window.slice(lane);
            let mut pieces = vec![0; (slice.end - slice.start) as usize];
            order.0.order_pieces(&window, lane, &mut pieces);
            let wanted = stored[(slice.start + u64::from(pieces[(row / lanes - window.lane_tokens(lane).start) as usize])) as usize];
            let at = (row - held.rows.start) as usize;
            prop_assert_eq!((held.chunks[at], held.items[at]), wanted);
        }
    }

    #[test]
    fn sequential_is_storage_order() {
        let spec = OrderSpec { seed: 5, shuffle: false, lanes: 1, window: 2 };
        let order = ItemOrder::new(spec, [2, 0, 1, 3].as_slice().into()).unwrap();
        let pass = order.pass(1);
        let held = order.items(&pass, &order.window(&pass, 8)).unwrap();
        assert_eq!(held, WindowItems { rows: 8..12, chunks: vec![2, 3, 3, 3], items: vec![0, 0, 1, 2] });
    }

    #[test]
    fn what_cannot_be_ordered_is_refused() {
        let spec = OrderSpec { seed: 0, shuffle: true, lanes: 1, window: 4 };
        assert!(ItemOrder::new(spec, [0, 0].as_slice().into()).is_err());
        assert!(ItemOrder::new(spec, [1 << 32].as_slice().into()).is_err());
        let order = ItemOrder::new(spec, [(1 << 32) - 1; 4].as_slice().into()).unwrap();
        let pass = order.pass(0);
        let message = order.items(&pass, &order.window(&pass, 0)).unwrap_err().to_string();
        assert!(message.contains("2^32 - 1 items, got 17179869180"), "{message}");
        assert!(order.check_row(MOST_UNITS).is_err());
    }

    #[test]
    fn defaults_follow_the_page() {
        // 1000 items and 1 MB a chunk: items decide.
        assert_eq!(default_item_window(1000, 1_000_000, 1_000_000_000, 8), 66);
        // 64 MiB a chunk: bytes decide.
        assert_eq!(default_item_window(1000, 1_000_000, 1000 << 26, 8), 4);
        assert_eq!(default_item_window(1000, 1_000_000, 1000 << 30, 8), 1);
        assert_eq!(default_item_window(10, 100, 1000, 8), 10);
        assert_eq!(default_item_window(0, 0, 0, 0), 1);
        assert_eq!(default_item_window(1000, 1_000_000, 1_000_000_000, 8192), 132);
    }
}
