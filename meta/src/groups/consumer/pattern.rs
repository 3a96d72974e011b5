//! A subscription by pattern: which names of topics it means.
//!
//! The patterns are those of RE2, whose rules the `regex` crate shares but for a few: what that one does not know is
//! refused (`\Q..\E`, and `\p{..}`, which no name needs: they are ASCII), and what RE2 refuses on top is looked for
//! here (a repetition of a repetition, `a**`). A name matches as a whole.

use crate::image::Image;
use crate::limits;
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ast::{self, Ast};
use std::collections::BTreeSet;
use uuid::Uuid;

/// A pattern that is ready to match. Lives as long as a request: what it matched is kept, and is smaller.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// `None`: it is no pattern, or too large a one.
    pub(super) fn new(text: &str) -> Option<Pattern> {
        if text.len() > limits::PATTERN_BYTES_MAX {
            return None;
        }
        // alone, so that it can not close the group that it is put into below
        let read = ast::parse::ParserBuilder::new().nest_limit(limits::PATTERN_NEST_MAX).build().parse(text).ok()?;
        ast::visit(&read, OneRepetition).ok()?;
        RegexBuilder::new(&format!("^(?:{text})$"))
            .unicode(false)
            .nest_limit(limits::PATTERN_NEST_MAX + 2)
            .size_limit(limits::PATTERN_READY_BYTES_MAX)
            .dfa_size_limit(limits::PATTERN_READY_BYTES_MAX)
            .build()
            .ok()
            .map(Pattern)
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.is_match(name.as_bytes())
    }

    /// The ids of the topics that it means.
    pub(super) fn among(&self, image: &Image) -> BTreeSet<Uuid> {
        image.topics().filter(|topic| self.matches(&topic.name)).map(|topic| topic.id).collect()
    }
}

/// Refuses a repetition of a repetition without a group between them.
struct OneRepetition;

impl ast::Visitor for OneRepetition {
    type Output = ();
    type Err = ();

    fn finish(self) -> Result<(), ()> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        match ast {
            Ast::Repetition(outer) if matches!(*outer.ast, Ast::Repetition(_)) => Err(()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: a group reads topics that it did not mean, or not those that it did.
    #[test]
    fn a_name_matches_as_a_whole() {
        let of = |text: &str| Pattern::new(text).unwrap_or_else(|| panic!("{text} is a pattern"));
        assert!(of("a-(one|two)").matches("a-two"));
        for name in ["xa-one", "a-onex", "a-on", ""] {
            assert!(!of("a-(one|two)").matches(name), "{name}");
        }
        assert!(of("one|two").matches("two") && !of("one|two").matches("one2"));
        assert!(of(r"\w+\.[a-z]{2,3}").matches("t_1.abc") && !of(r"\w+\.[a-z]{2,3}").matches("t.abcd"));
        assert!(of("(?i)Orders.*").matches("oRDERS-7") && !of("orders.*").matches("Orders"));
        assert!(of("(?:a*)*").matches("aaa"));
    }

    /// Lost if it fails: a member is told that its pattern is good, and then nothing matches it; or one pattern takes
    /// all the memory of core 0.
    #[test]
    fn what_re2_refuses_is_refused_and_so_is_what_is_too_large() {
        for text in ["(", "[a", "a**", "a*+", "a{2}{3}", "(?P<", "*", r"(a)\1", "(?=a)", r"\p{Greek}", "a)|(b"] {
            assert!(Pattern::new(text).is_none(), "{text}");
        }
        let (long, deep) = ("a".repeat(limits::PATTERN_BYTES_MAX + 1), "(".repeat(200) + &")".repeat(200));
        for text in [long.as_str(), &deep, "(?:[a-z]{1,200}){1,200}"] {
            assert!(Pattern::new(text).is_none());
        }
    }
}
