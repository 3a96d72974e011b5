//! The seeds that are kept: inputs that were a finding once, or that a known hazard is made of. One a line,
//! `name = bytes in hex`; blanks between them are for the reader, and what begins with `#` says what it is.

/// The name and the bytes of each.
///
/// # Panics
/// If a line is none of the above: the file is ours.
pub fn parse(text: &'static str) -> Vec<(&'static str, Vec<u8>)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| entry(line).unwrap_or_else(|| panic!("not a line of a corpus: {line}"))).collect()
}

fn entry(line: &'static str) -> Option<(&'static str, Vec<u8>)> {
    let (name, hex) = line.split_once('=')?;
    let digits: Vec<u8> =
        hex.chars().filter(|c| !c.is_whitespace()).map(|c| Some(c.to_digit(16)? as u8)).collect::<Option<_>>()?;
    let whole = digits.len().is_multiple_of(2);
    whole.then(|| (name.trim(), digits.chunks(2).map(|pair| (pair[0] << 4) | pair[1]).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn lines_are_names_and_bytes() {
        let read = parse("# what\n\na = 00 fF\n b=\n");
        assert_eq!(read, [("a", vec![0, 255]), ("b", vec![])]);
        for wrong in ["a", "a = 0", "a = 0g"] {
            assert_eq!(entry(wrong), None, "{wrong}");
        }
    }

    /// A line that can not be read would end every run of its target at its start.
    #[test]
    fn every_corpus_can_be_read_and_names_each_input_once() {
        for target in crate::TARGETS {
            let read = parse(target.corpus);
            let names: BTreeSet<&str> = read.iter().map(|(name, _)| *name).collect();
            assert!(!read.is_empty() && names.len() == read.len(), "{}", target.name);
        }
    }
}
