//! Choosing a token column: whether every file has it, and what it holds.

use std::sync::Arc;

use crate::cancel::Cancel;
use crate::error::{Error, Place, Result};
use crate::format::parquet::FileFooter;
use crate::index::count::{Count, count_chunks};
use crate::index::read::read_one;
use crate::index::{Index, Phase, Progress, TokenColumn, UNKNOWN};

impl TokenColumn {
    /// Whether every file with rows has it.
    pub fn is_whole(&self) -> bool {
        self.chunks.first_missing().is_none()
    }
}

impl Index {
    /// Makes all counts of a column known, of tokens and of documents, and saves what it found.
    ///
    /// Levels are read of those chunks whose footers do not tell. Nothing is done when all is known. What was
    /// counted before a failure or a cancellation is kept. A column that a file lacks is [`Error::Data`] and names
    /// the file.
    pub fn count(&mut self, column: &str, cancel: &Cancel, progress: &Progress) -> Result<()> {
        self.count_where(column, |tokens, documents| tokens == UNKNOWN || documents == UNKNOWN, cancel, progress)
    }

    /// As [`Self::count`], for tokens only: enough where documents are not given tokens of their own.
    ///
    /// Many footers tell the number of tokens, but not how many documents are empty.
    pub fn count_tokens(&mut self, column: &str, cancel: &Cancel, progress: &Progress) -> Result<()> {
        self.count_where(column, |tokens, _| tokens == UNKNOWN, cancel, progress)
    }

    fn count_where(
        &mut self,
        name: &str,
        unknown: impl Fn(u64, u64) -> bool,
        cancel: &Cancel,
        progress: &Progress,
    ) -> Result<()> {
        let number = self.check_column(name, cancel)?;
        let column = &self.columns[number];
        let groups: Vec<usize> =
            (0..column.chunks.len()).filter(|at| unknown(column.tokens[*at], column.documents[*at])).collect();
        if groups.is_empty() {
            return Ok(());
        }
        progress.begin(Phase::Levels, groups.len() as u64);
        let (counts, result) = count_chunks(self, number, &groups, cancel, progress);
        let any = !counts.is_empty();
        if any {
            // Whoever holds the column as it was keeps those counts, and shares the chunks.
            let column = Arc::make_mut(&mut self.columns[number]);
            let (all_tokens, all_documents) = (Arc::make_mut(&mut column.tokens), Arc::make_mut(&mut column.documents));
            for (group, Count { tokens, documents, .. }) in counts {
                all_tokens[group] = tokens;
                all_documents[group] = documents;
            }
        }
        let saved = if any { self.save() } else { Ok(()) };
        result?;
        saved?;
        progress.begin(Phase::Done, 0);
        Ok(())
    }

    /// A column that every file with rows has, and of which all tokens are counted. Its documents may be [`UNKNOWN`]
    /// unless [`Self::count`] was called.
    pub fn token_column(&self, name: &str) -> Result<&Arc<TokenColumn>> {
        let number = self.check_column(name, &Cancel::new())?;
        let column = &self.columns[number];
        match column.tokens.iter().position(|tokens| *tokens == UNKNOWN) {
            None => Ok(column),
            Some(_) => Err(Error::Internal(format!("column {name:?} was used before its tokens were counted"))),
        }
    }

    /// The number of a column among [`Index::columns`], if every file with rows has it. The footer of the first file
    /// that has not is read again, to say what it has.
    pub(crate) fn check_column(&self, name: &str, cancel: &Cancel) -> Result<usize> {
        let (number, file) = match self.columns.iter().position(|column| column.name == name) {
            Some(number) => match self.columns[number].chunks.first_missing() {
                None => return Ok(number),
                Some(group) => (Some(number), self.row_groups.get(group).file as usize),
            },
            None => (None, 0),
        };
        let Some(entry) = self.files.get(file) else {
            return Err(Error::Argument(format!("{}: no files, so no column {name:?}", self.store.url())));
        };
        let place = Place::file(self.store.uri(&entry.object.path));
        self.footer(file, cancel)?.column(name, &place)?;
        // The file has it after all: a file without rows hides the column of those with some.
        match number {
            Some(_) => Err(Error::Internal(format!("{place}: column {name:?} is not in the index, but in the file"))),
            None => Err(Error::data(place, format!("expected column {name:?} in the index, found none"))),
        }
    }

    /// Reads the footer of one file again: schema, and what else the index does not keep.
    pub fn footer(&self, file: usize, cancel: &Cancel) -> Result<FileFooter> {
        match self.files.get(file) {
            Some(entry) => read_one(self.store.as_ref(), &entry.object, cancel),
            None => Err(Error::Argument(format!("there is no file {file}: the dataset has {}", self.files.len()))),
        }
    }

    /// Rows of all files.
    pub fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }

    /// Stored bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.object.size).sum()
    }
}
