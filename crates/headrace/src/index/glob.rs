//! Patterns of paths: `*`, `?` and `[...]` within a part of a path, `**` over any number of parts.
//!
//! Nothing else is special: braces and backslashes are legal in names.

use globset::{GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// A compiled pattern of paths relative to some folder.
#[derive(Debug)]
pub(crate) struct Pattern {
    whole: GlobMatcher,
    /// For each part but the last, the pattern up to it; ends before the first `**`.
    starts: Vec<GlobMatcher>,
    /// Whether a `**` follows the starts, so that folders below them are of interest at any depth.
    any_depth: bool,
}

impl Pattern {
    /// Compiles `pattern`; `url` is what the user wrote.
    pub(crate) fn new(pattern: &str, url: &str) -> Result<Self> {
        let compile = |text: &str| {
            GlobBuilder::new(&without_braces(text))
                .literal_separator(true)
                .backslash_escape(false)
                .build()
                .map(|glob| glob.compile_matcher())
                .map_err(|e| Error::Argument(format!("{url:?} is no pattern: {}", e.kind())))
        };
        let parts: Vec<&str> = pattern.split('/').collect();
        let mut starts = Vec::new();
        let mut any_depth = false;
        let mut start = String::new();
        for part in &parts[..parts.len() - 1] {
            if part.contains("**") {
                any_depth = true;
                break;
            }
            if !start.is_empty() {
                start.push('/');
            }
            start.push_str(part);
            starts.push(compile(&start)?);
        }
        any_depth |= parts.last().is_some_and(|part| part.contains("**"));
        Ok(Self { whole: compile(pattern)?, starts, any_depth })
    }

    /// Whether a file matches.
    pub(crate) fn matches(&self, path: &str) -> bool {
        self.whole.is_match(path)
    }

    /// Whether files below a folder may match; asked for each folder on the way down.
    pub(crate) fn may_hold(&self, folder: &str) -> bool {
        let depth = folder.split('/').count();
        match self.starts.get(depth - 1) {
            Some(start) => start.is_match(folder),
            None => self.any_depth,
        }
    }
}

/// Makes braces outside of `[...]` ordinary characters.
fn without_braces(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut class = false;
    for c in pattern.chars() {
        match c {
            '{' | '}' if !class => out.extend(['[', c, ']']),
            c => out.push(c),
        }
        class = (class || c == '[') && c != ']';
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text, text).expect(text)
    }

    #[test]
    fn wildcards_stay_within_a_part_and_two_stars_do_not() {
        for (glob, yes, no) in [
            ("*.pq", vec!["a.pq", ".pq"], vec!["a/b.pq", "a.pqx"]),
            ("**/*.pq", vec!["a.pq", "x/y/a.pq"], vec!["a.p"]),
            ("a/**", vec!["a/b", "a/b/c"], vec!["b/a"]),
            ("?[0-9]-[!x]", vec!["a1-y"], vec!["a1-x", "aa-y", "a1y"]),
            ("{a}", vec!["{a}"], vec!["a"]),
            ("[{}]{", vec!["{{", "}{"], vec!["a"]),
            ("a\\*", vec!["a\\b"], vec!["a*b"]),
            ("x*/y*", vec!["x1/y1", "x/y"], vec!["x/z/y", "xy"]),
        ] {
            for path in yes {
                assert!(pattern(glob).matches(path), "{glob} {path}");
            }
            for path in no {
                assert!(!pattern(glob).matches(path), "{glob} {path}");
            }
        }
        assert!(Pattern::new("a[", "a[").is_err());
    }

    #[test]
    fn folders_that_cannot_match_are_not_entered() {
        let one = pattern("x*/y/*.pq");
        assert!(one.may_hold("x1") && one.may_hold("x1/y"));
        assert!(!one.may_hold("y") && !one.may_hold("x1/z") && !one.may_hold("x1/y/z"));
        let deep = pattern("x*/**/z.pq");
        assert!(deep.may_hold("x") && deep.may_hold("x/a/b/c") && !deep.may_hold("y"));
        assert!(!pattern("*").may_hold("x"));
    }

    proptest! {
        /// Pruning loses nothing: every folder above a match may hold it.
        #[test]
        fn folders_above_a_match_are_entered(
            glob in proptest::collection::vec(prop_oneof!["[a-c]", "[a-c]\\*", "\\*", "\\?", "\\*\\*"], 1..4),
            path in proptest::collection::vec("[a-c]{1,2}", 1..5),
        ) {
            let glob = pattern(&glob.join("/"));
            let whole = path.join("/");
            if glob.matches(&whole) {
                for depth in 1..path.len() {
                    prop_assert!(glob.may_hold(&path[..depth].join("/")), "{whole} {depth}");
                }
            }
        }
    }
}
