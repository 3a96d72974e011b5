//! The files of the house, as the rules see them.

use std::fmt;
use std::io;
use std::path::Path;

/// A text file; its path is relative to the root, with `/`.
#[derive(Clone, Debug)]
pub struct File {
    pub path: String,
    pub text: String,
}

/// Every text file of the house, in the order of their paths.
#[derive(Clone, Debug, Default)]
pub struct House {
    pub files: Vec<File>,
    /// Paths of what is there and is not read: pictures.
    pub others: Vec<String>,
}

/// Something that a rule does not allow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    pub path: String,
    /// From 1.
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// What is made by building and running, and is no part of the house.
const SKIPPED: &[&str] = &["target", "node_modules", "__pycache__", "camus-data", "proptest-regressions"];
/// Hidden folders that are part of it.
const HIDDEN: &[&str] = &[".ci", ".cargo", ".config"];
/// Kinds of files that are read; scripts without an ending are read as well.
const ENDINGS: &[&str] =
    &["rs", "md", "toml", "py", "sh", "lock", "yml", "yaml", "json", "go", "java", "js", "txt", "ini", "c"];

impl House {
    /// Reads the house that begins at this folder.
    pub fn read(root: &Path) -> io::Result<House> {
        let mut house = House::default();
        let mut open = vec![String::new()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    let hidden = name.starts_with('.') && !HIDDEN.contains(&name.as_str());
                    if !hidden && !SKIPPED.contains(&name.as_str()) {
                        open.push(path);
                    }
                } else if kind.is_file() {
                    match std::fs::read_to_string(entry.path()) {
                        Ok(text) if is_text(&name) => house.files.push(File { path, text }),
                        _ => house.others.push(path),
                    }
                }
            }
        }
        house.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(house)
    }

    /// A house of one file, for samples.
    pub fn of(path: &str, text: &str) -> House {
        House { files: vec![File { path: path.to_owned(), text: text.to_owned() }], others: vec![] }
    }

    /// The same house with one more file.
    pub fn with(mut self, path: &str, text: &str) -> House {
        self.files.push(File { path: path.to_owned(), text: text.to_owned() });
        self
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|f| f.path.ends_with(".rs"))
    }

    pub fn markdown(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|f| f.path.ends_with(".md"))
    }

    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }
}

fn is_text(name: &str) -> bool {
    match name.rsplit_once('.') {
        None => true,
        Some((_, ending)) => ENDINGS.contains(&ending),
    }
}

impl File {
    /// The lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    pub fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Whether the whole file is a test.
    pub fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || name == "tests.rs"
            || name.ends_with("_tests.rs")
    }
}
