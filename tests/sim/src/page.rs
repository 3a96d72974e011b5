//! Pages whose tables are made by a command, and not by hand: each stands between two lines of the page.

use std::path::Path;

/// The line behind every table.
pub const ENDS: &str = "<!-- end of what camus-sim made -->";

/// Puts the table behind this line of the page, in place of the one that is there.
pub fn write_table(page: &Path, begins: &str, table: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let with_table = replaced(&text, begins, table)
        .ok_or_else(|| format!("{}: there is no line `{begins}` with `{ENDS}` behind it", page.display()))?;
    std::fs::write(page, with_table).map_err(|error| format!("{}: {error}", page.display()))
}

fn replaced(text: &str, begins: &str, table: &str) -> Option<String> {
    let begin = text.find(begins)? + begins.len();
    let end = begin + text[begin..].find(ENDS)?;
    Some(format!("{}\n{table}{}", &text[..begin], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: what a page says around its tables, or another of its tables.
    #[test]
    fn a_table_replaces_the_one_before_it_and_nothing_else() {
        let page = format!("a\n<1>\nold\n{ENDS}\nb\n<2>\nold\n{ENDS}\nc\n");
        let first = format!("a\n<1>\nnew\n{ENDS}\nb\n<2>\nold\n{ENDS}\nc\n");
        let second = format!("a\n<1>\nold\n{ENDS}\nb\n<2>\nnew\n{ENDS}\nc\n");
        assert_eq!(replaced(&page, "<1>", "new\n"), Some(first));
        assert_eq!(replaced(&page, "<2>", "new\n"), Some(second));
        assert_eq!(replaced(&page, "<3>", "new\n"), None);
        assert_eq!(replaced("a\n<1>\n", "<1>", "new\n"), None);
    }
}
