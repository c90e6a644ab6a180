//! Patterns of paths: `*`, `?` and `[...]` within a part of a path, `**` as a part for any number of parts.
//!
//! Nothing else is special: braces and backslashes are legal in names. What a wildcard stands for are letters, however
//! many bytes they take.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};

/// A compiled pattern of paths relative to some folder.
#[derive(Debug)]
pub(crate) struct Pattern(Vec<Part>);

/// What one part of a path has to be.
#[derive(Debug)]
enum Part {
    /// Any number of parts, or none.
    AnyDepth,
    /// One part of this form.
    Name(Vec<Token>),
}

/// What some letters of a part have to be.
#[derive(Debug)]
enum Token {
    Letter(char),
    /// One letter, whichever.
    One,
    /// Any number of letters, or none.
    Many,
    /// One letter of these, or of all others.
    Class {
        is_negated: bool,
        ranges: Vec<RangeInclusive<char>>,
    },
}

impl Pattern {
    /// Compiles `pattern`; `url` is what the user wrote.
    pub(crate) fn new(pattern: &str, url: &str) -> Result<Self> {
        let compile = |part: &str| match part {
            "**" => Ok(Part::AnyDepth),
            name => tokens(name).map(Part::Name),
        };
        let parts: std::result::Result<Vec<Part>, &str> = pattern.split('/').map(compile).collect();
        let mut parts = parts.map_err(|flaw| Error::Argument(format!("{url:?} is no pattern: {flaw}")))?;
        if matches!(parts.last(), Some(Part::AnyDepth)) {
            // A file at any depth, which is one part at least.
            parts.push(Part::Name(vec![Token::Many]));
        }
        Ok(Self(parts))
    }

    /// Whether a file matches.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        wild(&self.0, &names, |part| matches!(part, Part::AnyDepth), Part::is)
    }

    /// Whether files below a folder may match; asked for each folder on the way down.
    pub(crate) fn may_hold(&self, folder: &str) -> bool {
        for (at, name) in folder.split('/').enumerate() {
            match self.0.get(at) {
                Some(Part::AnyDepth) => return true,
                Some(part) if part.is(&name) => {}
                _ => return false,
            }
        }
        self.0.len() > folder.split('/').count()
    }
}

impl Part {
    fn is(&self, name: &&str) -> bool {
        let Self::Name(tokens) = self else { return false };
        let letters: Vec<char> = name.chars().collect();
        wild(tokens, &letters, |token| matches!(token, Token::Many), Token::is)
    }
}

impl Token {
    fn is(&self, letter: &char) -> bool {
        match self {
            Self::Letter(own) => own == letter,
            Self::One => true,
            Self::Many => false,
            Self::Class { is_negated, ranges } => ranges.iter().any(|range| range.contains(letter)) != *is_negated,
        }
    }
}

/// Whether each of `found` is what stands for it in `wanted`, where some stand for any number. Only the last of those is
/// ever gone back to, so that this takes no longer than the product of both lengths.
fn wild<W, F>(wanted: &[W], found: &[F], is_many: impl Fn(&W) -> bool, is: impl Fn(&W, &F) -> bool) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut many: Option<(usize, usize)> = None;
    while next < found.len() {
        match wanted.get(at) {
            Some(one) if is_many(one) => {
                at += 1;
                many = Some((at, next));
            }
            Some(one) if is(one, &found[next]) => (at, next) = (at + 1, next + 1),
            _ => {
                let Some((behind, taken)) = many else { return false };
                many = Some((behind, taken + 1));
                (at, next) = (behind, taken + 1);
            }
        }
    }
    wanted[at..].iter().all(is_many)
}

/// What a part of a pattern means.
fn tokens(part: &str) -> std::result::Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut letters = part.chars();
    while let Some(letter) = letters.next() {
        tokens.push(match letter {
            '*' => Token::Many,
            '?' => Token::One,
            '[' => class(&mut letters)?,
            letter => Token::Letter(letter),
        });
    }
    Ok(tokens)
}

