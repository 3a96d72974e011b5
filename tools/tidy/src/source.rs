//! Rust source, taken apart as far as the rules need: which part of a line is code, and which lines are tests.

/// One line without its comments, its string contents blanked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    pub code: String,
    /// Inside an item under `#[cfg(test)]` or `#[test]`.
    pub test: bool,
}

/// Where the reader stands.
enum State {
    Code,
    LineComment,
    /// Depth: these nest.
    BlockComment(usize),
    Text,
    /// Number of `#`.
    RawText(usize),
}

/// Takes a source apart. Index 0 is line 1.
pub fn lines(text: &str) -> Vec<Line> {
    let mut code = String::with_capacity(text.len());
    let chars: Vec<char> = text.chars().collect();
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        let c = chars[at];
        let next = chars.get(at + 1).copied();
        match state {
            State::Code => match (c, next) {
                ('/', Some('/')) => state = State::LineComment,
                ('/', Some('*')) => {
                    state = State::BlockComment(1);
                    at += 1;
                }
                ('"', _) => {
                    code.push('"');
                    state = State::Text;
                }
                ('r', Some('"' | '#')) if !ends_with_word(&code) || code.ends_with('b') => {
                    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
                    if chars.get(at + 1 + hashes) == Some(&'"') {
                        code.push('"');
                        at += 1 + hashes;
                        state = State::RawText(hashes);
                    } else {
                        code.push(c);
                    }
                }
                ('\'', _) => {
                    // A character has its closing quote one or (with a backslash) more places on; a lifetime has none.
                    let length = match next {
                        Some('\\') => chars[at + 2..].iter().skip(1).take(12).position(|c| *c == '\'').map(|p| p + 3),
                        _ if chars.get(at + 2) == Some(&'\'') => Some(2),
                        _ => None,
                    };
                    code.push('\'');
                    at += length.unwrap_or(0);
                }
                _ => code.push(c),
            },
            State::LineComment => {
                if c == '\n' {
                    code.push('\n');
                    state = State::Code;
                }
            }
            State::BlockComment(depth) => match (c, next) {
                ('*', Some('/')) => {
                    at += 1;
                    state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                }
                ('/', Some('*')) => {
                    at += 1;
                    state = State::BlockComment(depth + 1);
                }
                ('\n', _) => code.push('\n'),
                _ => {}
            },
            State::Text => match (c, next) {
                ('\\', Some(escaped)) => {
                    if escaped == '\n' {
                        code.push('\n');
                    }
                    at += 1;
                }
                ('"', _) => {
                    code.push('"');
                    state = State::Code;
                }
                ('\n', _) => code.push('\n'),
                _ => {}
            },
            State::RawText(hashes) => {
                if c == '\n' {
                    code.push('\n');
                } else if c == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
                    code.push('"');
                    at += hashes;
                    state = State::Code;
                }
            }
        }
        at += 1;
    }
    mark_tests(code.split('\n'))
}

fn ends_with_word(code: &str) -> bool {
    code.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// Follows the braces: an item whose attribute says test is one until its last brace (or its semicolon).
fn mark_tests<'a>(code: impl Iterator<Item = &'a str>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut depth: usize = 0;
    // The depth at which a test item stands; `waiting` while its first brace has not come.
    let mut item: Option<usize> = None;
    let mut waiting = false;
    for line in code {
        let squeezed: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        let attribute = squeezed.starts_with("#[cfg(test)]")
            || squeezed.starts_with("#[cfg(all(test,")
            || squeezed.starts_with("#![cfg(test)]")
            || squeezed.starts_with("#[test]");
        if attribute && item.is_none() {
            item = Some(depth);
            waiting = true;
        }
        let mut test = item.is_some();
        for c in line.chars() {
            match c {
                '{' => {
                    depth += 1;
                    waiting = false;
                }
                '}' => {
                    depth = depth.saturating_sub(1);
                    if item == Some(depth) && !waiting {
                        item = None;
                    }
                }
                ';' if waiting && item == Some(depth) => {
                    item = None;
                    waiting = false;
                }
                _ => {}
            }
        }
        test |= item.is_some();
        lines.push(Line { code: line.to_owned(), test });
    }
    lines
}

/// Whether `word` stands in `code` as a word of its own.
pub fn has_word(code: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut from = 0;
    while let Some(found) = code[from..].find(word) {
        let (start, end) = (from + found, from + found + word.len());
        let free_before = !code[..start].chars().next_back().is_some_and(is_word);
        let free_after = !code[end..].chars().next().is_some_and(is_word);
        if free_before && free_after {
            return true;
        }
        from = end;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|l| l.code).collect()
    }

    /// If this fails, a rule finds words in comments and texts, or misses code behind them.
    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(code("a(); // unsafe"), ["a(); "]);
        assert_eq!(code("a(\"unsafe \\\" {\"); b"), ["a(\"\"); b"]);
        assert_eq!(code("a /* x /* y */ z */ b"), ["a  b"]);
        assert_eq!(code("r#\"unsafe \" x\"# + y"), ["\"\" + y"]);
        assert_eq!(code("br\"{\" + y"), ["b\"\" + y"]);
        assert_eq!(code("'{' '\\'' '\\u{7d}' 'a: loop"), ["'' '' '' 'a: loop"].map(|s| s.replace("''", "'")));
        assert_eq!(code("\"two\nlines\" x"), ["\"", "\" x"]);
        assert_eq!(code("var\"x\""), ["var\"\""], "a word that ends in r");
    }

    #[test]
    fn items_under_cfg_test_are_tests_and_what_follows_is_not() {
        let text =
            "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { c() }\n}\nfn d() {}\n#[cfg(test)]\nuse x;\nfn e() {}";
        let tests: Vec<bool> = lines(text).iter().map(|l| l.test).collect();
        assert_eq!(tests, [false, true, true, true, true, false, true, true, false]);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(has_word("x.unwrap_or(1).unwrap()", "unwrap"));
    }
}
