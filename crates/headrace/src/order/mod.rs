//! What comes next: which tokens stand where in the endless stream of rows, as pure arithmetic.
//!
//! `docs/order.md` is the specification; this module is one implementation of it (the tests hold a second one).
//! Nothing here does I/O, reads a clock or depends on world size, threads or memory. An order is seekable: every
//! question is answered in closed form or by a binary search over one pass's windows.
//!
//! Not here: how documents become rows ([`crate::pack`]), where a run is ([`crate::state`]).

mod draws;
mod floor_sum;
mod items;
mod kept;
mod lanes;
mod mixture;
mod moves;
mod passes;
mod permutation;
mod ranks;
mod ring;
mod rows;
mod strides;

pub use draws::{Draws, Purpose};
pub use items::{ItemOrder, WindowItems, default_item_window};
pub use lanes::{LaneOrder, OrderSpec, Pass, WindowSpan, default_lanes, default_window};
pub use mixture::{Exhausted, MOST_ROUNDS, Mixture, Phase, shares};
pub use passes::{Extent, Passes};
pub use permutation::Permutation;
pub use ranks::{LaneSet, rank_lanes, rank_rows, union_lanes};
pub use ring::Ring;
pub use rows::{Remainder, Rows};
pub use strides::{LaneStrides, Strides};

/// The version of the order: any change of which token stands where is a new one, and a state of another version
/// is refused.
pub const ORDER_VERSION: u32 = 1;
