//! A subscription by pattern: which names of topics it means.
//!
//! The patterns are those of RE2, whose rules `regex-syntax` shares but for a few: what that one does not know is
//! refused (`\Q..\E`, and `\p{..}`, which no name needs: they are ASCII), and what RE2 refuses on top or reads in
//! another way is looked for here. A name matches as a whole.
//!
//! A pattern becomes a full table (a dense DFA), so that each byte of each name is one step, whatever the pattern is.
//! One whose table does not fit is refused: anything slower to match could hold up core 0.

use crate::image::Image;
use crate::limits;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::util::{primitives::StateID, start};
use regex_automata::{Anchored, MatchKind};
use regex_syntax::ast::{self, AssertionKind, Ast, ClassSetItem, Flag, FlagsItemKind, GroupKind, HexLiteralKind};
use regex_syntax::ast::{LiteralKind, RepetitionKind, RepetitionRange};
use regex_syntax::hir::translate::TranslatorBuilder;
use std::collections::BTreeSet;
use uuid::Uuid;

/// A pattern that is ready to match. Lives as long as a request: what it matched is kept, and is smaller.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    table: dense::DFA<Vec<u32>>,
    start: StateID,
}

impl Pattern {
    /// `None`: it is no pattern, or too large a one.
    pub(super) fn new(text: &str) -> Option<Pattern> {
        if text.len() > limits::PATTERN_BYTES_MAX {
            return None;
        }
        let read = ast::parse::ParserBuilder::new().nest_limit(limits::PATTERN_NEST_MAX).build().parse(text).ok()?;
        ast::visit(&read, AsRe2 { text }).ok()?;
        let meant = TranslatorBuilder::new().unicode(false).utf8(false).build().translate(text, &read).ok()?;
        let steps = thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(limits::PATTERN_NFA_BYTES_MAX));
        let nfa = thompson::Compiler::new().configure(steps).build_from_hir(&meant).ok()?;
        // `All`: an alternative that has matched hides no other one that matches more of the name
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .accelerate(false)
            .dfa_size_limit(Some(table_bytes_max(&nfa)))
            .determinize_size_limit(Some(limits::PATTERN_SETS_BYTES_MAX));
        let table = dense::Builder::new().configure(config).build_from_nfa(&nfa).ok()?;
        let start = table.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()?;
        Some(Pattern { table, start })
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let end = name.bytes().fold(self.start, |state, byte| self.table.next_state(state, byte));
        self.table.is_match_state(self.table.next_eoi_state(end))
    }

    /// The ids of the topics that it means.
    pub(super) fn among(&self, image: &Image) -> BTreeSet<Uuid> {
        image.topics().filter(|topic| self.matches(&topic.name)).map(|topic| topic.id).collect()
    }
}

/// How large the table may become, bytes. For each of its cells all the empty steps may have to be gone.
fn table_bytes_max(nfa: &NFA) -> usize {
    let empty = |state: &State| match state {
        State::Union { alternates } => alternates.len(),
        State::BinaryUnion { .. } => 2,
        other => usize::from(other.is_epsilon()),
    };
    // and 8, since a cell without any has its cost too
    limits::PATTERN_WORK_MAX / (8 + nfa.states().iter().map(empty).sum::<usize>())
}

/// Refuses what RE2 refuses, or means in another way.
struct AsRe2<'a> {
    text: &'a str,
}

impl AsRe2<'_> {
    fn of(&self, span: &ast::Span) -> &str {
        &self.text[span.start.offset..span.end.offset]
    }

    fn repetition(&self, repetition: &ast::Repetition) -> bool {
        let RepetitionKind::Range(range) = &repetition.op.kind else { return true };
        let (RepetitionRange::Exactly(most) | RepetitionRange::AtLeast(most) | RepetitionRange::Bounded(_, most)) =
            range;
        // `{ 2 }` is text to RE2
        *most <= limits::PATTERN_REPEAT_MAX && !self.of(&repetition.op.span).contains(char::is_whitespace)
    }

    fn class(&self, class: &ast::ClassBracketed) -> bool {
        // `[--a]` and `[]-a]` are ranges to RE2
        let inner = self.of(&class.span).trim_start_matches('[').trim_start_matches('^');
        !matches!(class.kind, ast::ClassSet::BinaryOp(_)) && !inner.starts_with("--") && !inner.starts_with("]-")
    }
}

fn literal(literal: &ast::Literal) -> bool {
    match &literal.kind {
        LiteralKind::HexFixed(hex) | LiteralKind::HexBrace(hex) => *hex == HexLiteralKind::X,
        _ => true,
    }
}

fn flags(flags: &ast::Flags) -> bool {
    flags.items.iter().all(|item| match item.kind {
        FlagsItemKind::Negation => true,
        FlagsItemKind::Flag(Flag::CaseInsensitive | Flag::MultiLine | Flag::DotMatchesNewLine | Flag::SwapGreed) => {
            true
        }
        FlagsItemKind::Flag(Flag::Unicode | Flag::CRLF | Flag::IgnoreWhitespace) => false,
    })
}

