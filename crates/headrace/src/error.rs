//! Everything that can go wrong, as data: each variant carries what a person needs to find and mend it.
//!
//! Messages follow one form: the thing, what was expected, what was found; a hint on a line of its own.

use std::fmt;

/// The result type of the whole crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in a dataset something was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The file or object, as a user would write it, without secrets.
    pub uri: String,
    /// The column, if one is meant, as a dotted path.
    pub column: Option<String>,
    /// The row group's number in its file, from 0.
    pub row_group: Option<u32>,
    /// The row's number in its row group, from 0.
    pub row: Option<u64>,
}

impl Place {
    /// A whole file.
    pub fn file(uri: impl Into<String>) -> Self {
        Self { uri: uri.into(), ..Self::default() }
    }

    /// The same place, at a row group.
    pub fn at_row_group(mut self, row_group: u32) -> Self {
        self.row_group = Some(row_group);
        self
    }

    /// The same place, in a column.
    pub fn in_column(mut self, column: impl Into<String>) -> Self {
        self.column = Some(column.into());
        self
    }

    /// The same place, at a row of its row group.
    pub fn at_row(mut self, row: u64) -> Self {
        self.row = Some(row);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri)?;
        if let Some(column) = &self.column {
            write!(f, ", column {column:?}")?;
        }
        if let Some(row_group) = self.row_group {
            write!(f, ", row group {row_group}")?;
        }
        if let Some(row) = self.row {
            write!(f, ", row {row}")?;
        }
        Ok(())
    }
}

/// What a store answered, as far as it decides what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// No such file, object or bucket.
    NotFound,
    /// Credentials are missing, wrong or not sufficient.
    Denied,
    /// The store is overloaded, broken or out of reach; another try may succeed.
    Unavailable,
    /// A deadline passed.
    Timeout,
    /// Anything else; another try would end the same way.
    Other,
}

/// One enum for the crate.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An argument that cannot be used: `ValueError` in Python.
    #[error("{0}")]
    Argument(String),

    /// A file that does not hold what it should: damaged, truncated, of another type.
    #[error("{place}: {what}")]
    Data {
        /// Where.
        place: Place,
        /// What was expected and what was found.
        what: String,
    },

    /// A store that did not do what it was asked.
    #[error("{uri}: {operation} failed after {attempts} attempt{}: {detail}", if *attempts == 1 { "" } else { "s" })]
    Store {
        /// The file, object or folder.
        uri: String,
        /// What was tried: `"list"`, `"read bytes 0..8"`.
        operation: String,
        /// The kind of fault.
        fault: StoreFault,
        /// How often it was tried.
        attempts: u32,
        /// What the store said, without secrets; a hint may follow on a line of its own.
        detail: String,
    },

    /// A file that is not the one that was indexed.
    #[error(
        "{uri}: changed since it was indexed: expected {wanted}, found {found}\nhint: open the dataset again; a run in progress needs the old files back"
    )]
    Changed {
        /// The file.
        uri: String,
        /// Size and version in the index.
        wanted: String,
        /// Size and version now.
        found: String,
    },

    /// A local file that was written to while it was stored somewhere else.
    #[error("{path}: changed while it was read: expected {wanted}, found {found}\nhint: store it once it is whole")]
    Moved {
        /// The file.
        path: String,
        /// Size and version when it was opened.
        wanted: String,
        /// Size and version now.
        found: String,
    },

    /// A memory budget that is too small for the work.
    #[error(
        "memory={available} bytes is too small: {purpose} needs {needed} bytes\nhint: pass a larger memory= to the DataLoader"
    )]
    Memory {
        /// What it was wanted for.
        purpose: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes that the budget has.
        available: u64,
    },

    /// A spill file or cache file that could not be written.
    #[error("{path}: {operation} failed: {detail}")]
    Disk {
        /// The file or folder.
        path: String,
        /// What was tried.
        operation: String,
        /// What the system said.
        detail: String,
    },

    /// Work was stopped on request.
    #[error("cancelled")]
    Cancelled,

    /// A bug in headrace or in a library below it, caught at a thread's edge.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

impl Error {
    /// A [`Error::Data`] at `place`.
    pub fn data(place: Place, what: impl Into<String>) -> Self {
        Self::Data { place, what: what.into() }
    }

    /// Whether the same call may succeed if it is made again.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Store { fault: StoreFault::Unavailable | StoreFault::Timeout, .. })
    }
}
