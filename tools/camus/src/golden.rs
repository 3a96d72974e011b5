//! Golden files: a text that is an interface lies in `golden/`, and a test fails when the program says something else.

use std::path::Path;

/// Compares with `golden/{name}`. To accept a change on purpose: `CAMUS_TEST_BLESS=1 cargo test -p camus`.
pub fn assert_golden(name: &str, text: &str) {
    assert_same(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden").join(name), text);
}

/// The same for a file anywhere in the house, given from its root.
pub fn assert_house_file(path: &str, text: &str) {
    assert_same(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path), text);
}

/// The same for a part of a page: what stands between the marks of the command that makes it.
pub fn assert_house_part(path: &str, by: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let (begin, end) = (format!("<!-- made by: {by} -->\n"), format!("<!-- end of what {by} made -->\n"));
    let place = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let (before, (_, after)) = place.expect("the page has both marks");
    assert_same(&path, &format!("{before}{begin}{}\n{end}{after}", text.trim_end()));
}

fn assert_same(path: &Path, text: &str) {
    let text = format!("{}\n", text.trim_end());
    if std::env::var_os("CAMUS_TEST_BLESS").is_some() {
        std::fs::write(path, &text).expect("the golden file is writable");
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    for (number, (is, was)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(is, was, "{}:{} differs (CAMUS_TEST_BLESS=1 accepts it)", path.display(), number + 1);
    }
    assert_eq!(text.lines().count(), golden.lines().count(), "{} is shorter or longer", path.display());
}
