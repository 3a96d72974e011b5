//! Is the runner itself any good? Each planted mistake must be found, said, kept and found again from what was kept;
//! and where there is none, nothing may be found.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fuzz(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_camus-fuzz")).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

fn folder(target: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-findings").join(target);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The only file that a run left.
fn kept(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// Runs a target with a mistake; the file of the input that found it.
fn caught(target: &str, how: &str) -> PathBuf {
    let folder = folder(target);
    let findings = folder.to_str().unwrap();
    let run = ["run", "--target", target, "--seconds", "20", "--input-seconds", "2", "--findings", findings];
    let output = fuzz(&run);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let file = kept(&folder);
    for part in [how, target, "of seed 1", file.to_str().unwrap()] {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    assert_eq!(std::fs::read(&file).unwrap()[0], 0xa7, "an input that makes the mistake");
    file
}

/// As [`caught`], and the command that is printed finds it again.
fn caught_and_again(target: &str, how: &str) {
    let file = caught(target, how);
    let output = fuzz(&["replay", target, file.to_str().unwrap()]);
    assert!(!output.status.success(), "{}", said(&output));
}

#[test]
fn a_panic_is_found() {
    caught_and_again("planted-panic", "this panic is planted");
}

#[test]
fn a_hang_is_found() {
    caught("planted-hang", "takes longer than 2s");
}

#[test]
fn memory_out_of_proportion_to_the_input_is_found() {
    caught_and_again("planted-allocation", "bytes of memory");
}

/// Nothing is ever written to it, so no watch over resident memory would see it.
#[test]
fn memory_that_is_only_announced_is_found() {
    caught_and_again("planted-announced", "ended by the system");
}

#[test]
fn more_memory_than_the_process_may_have_is_found() {
    caught_and_again("planted-memory", "ended by the system");
}

#[test]
fn recursion_without_an_end_is_found() {
    caught_and_again("planted-recursion", "ended by the system");
}

/// If this fails, findings are made by the runner.
#[test]
fn where_there_is_nothing_nothing_is_found() {
    let folder = folder("planted-nothing");
    let findings = folder.to_str().unwrap();
    let output = fuzz(&["run", "--target", "planted-nothing", "--seconds", "1", "--findings", findings]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

/// Every input of the corpus and the first ones that are made, of every target: what each run begins with.
#[test]
fn no_target_finds_anything_in_what_every_run_begins_with() {
    let folder = folder("all");
    let output = fuzz(&["run", "--seconds", "0", "--findings", folder.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn what_can_not_be_understood_is_refused() {
    for args in [&["run", "--target", "no-such"][..], &["run", "--seconds", "x"], &["run", "--frob", "1"], &[]] {
        assert_eq!(fuzz(args).status.code(), Some(2), "{args:?}");
    }
}