/// What follows a `[`: letters and ranges of them up to the `]`, which is a letter where it comes first.
fn class(letters: &mut std::str::Chars<'_>) -> std::result::Result<Token, &'static str> {
    const OPEN: &str = "a [ without a ]";
    let mut rest = letters.clone();
    let is_negated = matches!(rest.next(), Some('!' | '^'));
    if is_negated {
        *letters = rest;
    }
    let mut ranges: Vec<RangeInclusive<char>> = Vec::new();
    loop {
        let first = letters.next().ok_or(OPEN)?;
        if first == ']' && !ranges.is_empty() {
            return Ok(Token::Class { is_negated, ranges });
        }
        let mut behind = letters.clone();
        ranges.push(match (behind.next(), behind.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *letters = behind;
                if last < first {
                    return Err("a range of letters that ends before it begins");
                }
                first..=last
            }
            _ => first..=first,
        });
    }
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
            ("a/**", vec!["a/b", "a/b/c"], vec!["b/a", "a"]),
            ("a/**/b", vec!["a/b", "a/x/b", "a/x/y/b"], vec!["a/bb", "b", "a/b/x"]),
            ("**", vec!["a", "a/b"], vec![]),
            ("a**b", vec!["ab", "axb"], vec!["a/b"]),
            ("?[0-9]-[!x]", vec!["a1-y"], vec!["a1-x", "aa-y", "a1y"]),
            ("[^a]", vec!["b", "^"], vec!["a", ""]),
            ("[]x]", vec!["]", "x"], vec!["[", "a"]),
            ("[a-]", vec!["a", "-"], vec!["b"]),
            ("[a-c-e]", vec!["b", "-", "e"], vec!["d"]),
            ("{a}", vec!["{a}"], vec!["a"]),
            ("[{}]{", vec!["{{", "}{"], vec!["a"]),
            ("a\\*", vec!["a\\b"], vec!["a*b"]),
            ("x*/y*", vec!["x1/y1", "x/y"], vec!["x/z/y", "xy"]),
            ("*a*a*", vec!["aa", "xaxaxa"], vec!["a", "xax"]),
        ] {
            for path in yes {
                assert!(pattern(glob).matches(path), "{glob} {path}");
            }
            for path in no {
                assert!(!pattern(glob).matches(path), "{glob} {path}");
            }
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (glob, flaw) in
            [("a[", "without a ]"), ("x/[a/b", "without a ]"), ("[!]", "without a ]"), ("[z-a]", "ends before")]
        {
            let message = Pattern::new(glob, glob).expect_err(glob).to_string();
            assert!(message.contains(flaw) && message.contains(glob), "{message}");
        }
    }

    #[test]
    fn a_wildcard_stands_for_a_letter_of_any_alphabet() {
        for (glob, yes, no) in [
            ("?.pq", vec!["ü.pq", "日.pq", "🦀.pq"], vec![".pq", "üü.pq"]),
            ("part-??", vec!["part-éa"], vec!["part-é"]),
            ("[ä-ü]", vec!["ö"], vec!["a", "日"]),
            ("[!ü]", vec!["ö", "a"], vec!["ü", "öö"]),
            ("*本", vec!["日本"], vec!["日"]),
        ] {
            for path in yes {
                assert!(pattern(glob).matches(path), "{glob} {path}");
            }
            for path in no {
                assert!(!pattern(glob).matches(path), "{glob} {path}");
            }
        }
    }

    #[test]
    fn a_pattern_of_many_stars_is_soon_decided() {
        let glob = pattern(&"*a".repeat(1000));
        assert!(glob.matches(&"a".repeat(5000)));
        assert!(!glob.matches(&format!("{}b", "a".repeat(5000))));
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
            glob in proptest::collection::vec(prop_oneof!["[a-cü]", "[a-c]\\*", "\\*", "\\?", "\\*\\*"], 1..4),
            path in proptest::collection::vec("[a-cü]{1,2}", 1..5),
        ) {
            let glob = pattern(&glob.join("/"));
            let whole = path.join("/");
            if glob.matches(&whole) {
                for depth in 1..path.len() {
                    prop_assert!(glob.may_hold(&path[..depth].join("/")), "{whole} {depth}");
                }
            }
        }

        /// The quick way finds what trying everything finds.
        #[test]
        fn stars_are_what_trying_everything_finds(glob in "[ab?*]{0,7}", name in "[abü]{0,7}") {
            fn all(glob: &[char], name: &[char]) -> bool {
                match (glob.split_first(), name.split_first()) {
                    (None, None) => true,
                    (Some(('*', rest)), None) => all(rest, name),
                    (Some(('*', rest)), Some((_, left))) => all(rest, name) || all(glob, left),
                    (Some((one, rest)), Some((letter, left))) => (*one == '?' || one == letter) && all(rest, left),
                    _ => false,
                }
            }
            let (glob_letters, letters): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
            // Two stars alone are more than a part.
            if glob != "**" {
                prop_assert_eq!(pattern(&glob).matches(&name), all(&glob_letters, &letters), "{} {}", glob, name);
            }
        }
    }
}
