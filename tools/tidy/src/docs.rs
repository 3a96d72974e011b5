//! The rules on documents: what a page names must be there.
//!
//! How a page names a test: between backticks, and either behind the word `test` or `tests` (also capitalised, several
//! with commas and `and`), or behind `Guards:` in a decision record, or in a table's column headed `test` or `tests`.
//! It is the name of a test function (Rust or Python), or a file (`groups.rs`, `tests/chaos/kill9.py`). How a page or a
//! comment names a decision: `ADR 0005`, `docs/adr/0005`, or the file.

use crate::house::{File, Finding, House};
use std::collections::BTreeSet;

const ADR_FOLDER: &str = "docs/adr/";
const ADR_HEADINGS: &[&str] = &["## Context", "## Decision", "## Cost", "## Not done", "## Rejected"];

/// The decision records, as (number, path).
fn records(house: &House) -> Vec<(&str, &File)> {
    house
        .markdown()
        .filter_map(|f| Some((f.path.strip_prefix(ADR_FOLDER)?, f)))
        .filter(|(name, _)| !name.contains('/') && *name != "README.md")
        .map(|(name, f)| (name.get(..4).unwrap_or(name), f))
        .collect()
}

/// Every ADR that is named in a document, a comment or a manifest is there.
pub fn named_decisions_exist(house: &House) -> Vec<Finding> {
    let numbers: BTreeSet<&str> = records(house).iter().map(|(number, _)| *number).collect();
    let names: BTreeSet<&str> = house.files.iter().filter_map(|f| f.path.strip_prefix(ADR_FOLDER)).collect();
    let mut found = Vec::new();
    let may_name = |f: &&File| [".md", ".rs", ".toml", ".py"].iter().any(|e| f.path.ends_with(e));
    // The samples of the rules below name decisions that are not there.
    for file in house.files.iter().filter(may_name).filter(|f| !f.path.starts_with("tools/tidy/")) {
        for (number, line) in file.lines() {
            for mark in ["ADR ", "ADR-", "ADRs ", "adr/"] {
                for (at, _) in line.match_indices(mark) {
                    let rest = &line[at + mark.len()..];
                    let Some(adr) = rest.get(..4).filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else { continue };
                    let name: String =
                        rest.chars().take_while(|c| c.is_alphanumeric() || *c == '-' || *c == '.').collect();
                    if !numbers.contains(adr) {
                        found.push(file.finding(number, format!("ADR {adr} does not exist")));
                    } else if mark == "adr/" && name.ends_with(".md") && !names.contains(name.as_str()) {
                        found.push(file.finding(number, format!("docs/adr/{name} does not exist")));
                    }
                }
            }
        }
    }
    found
}

/// A decision record has its number, its status line and all headings, in order, and each says something.
pub fn decisions_follow_the_template(house: &House) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, file) in records(house) {
        let lines: Vec<&str> = file.text.lines().collect();
        if !number.bytes().all(|b| b.is_ascii_digit()) || number.len() != 4 {
            found.push(file.finding(1, "a decision record is named NNNN-title.md"));
            continue;
        }
        if !seen.insert(number) {
            found.push(file.finding(1, format!("the number {number} is taken")));
        }
        let title = lines.first().copied().unwrap_or_default();
        if !title.starts_with(&format!("# {number} ")) {
            found.push(file.finding(1, format!("the first line is `# {number} Title`")));
        }
        let status = lines.iter().skip(1).take_while(|l| !l.starts_with('#')).copied().collect::<Vec<_>>().join(" ");
        let complete = ["Status: ", "Guards: ", "Replaces: "].iter().all(|part| status.contains(part));
        if !complete {
            found.push(file.finding(2, "below the title stand `Status: `, `Guards: ` and `Replaces: `"));
        }
        let mut from = 0;
        for heading in ADR_HEADINGS {
            match lines.iter().skip(from).position(|l| l.starts_with(heading)) {
                None => found.push(file.finding(from + 1, format!("`{heading}` is missing, or not in its place"))),
                Some(at) => {
                    from += at + 1;
                    let empty = lines.get(from).is_none_or(|next| next.trim().is_empty())
                        && lines.get(from + 1).is_none_or(|next| next.is_empty() || next.starts_with('#'));
                    if lines[from - 1].trim() == *heading && empty {
                        found.push(file.finding(from, format!("`{heading}` says nothing")));
                    }
                }
            }
        }
    }
    found
}

