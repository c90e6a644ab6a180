//! What is wrong with some bytes, before it is known where they lie: the decoder adds the place.

/// A fault in the data: what was expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flaw(pub(super) String);

/// The result of a check of data.
pub(super) type Checked<T> = Result<T, Flaw>;

/// Makes a [`Flaw`], written as with `format!`.
macro_rules! flaw {
    ($($part:tt)*) => { $crate::format::parquet::flaw::Flaw(format!($($part)*)) };
}
pub(super) use flaw;
