//! The rules on planted bugs: mistakes in production code, behind a feature, for the simulator to find. Nothing that
//! ships can have them, and each is where the list says.

use crate::house::{File, Finding, House};
use crate::source::{has_word, lines};

const FEATURE: &str = "planted";
const LIST: &str = "engine/src/planted.rs";
/// Rooms with mistakes in them, and whose manifests hand the feature on.
const ROOMS: &[&str] = &["engine/", "meta/", "net/"];
/// The only one that turns it on.
const SIMULATOR: &str = "tests/sim/";
/// The binary that ships.
const SHIPPED: &str = "tools/camus/";

/// No default, no dependency, no other feature and no command turns the feature on; the binary that ships can not name
/// it.
pub fn planted_bugs_never_ship(house: &House) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &house.files {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        if name == "Cargo.toml" {
            found.extend(manifest(file));
        } else if file.path.starts_with(SHIPPED) && file.path.ends_with(".rs") {
            let named = file.lines().filter(|(_, line)| has_word(line, FEATURE));
            found.extend(named.map(|(n, _)| file.finding(n, "what ships does not know of planted bugs")));
        } else if !file.path.ends_with(".rs") && !file.path.ends_with(".md") {
            found.extend(commands(file));
        }
    }
    found
}

/// A manifest names the feature only where it is made, or where the simulator asks for it.
fn manifest(file: &File) -> Vec<Finding> {
    let of = |room: &&str| file.path == format!("{room}Cargo.toml");
    let may = ROOMS.iter().chain([&SIMULATOR]).any(of);
    let mut found = Vec::new();
    let mut section = "";
    for (number, line) in file.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.starts_with('[') && line.ends_with(']') && !line.contains('"') {
            section = line;
        }
        if !has_word(line, FEATURE) {
            continue;
        }
        let is_made = section == "[features]" && line.split('=').next().is_some_and(|key| key.trim() == FEATURE);
        if !(may && is_made) {
            found
                .push(file.finding(number, "planted bugs are turned on by the simulator's feature of that name alone"));
        }
    }
    found
}

/// A script builds the simulator with the feature and nothing else, and nothing with all features. cargo-deny builds
/// nothing.
fn commands(file: &File) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        let turned_on = has_word(line, FEATURE) && line.contains("features");
        if turned_on && !line.contains("-p camus-sim ") {
            found.push(file.finding(number, "only camus-sim is built with planted bugs"));
        }
        if line.contains("--all-features") && !line.contains("deny") {
            found.push(file.finding(number, "a build with all features has planted bugs"));
        }
    }
    found
}

/// Each mistake on the list is made somewhere; whatever the feature adds in these rooms is made by one on the list.
pub fn planted_bugs_are_where_the_list_says(house: &House) -> Vec<Finding> {
    let Some(list) = house.file(LIST) else { return vec![] };
    let mut found = Vec::new();
    let in_rooms = |file: &&File| ROOMS.iter().any(|room| file.path.starts_with(&format!("{room}src/")));
    let rooms: Vec<&File> = house.rust().filter(in_rooms).filter(|file| file.path != LIST).collect();
    let bugs = bugs(list);
    for (number, bug) in &bugs {
        let site = format!("Bug::{bug}");
        if !rooms.iter().any(|file| lines(&file.text).iter().any(|line| has_word(&line.code, &site))) {
            found.push(list.finding(*number, format!("{bug} is made nowhere")));
        }
    }
    for file in rooms {
        let code = lines(&file.text);
        for (number, line) in file.lines() {
            if !line.trim_start().starts_with(&format!("#[cfg(feature = \"{FEATURE}\")]")) {
                continue;
            }
            // Behind it: an import, a module, or a function that a site calls; else the site itself.
            let behind: Vec<&str> = code[number..].iter().take(4).map(|line| line.code.trim()).collect();
            let first = behind.first().copied().unwrap_or_default();
            let is_item = ["use ", "pub mod ", "fn ", "pub fn "].iter().any(|start| first.starts_with(start));
            let names = |code: &&str| bugs.iter().any(|(_, bug)| has_word(code, &format!("Bug::{bug}")));
            if !is_item && !behind.iter().any(names) {
                found.push(file.finding(number, "a planted bug that is not on the list"));
            }
        }
    }
    found
}

/// The variants of the list, with their lines.
fn bugs(list: &File) -> Vec<(usize, String)> {
    let inside = list.lines().skip_while(|(_, line)| !line.starts_with("pub enum Bug {")).skip(1);
    let variants = inside.take_while(|(_, line)| !line.starts_with('}'));
    variants.map(|(number, line)| (number, line.trim().trim_end_matches(',').to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(found: Vec<Finding>, line: usize) {
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [line], "{found:?}");
    }

    #[test]
    fn a_manifest_that_turns_planted_bugs_on_is_found() {
        let ships = |path: &str, text: &str| planted_bugs_never_ship(&House::of(path, text));
        let made = "[features]\n# planted\nplanted = [\"camus-engine/planted\"]\n";
        assert_eq!(ships("net/Cargo.toml", made), []);
        assert_eq!(ships("tests/sim/Cargo.toml", made), []);
        one(ships("tools/camus/Cargo.toml", made), 3);
        one(ships("tests/blackbox-rs/Cargo.toml", made), 3);
        one(ships("net/Cargo.toml", "[features]\ndefault = [\"planted\"]\n"), 2);
        one(ships("net/Cargo.toml", "[features]\nother = [\"camus-engine/planted\"]\n"), 2);
        one(ships("tests/sim/Cargo.toml", "[dependencies]\ncamus-net = { path = \"x\", features = [\"planted\"] }"), 2);
        one(ships("Cargo.toml", "[workspace.dependencies]\ncamus-engine = { features = [\n  \"planted\",\n] }\n"), 3);
    }

    #[test]
    fn a_command_that_builds_planted_bugs_is_found() {
        let ships = |path: &str, text: &str| planted_bugs_never_ship(&House::of(path, text));
        assert_eq!(ships("tests/run", "cargo run -p camus-sim --features planted -- planted"), []);
        assert_eq!(ships("tests/run", "cargo run --release -p camus-sim -- planted"), []);
        assert_eq!(ships("tests/run", "\"$deny\" --workspace --all-features check"), []);
        one(ships(".ci/run", "cargo build --release --features planted"), 1);
        one(ships(".ci/run", "\ncargo build --release --all-features"), 2);
        one(ships("x.yml", "features: planted"), 1);
        one(ships("tools/camus/src/serve.rs", "fn a() {}\n#[cfg(feature = \"planted\")]"), 2);
    }

    #[test]
    fn a_planted_bug_without_a_site_and_a_site_without_its_bug_are_found() {
        let list = "pub enum Bug {\n    A,\n    B,\n}\n";
        let site = "#[cfg(feature = \"planted\")]\nlet x = if is(Bug::A) { 1 } else { x };\n";
        let house = House::of(LIST, list).with("engine/src/a.rs", site);
        one(planted_bugs_are_where_the_list_says(&house), 3);
        let both = house.with("net/src/b.rs", "// Bug::C\n#[cfg(feature = \"planted\")]\nif is(Bug::B) {}\n");
        assert_eq!(planted_bugs_are_where_the_list_says(&both), []);
        let stray = both.with(
            "meta/src/c.rs",
            "#[cfg(feature = \"planted\")]\nuse x::is;\n\
            #[cfg(feature = \"planted\")]\nlet x = 2;\n",
        );
        one(planted_bugs_are_where_the_list_says(&stray), 3);
    }
}