/// Every test that a page names is there.
pub fn named_tests_exist(house: &House) -> Vec<Finding> {
    let tests = tests(house);
    let there = |name: &str| {
        if name.contains('.') || name.contains('/') {
            let ending = format!("/{name}");
            return house.files.iter().any(|f| f.path == name || f.path.ends_with(&ending));
        }
        tests.contains(name.trim_end_matches("()"))
    };
    let mut found = Vec::new();
    for file in house.markdown() {
        for (number, name) in named_tests(&file.text) {
            if !there(&name) {
                found.push(file.finding(number, format!("there is no test `{name}`")));
            }
        }
    }
    found
}

/// Every file that a page names between backticks is there: by its path, or by the end of it (`wal/record.rs`).
pub fn named_files_exist(house: &House) -> Vec<Finding> {
    const ENDINGS: &[&str] = &[".rs", ".py", ".md", "Cargo.toml", "deny.toml", "clippy.toml"];
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
    let mut found = Vec::new();
    for file in house.markdown().filter(|f| f.path != "CHANGELOG.md") {
        let mut fenced = false;
        for (number, line) in file.lines() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            for name in backticked(line) {
                let is_file = plain(&name) && ENDINGS.iter().any(|e| name.ends_with(e)) && !name.contains("NNNN");
                let ending = format!("/{name}");
                if is_file && !house.files.iter().any(|f| f.path == name || f.path.ends_with(&ending)) {
                    found.push(file.finding(number, format!("there is no file `{name}`")));
                }
            }
        }
    }
    found
}

/// Names of all test functions: Rust's under a test attribute, Python's `test_*`.
fn tests(house: &House) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let name_after = |line: &str, word: &str| -> Option<String> {
        let rest = line.trim_start().strip_prefix("async ").unwrap_or(line.trim_start()).strip_prefix(word)?;
        Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
    };
    for file in &house.files {
        if file.path.ends_with(".rs") {
            let mut attribute = false;
            for line in file.text.lines() {
                let line = line.trim_start();
                if line.starts_with("#[test]") || (line.starts_with("#[") && line.contains("::test")) {
                    attribute = true;
                }
                let line = line.strip_prefix("pub ").unwrap_or(line);
                if let Some(name) = name_after(line, "fn ") {
                    if attribute {
                        names.insert(name);
                    }
                    attribute = false;
                }
            }
        } else if file.path.ends_with(".py") {
            names.extend(file.text.lines().filter_map(|l| name_after(l, "def ")).filter(|n| n.starts_with("test_")));
        }
    }
    names
}

/// The tests that a page names, each with its line.
fn named_tests(text: &str) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    let mut column: Option<usize> = None;
    let mut fenced = false;
    let mut status = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let mut push = |names: Vec<String>| named.extend(names.into_iter().map(|n| (i + 1, n)));
        if line.trim_start().starts_with('|') {
            let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
            let heads = ["test", "tests", "test or adr", "its test"];
            match cells.iter().position(|c| heads.contains(&c.to_lowercase().as_str())) {
                Some(found) => column = Some(found),
                None => {
                    if let Some(cell) = column.and_then(|c| cells.get(c)) {
                        push(backticked(cell).into_iter().filter(|n| looks_like_a_test(n)).collect());
                    }
                }
            }
            continue;
        }
        column = None;
        // From `Status:` to the first heading of a decision record.
        status = line.starts_with("Status:") || (status && !line.starts_with('#'));
        if status {
            push(backticked(line));
            continue;
        }
        push(behind_the_word(line));
    }
    named
}

