//! Wraps comments that do not fit, as rustfmt does with code.

use crate::rules::COLUMNS_MAX;

/// The text with every paragraph of `//` comments wrapped in which a line does not fit. Nothing else is touched; blocks
/// between fences, tables and headings stay as they are.
pub fn comments(text: &str) -> String {
    let mut wrapped: Vec<String> = Vec::new();
    let mut lines = text.lines().peekable();
    let mut fenced = false;
    while let Some(line) = lines.next() {
        let Some((mark, first)) = comment(line) else {
            fenced = false;
            wrapped.push(line.to_owned());
            continue;
        };
        if first.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || !is_prose(first) {
            wrapped.push(line.to_owned());
            continue;
        }
        let mut paragraph = vec![first];
        while let Some((same, more)) = lines.peek().and_then(|next| comment(next)) {
            if same != mark || !is_prose(more) || starts_an_item(more) {
                break;
            }
            paragraph.push(more);
            lines.next();
        }
        let fits = |text: &&str| mark.chars().count() + 1 + text.chars().count() <= COLUMNS_MAX;
        if paragraph.iter().all(fits) {
            wrapped.extend(paragraph.iter().map(|line| format!("{mark} {line}")));
            continue;
        }
        let hanging = if starts_an_item(first) { "  " } else { "" };
        let mut current = mark.to_owned();
        for word in paragraph.iter().flat_map(|line| line.split_whitespace()) {
            let bare = current.trim_end() == mark;
            if !bare && current.chars().count() + 1 + word.chars().count() > COLUMNS_MAX {
                wrapped.push(std::mem::replace(&mut current, format!("{mark}{hanging}")));
            }
            current.push(' ');
            current.push_str(word);
        }
        wrapped.push(current);
    }
    let mut text = wrapped.join("\n");
    text.push('\n');
    text
}

/// A line that is nothing but a comment: its indent with the slashes, and its text.
fn comment(line: &str) -> Option<(&str, &str)> {
    let indent = line.len() - line.trim_start().len();
    let slashes = ["///", "//!", "//"].into_iter().find(|s| line[indent..].starts_with(s))?;
    let (mark, text) = line.split_at(indent + slashes.len());
    // Fewer or more blanks than one are somebody's own layout.
    text.strip_prefix(' ').filter(|t| !t.starts_with(' ')).map(|text| (mark, text))
}

fn is_prose(text: &str) -> bool {
    !text.is_empty() && !["|", "#", "```"].iter().any(|start| text.starts_with(start))
}

fn starts_an_item(text: &str) -> bool {
    text.starts_with("- ")
        || text.starts_with("* ")
        || text.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_that_does_not_fit_is_wrapped_and_code_is_not() {
        let long = "word ".repeat(30);
        let text = format!("    /// {}\n    /// end.\n    let a = \"{long}\";\n", long.trim_end());
        let out = comments(&text);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].len() <= COLUMNS_MAX && lines[0].starts_with("    /// word word"), "{out}");
        assert!(lines[1].ends_with("end.") && lines[1].starts_with("    /// word"), "{out}");
        assert!(lines[2].len() > COLUMNS_MAX);
        assert_eq!(comments(&out), out, "once is enough");
    }

    #[test]
    fn what_fits_and_what_is_laid_out_stays_as_it_is() {
        let text = "//! One.\n//! Two.\n//!\n//! ```\n//! let x = 1;\n//! ```\n//!   own layout\n// - an item\n\
                    // - another\nfn a() {}\n";
        assert_eq!(comments(text), text);
    }

    #[test]
    fn an_item_that_is_wrapped_hangs() {
        let out = comments(&format!("// - {}\n// - next\n", "word ".repeat(30).trim_end()));
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[1].starts_with("//   word"), "{out}");
        assert_eq!(lines[2], "// - next");
    }
}
