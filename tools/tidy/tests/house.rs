//! Holds the house to its rules. Each finding is printed as `file:line: what`.

use camus_tidy::{Finding, House, docs, planted, rules};
use std::path::{Path, PathBuf};

fn house() -> House {
    let root = match std::env::var_os("CAMUS_TEST_TIDY_ROOT") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    };
    House::read(&root).expect("the house can be read")
}

fn hold(rule: fn(&House) -> Vec<Finding>) {
    let mut found = rule(&house());
    found.sort();
    let list: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} findings:\n{}", list.len(), list.join("\n"));
}

/// If this fails, no rule has anything to look at, and all of them hold.
#[test]
fn the_house_is_read_whole() {
    let house = house();
    for path in ["Cargo.toml", "engine/src/lib.rs", "net/src/lib.rs", "tools/tidy/src/lib.rs"] {
        assert!(house.file(path).is_some(), "{path} was not read");
    }
    assert!(!house.files.iter().any(|f| f.path.starts_with("target/")));
}

#[test]
fn no_unwrap_outside_tests() {
    hold(rules::no_unwrap);
}

#[test]
fn unsafe_stays_in_its_rooms_with_a_proof() {
    hold(rules::unsafe_in_its_rooms);
}

#[test]
fn runtimes_stay_behind_their_seam() {
    hold(rules::runtimes_behind_their_seam);
}

#[test]
fn rooms_import_downwards_only() {
    hold(rules::rooms_import_downwards);
}

#[test]
fn every_room_says_what_it_is_for() {
    hold(rules::rooms_say_what_they_are_for);
}

#[test]
fn lines_fit_on_the_screen() {
    hold(rules::lines_fit);
}

#[test]
fn nothing_is_left_open_and_no_test_is_off() {
    hold(rules::nothing_is_left_open);
}

#[test]
fn no_file_names_a_path_of_a_machine() {
    hold(rules::no_path_of_a_machine);
}

#[test]
fn decisions_that_are_named_exist() {
    hold(docs::named_decisions_exist);
}

#[test]
fn decisions_follow_their_template() {
    hold(docs::decisions_follow_the_template);
}

#[test]
fn tests_that_pages_name_exist() {
    hold(docs::named_tests_exist);
}

#[test]
fn files_that_pages_name_exist() {
    hold(docs::named_files_exist);
}

#[test]
fn dependencies_have_their_reason() {
    hold(docs::dependencies_have_a_reason);
}

#[test]
fn links_lead_somewhere() {
    hold(docs::links_lead_somewhere);
}

/// If this fails, a release can lose what it acknowledged, on purpose.
#[test]
fn no_build_that_ships_has_a_planted_bug() {
    hold(planted::planted_bugs_never_ship);
}

#[test]
fn each_planted_bug_is_made_and_nothing_else_is() {
    hold(planted::planted_bugs_are_where_the_list_says);
}