/// Names behind `test` or `tests`: `` tests `a`, `b` and `c` ``.
fn behind_the_word(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for mark in ["est `", "ests `", "est: `", "ests: `", "est file `", "est files `"] {
        for (at, _) in line.match_indices(mark) {
            let before = line[..at].chars().next_back();
            let word = before.is_some_and(|c| c == 't' || c == 'T')
                && !line[..at - 1].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '`');
            if !word {
                continue;
            }
            let mut rest = &line[at + mark.len() - 1..];
            while let Some(inner) = rest.strip_prefix('`') {
                let Some((name, after)) = inner.split_once('`') else { break };
                names.push(name.to_owned());
                rest = [", and ", ", ", " and ", " or "].iter().find_map(|s| after.strip_prefix(s)).unwrap_or("");
            }
        }
    }
    names.into_iter().filter(|n| looks_like_a_test(n)).collect()
}

/// A name in snake case with at least two words, or a file of code. Anything else between backticks is something else.
fn looks_like_a_test(name: &str) -> bool {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
    let file = [".rs", ".py", ".sh"].iter().any(|e| name.ends_with(e));
    let snake = name.contains('_') && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    plain && (file || snake)
}

fn backticked(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every dependency of the workspace has its line in docs/dependencies.md, and no line is left of one that is gone.
pub fn dependencies_have_a_reason(house: &House) -> Vec<Finding> {
    let (Some(manifest), Some(page)) = (house.file("Cargo.toml"), house.file("docs/dependencies.md")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut section = "";
    let mut names = BTreeSet::new();
    for (number, line) in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section == "[workspace.dependencies]"
            && let Some((name, _)) = line.split_once(" = ")
            && !name.starts_with('#')
            && !name.starts_with("camus-")
        {
            names.insert(name);
            if !page.text.lines().any(|l| l.starts_with(&format!("| `{name}` |"))) {
                found.push(manifest.finding(number, format!("`{name}` has no line in {}", page.path)));
            }
        }
    }
    for (number, line) in page.lines() {
        if let Some(name) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next())
            && !names.contains(name)
        {
            found.push(page.finding(number, format!("`{name}` is no dependency")));
        }
    }
    found
}

