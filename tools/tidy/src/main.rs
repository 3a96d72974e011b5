//! `cargo run -p camus-tidy`: wraps comments that do not fit into 120 columns, in place. The rules are `cargo test`.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use camus_tidy::{House, wrap};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let root = Path::new(&root);
    let house = match House::read(root) {
        Ok(house) => house,
        Err(error) => {
            eprintln!("{}: {error}", root.display());
            return ExitCode::FAILURE;
        }
    };
    for file in house.rust() {
        let wrapped = wrap::comments(&file.text);
        if wrapped.lines().eq(file.text.lines()) {
            continue;
        }
        match std::fs::write(root.join(&file.path), wrapped) {
            Ok(()) => println!("wrapped {}", file.path),
            Err(error) => {
                eprintln!("{}: {error}", file.path);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
