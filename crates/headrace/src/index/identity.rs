//! What tells one dataset from another, the same on every machine.
//!
//! Both digests are xxh3-128 of these bytes; numbers are little-endian, text is its length as u64 and its UTF-8:
//!
//! | part | bytes |
//! | --- | --- |
//! | mark | `headrace identity 1` for `digest`, `headrace content 1` for `content` |
//! | column | text: its name |
//! | files | u64: their number |
//! | for each file, in order of paths | |
//! | path | text: below the root; only in `digest` |
//! | size | u64: bytes |
//! | footer | u128: xxh3-128 of the footer's bytes |
//! | row groups | u64: their number |
//! | for each row group | u64 rows, u64 tokens |
//!
//! Modification times and entity tags are not part of it: they differ between copies. Counts of documents are not,
//! since they need not be known, and follow from the bytes.

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::index::{Identity, Index};

impl Index {
    /// What tells this dataset from another, seen through one column, of which the tokens must be counted.
    pub fn identity(&self, column: &str) -> Result<Identity> {
        self.identity_of_first(self.files.len(), column)
    }

    /// The same of its first files alone: what [`Index::identity`] of them was before others came behind them.
    pub fn identity_of_first(&self, files: usize, column: &str) -> Result<Identity> {
        let files = self.files.get(..files).ok_or_else(|| {
            Error::Argument(format!("there are no {files} files: the dataset has {}", self.files.len()))
        })?;
        let (tokens, rows) = (&self.token_column(column)?.tokens, self.row_groups.rows());
        let mut hashes = [Xxh3::new(), Xxh3::new()];
        hashes[0].update(b"headrace identity 1");
        hashes[1].update(b"headrace content 1");
        let both = |hashes: &mut [Xxh3; 2], bytes: &[u8]| hashes.iter_mut().for_each(|hash| hash.update(bytes));
        both(&mut hashes, &(column.len() as u64).to_le_bytes());
        both(&mut hashes, column.as_bytes());
        both(&mut hashes, &(files.len() as u64).to_le_bytes());
        let mut group = 0;
        for file in files {
            let path = file.object.path.as_bytes();
            hashes[0].update(&(path.len() as u64).to_le_bytes());
            hashes[0].update(path);
            both(&mut hashes, &file.object.size.to_le_bytes());
            both(&mut hashes, &file.footer_digest.to_le_bytes());
            both(&mut hashes, &u64::from(file.row_groups).to_le_bytes());
            for _ in 0..file.row_groups {
                both(&mut hashes, &rows[group].to_le_bytes());
                both(&mut hashes, &tokens[group].to_le_bytes());
                group += 1;
            }
        }
        Ok(Identity { digest: hashes[0].digest128(), content: hashes[1].digest128() })
    }
}