/// What a page links to inside the house is there.
pub fn links_lead_somewhere(house: &House) -> Vec<Finding> {
    let folders: BTreeSet<&str> =
        house.files.iter().flat_map(|f| f.path.match_indices('/').map(|(at, _)| &f.path[..at])).collect();
    let mut found = Vec::new();
    for file in house.markdown() {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in file.lines() {
            for (at, _) in line.match_indices("](") {
                let target = line[at + 2..].split([')', '#']).next().unwrap_or_default();
                if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
                for part in target.split('/') {
                    match part {
                        "" | "." => {}
                        ".." => drop(parts.pop()),
                        part => parts.push(part),
                    }
                }
                let path = parts.join("/");
                let is_there = house.file(&path).is_some() || house.others.contains(&path);
                if !is_there && !folders.contains(path.as_str()) {
                    found.push(file.finding(number, format!("the link `{target}` leads nowhere")));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(found: Vec<Finding>, line: usize) {
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [line], "{found:?}");
    }

    const RECORD: &str = "# 0002 Block groups\nStatus: accepted.  Guards: `wal_golden.rs`.  Replaces: none.\n\
                          ## Context\na\n\
                          ## Decision\na\n## Cost\na\n## Not done\na\n## Rejected\na\n";

    #[test]
    fn a_decision_that_does_not_exist_is_found() {
        let house = || House::of("docs/adr/0002-block-groups.md", RECORD);
        one(named_decisions_exist(&house().with("docs/a.md", "see\nADR 0003 for this")), 2);
        one(named_decisions_exist(&house().with("net/src/a.rs", "/// Found by a probe (docs/adr/0004).")), 1);
        one(named_decisions_exist(&house().with("README.md", "docs/adr/0002-other.md")), 1);
        let named = "ADR 0002, docs/adr/0002, docs/adr/0002-block-groups.md, docs/adr/NNNN-title.md";
        assert_eq!(named_decisions_exist(&house().with("README.md", named)), []);
    }

    #[test]
    fn a_decision_outside_the_template_is_found() {
        let record = |text: &str| decisions_follow_the_template(&House::of("docs/adr/0002-block-groups.md", text));
        assert_eq!(record(RECORD), []);
        one(record(&RECORD.replace("# 0002", "# 0003")), 1);
        one(record(&RECORD.replace("Guards", "Tests")), 2);
        one(record(&RECORD.replace("## Cost\na\n", "")), 7 - 1);
        one(record(&RECORD.replace("## Not done\na\n", "## Not done\n\n")), 9);
        let twice = House::of("docs/adr/0002-a.md", RECORD).with("docs/adr/0002-b.md", RECORD);
        one(decisions_follow_the_template(&twice), 1);
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let house = |page: &str| {
            House::of("docs/guarantees.md", page)
                .with("tests/groups.rs", "#[test]\nfn commits_survive_a_crash() {}\nfn a_helper() {}\n")
                .with("tests/wire/test_a.py", "def test_it_holds():\n    pass\n")
        };
        one(named_tests_exist(&house("x\nTest `no_such_test`.")), 2);
        one(named_tests_exist(&house("the tests `commits_survive_a_crash` and `no_such_test`")), 1);
        one(named_tests_exist(&house("Test file `txn.rs`: begin, abort")), 1);
        one(named_tests_exist(&house("Test: `a_helper`")), 1);
        one(named_tests_exist(&house("Status: accepted.  Guards: `gone.rs`, `groups.rs`.  Replaces: none.")), 1);
        one(named_tests_exist(&house("| claim | test |\n|---|---|\n| a `x_y` | `not_there` |")), 3);
        let good = "Test `commits_survive_a_crash`. Test file `groups.rs`. Tests `test_it_holds`, `tests/groups.rs`.\n\
                    the latest `no_test_here` and contest `neither_here`; run the test `--flag`\n\
                    | claim | tests |\n|---|---|\n| a `x_y` | `commits_survive_a_crash`, ADR 0005 |\n\
                    ```\nTest `not_in_a_listing`\n```\n";
        assert_eq!(named_tests_exist(&house(good)), []);
    }

    #[test]
    fn a_file_that_does_not_exist_is_found() {
        let house = |page: &str| House::of("docs/a.md", page).with("engine/src/wal/record.rs", "");
        one(named_files_exist(&house("x\nsee `wal/gone.rs`")), 2);
        one(named_files_exist(&house("`cord.rs`")), 1);
        let good = "`wal/record.rs`, `record.rs`, `docs/adr/NNNN-title.md`, `*/golden/*.rs`\n```\n`gone.rs`\n```";
        assert_eq!(named_files_exist(&house(good)), []);
    }

    #[test]
    fn a_dependency_without_a_reason_or_a_reason_without_one_is_found() {
        let manifest = "[workspace.dependencies]\n# why\nbytes = \"1\"\nslab = \"0.4\"\n\
                        camus-net = { path = \"net\" }\n[profile.dev]\nx = 1\n";
        let house = |page: &str| House::of("Cargo.toml", manifest).with("docs/dependencies.md", page);
        one(dependencies_have_a_reason(&house("| `bytes` | shared buffers |")), 4);
        one(dependencies_have_a_reason(&house("| `bytes` | a |\n| `slab` | b |\n| `gone` | c |")), 3);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let house = |page: &str| House::of("docs/a.md", page).with("docs/adr/0001-x.md", "").with("README.md", "");
        one(links_lead_somewhere(&house("[x](adr/0002-x.md)")), 1);
        let good = "[x](adr/0001-x.md#cost) [y](../README.md) [z](adr) [w](https://example.org) [v](#here)";
        assert_eq!(links_lead_somewhere(&house(good)), []);
    }
}