fn group(group: &ast::Group) -> bool {
    match &group.kind {
        GroupKind::CaptureIndex(_) => true,
        GroupKind::CaptureName { name, .. } => name.name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric()),
        GroupKind::NonCapturing(its) => flags(its),
    }
}

fn assertion(assertion: &ast::Assertion) -> bool {
    use AssertionKind::{EndLine, EndText, NotWordBoundary, StartLine, StartText, WordBoundary};
    matches!(assertion.kind, StartLine | EndLine | StartText | EndText | WordBoundary | NotWordBoundary)
}

impl ast::Visitor for AsRe2<'_> {
    type Output = ();
    type Err = ();

    fn finish(self) -> Result<(), ()> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        let shared = match ast {
            // without a group between them
            Ast::Repetition(outer) => !matches!(*outer.ast, Ast::Repetition(_)) && self.repetition(outer),
            Ast::Flags(set) => flags(&set.flags),
            Ast::Literal(one) => literal(one),
            Ast::Assertion(one) => assertion(one),
            Ast::ClassBracketed(class) => self.class(class),
            Ast::Group(one) => group(one),
            _ => true,
        };
        shared.then_some(()).ok_or(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), ()> {
        let shared = match item {
            ClassSetItem::Literal(one) => literal(one),
            ClassSetItem::Range(range) => literal(&range.start) && literal(&range.end),
            // `[a[b]]` is `[a[b]` and then a `]` to RE2
            ClassSetItem::Bracketed(_) => false,
            _ => true,
        };
        shared.then_some(()).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn of(text: &str) -> Pattern {
        Pattern::new(text).unwrap_or_else(|| panic!("{text} is a pattern"))
    }

    #[track_caller]
    fn refused(texts: &[&str]) {
        for text in texts {
            assert!(Pattern::new(text).is_none(), "{text}");
        }
    }

    /// Lost if it fails: a group reads topics that it did not mean, or not those that it did.
    #[test]
    fn a_name_matches_as_a_whole() {
        assert!(of("a-(one|two)").matches("a-two"));
        for name in ["xa-one", "a-onex", "a-on", ""] {
            assert!(!of("a-(one|two)").matches(name), "{name}");
        }
        assert!(of("one|two").matches("two") && !of("one|two").matches("one2"));
        assert!(of(r"\w+\.[a-z]{2,3}").matches("t_1.abc") && !of(r"\w+\.[a-z]{2,3}").matches("t.abcd"));
        assert!(of("(?i)Orders.*").matches("oRDERS-7") && !of("orders.*").matches("Orders"));
        assert!(of("(?:a*)*").matches("aaa"));
    }

    /// Lost if it fails: a group does not read a topic that it means, since a part of its name matched first.
    #[test]
    fn an_alternative_that_matches_a_part_hides_none_that_matches_all() {
        for text in ["a|ab", "(?:a|ab)(?:c|bcd)?", "ab??", "(?U)ab?", "a|abc|ab", "^a$|^ab$", "a*?b?"] {
            assert!(of(text).matches("a") && of(text).matches("ab"), "{text}");
        }
        assert!(of("|ab").matches("") && of("|ab").matches("ab") && !of("|ab").matches("a"));
        assert!(of(r"a\b.b").matches("a-b") && !of(r"a\b.b").matches("acb"));
    }

    /// Lost if it fails: groups can not subscribe by patterns as people write them.
    #[test]
    fn ordinary_patterns_are_taken() {
        let names: Vec<String> = (0..30).map(|i| format!("com.ex-{i}.Name.{}", i * 7919)).collect();
        let any = names.join("|");
        assert!(any.len() > 600);
        for (text, name) in [
            (r"com\.example\..*", "com.example.orders"),
            (".*orders.*", "all-orders.v2"),
            ("(foo|bar|baz)-[0-9]{1,6}", "baz-123456"),
            (r"^prefix[-_].*\.(v1|v2)$", "prefix_a.v2"),
            ("[a-zA-Z0-9._-]{1,100}", "Some-name_1.x"),
            (".{3,200}", "abc"),
            (r"(?i).*(orders|payments|billing).*\.v[0-9]+", "eu.Payments-x.V12"),
            (r"(?P<where>eu|us)-[1-3]\.[[:alnum:]-]{1,63}\..*", "eu-2.a-b.c"),
            (r"\x61\x{62}[\x63-\x64]", "abd"),
            (&any, "com.ex-29.Name.229651"),
            (&format!(".*(?:{})", names[..10].join("|")), "x.com.ex-0.Name.0"),
        ] {
            assert!(of(text).matches(name) && !of(text).matches(""), "{text}");
        }
    }

    /// Lost if it fails: a member is told that its pattern is good, and then nothing matches it; or one pattern takes
    /// all the memory of core 0.
    #[test]
    fn what_re2_refuses_is_refused_and_so_is_what_is_too_large() {
        refused(&["(", "[a", "a**", "a*+", "a{2}{3}", "(?P<", "*", r"(a)\1", "(?=a)", r"\p{Greek}", "a)|(b"]);
        let (long, deep) = ("a".repeat(limits::PATTERN_BYTES_MAX + 1), "(".repeat(200) + &")".repeat(200));
        refused(&[&long, &deep, "(?:[a-z]{1,200}){1,200}", "(a|b)*a(a|b){12}", "(?:a{1000}){1000}"]);
    }

    /// Lost if it fails: one member holds up core 0, and with it all groups and the metadata, for seconds.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "a stop watch")]
    fn a_hostile_pattern_is_refused_or_is_as_fast_as_any() {
        let ends = format!("(?:{})*", "a*b*c*".repeat(169));
        let many = "(a*b*c*)*".repeat(113);
        let names: Vec<String> = (0..1000).map(|i| format!("{i:03}{}", "ab".repeat(123))).collect();
        assert!(names.iter().all(|name| name.len() == 249));
        for text in [
            "(?:.?){250}z",
            "(?:.?){400}z",
            "(?:[a-z]{1,200}){1,200}",
            "(a|b)*a(a|b){12}",
            "(?i)[a-z]*a[a-z]{11}",
            "(.*a.*b.*c.*d.*e){3}",
            "(?:(?:.*a.{5})?){60}b",
            "(?:(?:(?:){1000}){1000}){1000}",
            ".*abcdefghijklmnopqrstuvwxyz.*a(?:.?){30}z.{8}",
            r"(?:\b|\B|^|$|.?){60}",
            &ends,
            &many,
        ] {
            let before = Instant::now();
            if let Some(pattern) = Pattern::new(text) {
                std::hint::black_box(names.iter().filter(|name| pattern.matches(name)).count());
            }
            assert!(before.elapsed() < Duration::from_millis(500), "{text}: {:?}", before.elapsed());
        }
    }

    /// Lost if it fails: a pattern with a flag that Kafka does not know is taken, and means something else there.
    #[test]
    fn flags_that_re2_does_not_have_are_refused() {
        refused(&["(?x)a b", "(?R)a", "(?u)a", "(?-u)a", "(?u:a)", "(?i-u:a)", "(?x: a )", "(?:a(?ix)b)"]);
        for text in ["(?i)a", "(?m)^a$", "(?s).", "(?U)a+", "(?i-s:a)", "(?imsU:a)"] {
            assert!(of(text).matches("a"), "{text}");
        }
    }

    /// Lost if it fails: a class means other characters than in Kafka, so that a group reads other topics.
    #[test]
    fn classes_that_re2_reads_in_another_way_are_refused() {
        refused(&["[a&&b]", "[a-z--b]", "[a~~b]", "[a[b]]", "[^a&&b]", "[[a]&&[b]]", "[a[:foo:]]"]);
        refused(&["[--a]", "[^--a]", "[]-a]", "[^]-a]"]);
        for text in ["[[:alpha:]]", "[a-]", "[-a]", "[]a]", "[a&]", "[a~-]", "[^^]", r"[\w\-]"] {
            assert!(of(text).matches("a"), "{text}");
        }
    }

    /// Lost if it fails: an escape that Kafka refuses is taken, and a client fails when it changes its broker.
    #[test]
    fn escapes_that_re2_does_not_have_are_refused() {
        refused(&[r"\u0041", r"\u{41}", r"\U00000041", r"\U{41}", r"[\u0041]", r"[\u0041-\x42]", r"[\x41-\U{42}]"]);
        assert!(of(r"\x41\x{41}[\x41-\x{42}]").matches("AAB"));
    }

    /// Lost if it fails: a boundary that Kafka refuses, or takes for a `<`, decides what a group reads.
    #[test]
    fn boundaries_that_re2_does_not_have_are_refused() {
        refused(&[r"\<a", r"a\>", r"\b{start}a", r"a\b{end}", r"\b{start-half}a", r"a\b{end-half}"]);
        assert!(of(r"\A\ba\b\z").matches("a") && of(r"a\Ba").matches("aa"));
    }

    /// Lost if it fails: a repetition that Kafka refuses, or takes for text, is one here.
    #[test]
    fn repetitions_that_re2_does_not_have_are_refused() {
        refused(&["a{1001}", "a{1001,}", "a{0,1001}", "(?:){1001}", "a{ 2 }", "a{1, 2}", "a{,2}"]);
        assert!(of("a{1000}").matches(&"a".repeat(1000)) && of("a{0,2}?").matches("aa"));
    }

    /// Lost if it fails: a name of a group that Kafka refuses is taken.
    #[test]
    fn names_of_groups_that_re2_does_not_have_are_refused() {
        refused(&["(?P<a.b>a)", "(?P<a[0]>a)", "(?P<\u{e9}>a)"]);
        assert!(of("(?P<a_1>a)(?<b>b)").matches("ab"));
    }
}
