//! The one place that prints. Answers go to standard output, everything else to standard error.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use crate::errors::{self, UserError};
use std::io::Write;

/// An answer, on standard output. A reader that has gone away (`camus wal dump | head`) ends the process quietly; an
/// answer that can not be written (a full disk) is an error: whoever takes status 0 for a result would have none.
pub fn line(text: impl std::fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    if let Err(e) = writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        let status = match e.kind() {
            std::io::ErrorKind::BrokenPipe => 0,
            _ => {
                let unwritten = errors::stdout_unwritten(&e);
                error(&unwritten);
                unwritten.status
            }
        };
        #[allow(clippy::disallowed_methods)] // nobody reads: there is nothing left to do, and nothing to clean up
        std::process::exit(status.into());
    }
}

/// An error in its five parts, on standard error.
pub fn error(error: &UserError) {
    eprintln!("{error}");
}

/// What a person should know while it goes on, on standard error.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// A line on the terminal's standard error that the next one overwrites. The caller knows that it is a terminal.
pub fn progress(text: &str) {
    eprint!("\r\x1b[2K{text}");
}

/// Where a panic came from, if RUST_BACKTRACE asked for it.
pub fn backtrace(trace: &std::backtrace::Backtrace) {
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        eprintln!("{trace}");
    }
}

/// Columns padded to their widest cell, two blanks between them; the first row is the header.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.pop();
    text
}

/// A count of bytes as a person reads it: whole units where it divides, one decimal otherwise.
pub fn bytes(count: u64) -> String {
    for (unit, size) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if count >= size {
            return match count.is_multiple_of(size) {
                true => format!("{} {unit}", count / size),
                false => format!("{:.1} {unit}", count as f64 / size as f64),
            };
        }
    }
    format!("{count} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up_and_has_no_trailing_blanks() {
        let rows =
            [vec!["name".into(), "n".into()], vec!["a-long-one".into(), "12".into()], vec!["b".into(), String::new()]];
        assert_eq!(table(&rows), "name        n\na-long-one  12\nb");
    }

    #[test]
    fn bytes_are_written_in_their_own_unit() {
        assert_eq!(bytes(8 << 30), "8 GiB");
        assert_eq!(bytes(1_048_588), "1.0 MiB");
        assert_eq!(bytes(17), "17 bytes");
    }
}
