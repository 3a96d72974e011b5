//! The rules on code.

use crate::house::{File, Finding, House};
use crate::source::{Line, has_word, lines};
use std::collections::BTreeSet;

/// Columns of a line, in characters.
pub const COLUMNS_MAX: usize = 120;

/// Applies `broken` to every line of code of the chosen Rust files; it returns what is wrong with the line.
fn each_line(
    house: &House,
    chosen: impl Fn(&File) -> bool,
    broken: impl Fn(&File, &Line) -> Option<String>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in house.rust().filter(|f| chosen(f)) {
        for (i, line) in lines(&file.text).iter().enumerate() {
            if let Some(what) = broken(file, line) {
                found.push(file.finding(i + 1, what));
            }
        }
    }
    found
}

fn in_any(path: &str, rooms: &[&str]) -> bool {
    rooms.iter().any(|room| path.starts_with(room))
}

/// Files whose module is declared as a test: `#[cfg(test)] mod simulated;`.
fn test_modules(house: &House) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in house.rust() {
        let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let folder = match name {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
            name => format!("{folder}/{}", name.trim_end_matches(".rs")),
        };
        for line in lines(&file.text).iter().filter(|l| l.test) {
            let words = line.code.trim().trim_start_matches("#[cfg(test)]").trim().trim_start_matches("pub ");
            if let Some(name) = words.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) {
                found.extend([format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]);
            }
        }
    }
    found
}

/// A panic that says nothing: outside tests `expect` tells why it holds.
pub fn no_unwrap(house: &House) -> Vec<Finding> {
    let tests = test_modules(house);
    each_line(
        house,
        |file| !file.is_test() && !tests.contains(&file.path),
        |_, line| {
            (!line.test && line.code.contains(".unwrap()"))
                .then(|| "`unwrap()` outside tests: say with `expect` why it holds, or return the error".to_owned())
        },
    )
}

/// `unsafe` has three rooms, and in the third it is there to read an rkyv archive in place. The seam's tests set limits
/// of their process with it.
pub fn unsafe_in_its_rooms(house: &House) -> Vec<Finding> {
    const ROOMS: &[&str] = &["engine/src/io/", "engine/src/rt/", "engine/tests/"];
    let mut found = each_line(
        house,
        |_| true,
        |file, line| {
            let wal = file.path.starts_with("engine/src/wal/") && file.text.contains("rkyv");
            (has_word(&line.code, "unsafe") && !in_any(&file.path, ROOMS) && !wal).then(|| {
                "`unsafe` outside engine/src/io, engine/src/rt and the rkyv access in engine/src/wal".to_owned()
            })
        },
    );
    // Where it is allowed, each has its proof within the lines above (clippy asks for it as well, where it sees it).
    for file in house.rust().filter(|f| f.path.starts_with("engine/")) {
        let texts: Vec<&str> = file.text.lines().collect();
        for (i, line) in lines(&file.text).iter().enumerate() {
            let block =
                has_word(&line.code, "unsafe") && (line.code.contains("unsafe {") || line.code.contains("unsafe impl"));
            let proven = texts[i.saturating_sub(12)..=i.min(texts.len() - 1)].iter().any(|t| t.contains("SAFETY:"));
            if block && !proven {
                found.push(file.finding(i + 1, "`unsafe` without a `// SAFETY:` proof above it"));
            }
        }
    }
    found
}

/// No runtime's types are seen outside the file of its shell: the engine must not know what moves its bytes.
pub fn runtimes_behind_their_seam(house: &House) -> Vec<Finding> {
    const RUNTIMES: &[&str] = &["io_uring", "glommio", "polling", "tokio", "compio", "monoio"];
    const SEAM: &[&str] = &["engine/src/rt/", "engine/src/io/"];
    const HOMES: &[(&str, &[&str])] = &[
        ("io_uring", &["engine/src/rt/uring.rs", "engine/src/rt/glommio.rs", "engine/src/io/"]),
        ("glommio", &["engine/src/rt/glommio.rs"]),
        ("polling", &["engine/src/rt/poll.rs"]),
    ];
    let at_home = |file: &File, name: &str| HOMES.iter().any(|(of, files)| *of == name && in_any(&file.path, files));
    each_line(
        house,
        |file| in_any(&file.path, &["engine/", "meta/", "net/"]),
        |file, line| {
            let name = RUNTIMES.iter().find(|name| {
                // A module of ours may be called as the runtime that it is about.
                let foreign = line.code.replace(&format!("super::{name}"), "");
                has_word(&foreign, name) && (foreign.contains(&format!("{name}::")) || foreign.contains("use "))
            })?;
            if !in_any(&file.path, SEAM) {
                return Some(format!("`{name}` outside engine/src/rt and engine/src/io: ask through the seam"));
            }
            (!at_home(file, name)).then(|| format!("`{name}` outside the file of its shell: nobody else knows it"))
        },
    )
}

/// engine knows neither net nor meta; meta knows not net.
pub fn rooms_import_downwards(house: &House) -> Vec<Finding> {
    const BANNED: &[(&str, &[&str])] =
        &[("engine/", &["camus_net", "camus_meta", "kafka_protocol"]), ("meta/", &["camus_net", "kafka_protocol"])];
    let mut found = each_line(
        house,
        |_| true,
        |file, line| {
            let (_, banned) = BANNED.iter().find(|(room, _)| file.path.starts_with(room))?;
            banned.iter().find(|name| has_word(&line.code, name)).map(|name| format!("`{name}` must not be known here"))
        },
    );
    for (room, banned) in BANNED {
        let Some(manifest) = house.file(&format!("{room}Cargo.toml")) else { continue };
        for (number, line) in manifest.lines() {
            if let Some(name) = banned.iter().find(|name| line.trim_start().starts_with(&name.replace('_', "-"))) {
                found.push(manifest.finding(number, format!("`{name}` must not be known here")));
            }
        }
    }
    found
}

/// A room opens with what it is for.
pub fn rooms_say_what_they_are_for(house: &House) -> Vec<Finding> {
    let is_door = |file: &&File| {
        let name = file.path.rsplit('/').next().unwrap_or_default();
        ["mod.rs", "lib.rs", "main.rs"].contains(&name)
    };
    let says = |file: &File| {
        let first = file.text.lines().next().unwrap_or_default();
        first.strip_prefix("//!").is_some_and(|purpose| purpose.trim().len() >= 20)
    };
    house
        .rust()
        .filter(is_door)
        .filter(|file| !says(file))
        .map(|file| file.finding(1, "the first line of a room is `//!` and what the room is for"))
        .collect()
}

/// Lines fit beside each other on a screen. In documents, tables and lines with an address are as long as they are.
pub fn lines_fit(house: &House) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &house.files {
        let document = file.path.ends_with(".md");
        let script = !file.path.rsplit('/').next().unwrap_or_default().contains('.') && file.text.starts_with("#!");
        let code = [".rs", ".py", ".sh"].iter().any(|e| file.path.ends_with(e));
        if !(document || script || code) {
            continue;
        }
        for (number, line) in file.lines() {
            let columns = line.chars().count();
            let whole = ["|", "Status: "].iter().any(|start| line.trim_start().starts_with(start));
            let may = line.contains("://") || (document && whole);
            if columns > COLUMNS_MAX && !may {
                found.push(file.finding(number, format!("{columns} columns, {COLUMNS_MAX} fit")));
            }
        }
    }
    found
}

/// Nothing is left to do in the code, and no test is switched off. What is no test but needs the test runner may be
/// left out of a run, if its reason says which of these it is.
pub fn nothing_is_left_open(house: &House) -> Vec<Finding> {
    const NO_TESTS: &[&str] = &["a child process of", "writes ", "prints "];
    let mut found = each_line(
        house,
        |_| true,
        |_, line| {
            ["todo!", "unimplemented!", "dbg!"]
                .iter()
                .find(|mark| has_word(&line.code, mark.trim_end_matches('!')) && line.code.contains(*mark))
                .map(|mark| format!("`{mark}` is left in the code"))
        },
    );
    for file in house.rust() {
        let code = lines(&file.text);
        for (number, line) in file.lines() {
            let ignored = code.get(number - 1).is_some_and(|l| l.code.trim_start().starts_with("#[ignore"));
            let reason = line.split('"').nth(1).unwrap_or_default();
            if ignored && !NO_TESTS.iter().any(|start| reason.starts_with(start)) {
                found.push(file.finding(number, "a test that is switched off defends nothing"));
            }
        }
    }
    found
}

/// Nothing in the house depends on the machine it was written on.
pub fn no_path_of_a_machine(house: &House) -> Vec<Finding> {
    // Written in two parts, so that this file does not find itself.
    let places =
        [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Use", "rs/"], ["artif", "actory"]].map(|p| p.concat());
    let mut found = Vec::new();
    for file in &house.files {
        for (number, line) in file.lines() {
            for place in &places {
                if let Some(at) = line.find(place.as_str()) {
                    // What is behind a host or in the middle of a path is no path of a machine.
                    let before = line[..at].chars().next_back();
                    if !before.is_some_and(|c| c.is_alphanumeric() || "._-}$/".contains(c)) {
                        found.push(file.finding(number, format!("`{place}`: a path or host of one machine")));
                    }
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

    #[test]
    fn an_unwrap_outside_tests_is_found() {
        let text = "fn a() {\n    b().unwrap();\n}\n#[cfg(test)]\nmod tests {\n    fn c() { d().unwrap(); }\n}\n";
        one(no_unwrap(&House::of("net/src/a.rs", text)), 2);
        assert_eq!(no_unwrap(&House::of("net/tests/a.rs", text)), []);
        let room =
            House::of("net/src/x/mod.rs", "mod b;\n#[cfg(test)]\nmod a;\n").with("net/src/x/a.rs", "b().unwrap()");
        assert_eq!(no_unwrap(&room.clone()), [], "a module of tests");
        one(no_unwrap(&room.with("net/src/x/b.rs", "b().unwrap()")), 1);
        assert_eq!(no_unwrap(&House::of("net/src/a.rs", "// b().unwrap()\nlet a = \".unwrap()\";")), []);
    }

    #[test]
    fn unsafe_outside_its_rooms_or_without_proof_is_found() {
        let bare = "fn a() {\n    unsafe { b() }\n}\n";
        let proven = "fn a() {\n    // SAFETY: b is sound\n    unsafe { b() }\n}\n";
        one(unsafe_in_its_rooms(&House::of("net/src/a.rs", proven)), 3);
        one(unsafe_in_its_rooms(&House::of("engine/src/io/a.rs", bare)), 2);
        one(unsafe_in_its_rooms(&House::of("engine/src/wal/a.rs", proven)), 3);
        assert_eq!(unsafe_in_its_rooms(&House::of("engine/src/rt/a.rs", proven)), []);
        assert_eq!(
            unsafe_in_its_rooms(&House::of("engine/src/wal/a.rs", &format!("use rkyv::Archive;\n{proven}"))),
            []
        );
        assert_eq!(unsafe_in_its_rooms(&House::of("net/src/a.rs", "#![deny(unsafe_op_in_unsafe_fn)]")), []);
    }

    #[test]
    fn a_runtime_outside_its_seam_is_found() {
        one(runtimes_behind_their_seam(&House::of("engine/src/wal/a.rs", "\nuse io_uring::IoUring;")), 2);
        one(runtimes_behind_their_seam(&House::of("net/src/a.rs", "fn a(x: tokio::net::TcpStream) {}")), 1);
        one(runtimes_behind_their_seam(&House::of("meta/src/a.rs", "use polling as p;")), 1);
        one(runtimes_behind_their_seam(&House::of("engine/src/rt/real.rs", "\nuse glommio::net::TcpStream;")), 2);
        one(runtimes_behind_their_seam(&House::of("engine/src/rt/uring.rs", "fn a(x: glommio::Task<()>) {}")), 1);
        assert_eq!(runtimes_behind_their_seam(&House::of("engine/src/rt/glommio.rs", "use glommio::Task;")), []);
        assert_eq!(runtimes_behind_their_seam(&House::of("engine/src/rt/core.rs", "use super::glommio::Shell;")), []);
        assert_eq!(runtimes_behind_their_seam(&House::of("engine/src/rt/uring.rs", "use io_uring::IoUring;")), []);
        assert_eq!(runtimes_behind_their_seam(&House::of("tools/camus/src/http.rs", "use tokio::net;")), []);
        assert_eq!(runtimes_behind_their_seam(&House::of("engine/src/a.rs", "// io_uring::x\nlet polling = 1;")), []);
    }

    #[test]
    fn an_import_upwards_is_found() {
        one(rooms_import_downwards(&House::of("engine/src/a.rs", "use camus_net::x;")), 1);
        one(rooms_import_downwards(&House::of("meta/src/a.rs", "\ncamus_net::x()")), 2);
        one(rooms_import_downwards(&House::of("engine/Cargo.toml", "[dependencies]\ncamus-meta.workspace = true")), 2);
        assert_eq!(rooms_import_downwards(&House::of("net/src/a.rs", "use camus_meta::x;")), []);
    }

    #[test]
    fn a_room_without_a_purpose_is_found() {
        one(rooms_say_what_they_are_for(&House::of("engine/src/x/mod.rs", "use a;\n//! What this room is for.")), 1);
        one(rooms_say_what_they_are_for(&House::of("engine/src/x/mod.rs", "//! Things.")), 1);
        one(rooms_say_what_they_are_for(&House::of("x/src/main.rs", "")), 1);
        assert_eq!(rooms_say_what_they_are_for(&House::of("x/mod.rs", "//! The write-ahead log of one core.")), []);
        assert_eq!(rooms_say_what_they_are_for(&House::of("x/file.rs", "use a;")), []);
    }

    #[test]
    fn a_line_that_does_not_fit_is_found() {
        let long = "x".repeat(COLUMNS_MAX + 1);
        one(lines_fit(&House::of("a.rs", &format!("a\n{long}"))), 2);
        one(lines_fit(&House::of("docs/a.md", &long)), 1);
        one(lines_fit(&House::of("tests/run", &format!("#!/bin/sh\n{long}"))), 2);
        assert_eq!(lines_fit(&House::of("docs/a.md", &format!("| {long} |"))), []);
        assert_eq!(lines_fit(&House::of("a.rs", &"ü".repeat(COLUMNS_MAX))), [], "characters, not bytes");
        assert_eq!(lines_fit(&House::of("Cargo.lock", &long)), []);
    }

    #[test]
    fn what_is_left_open_is_found() {
        one(nothing_is_left_open(&House::of("a.rs", concat!("fn a() { to", "do!() }"))), 1);
        one(nothing_is_left_open(&House::of("a.rs", "fn a() {\n unimplemented!(\"x\") }")), 2);
        one(nothing_is_left_open(&House::of("tests/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn a() {}")), 2);
        one(nothing_is_left_open(&House::of("tests/a.rs", "#[test]\n#[ignore]\nfn a() {}")), 2);
        let child = "#[test]\n#[ignore = \"a child process of another test\"]\nfn a() {}";
        assert_eq!(nothing_is_left_open(&House::of("tests/a.rs", child)), []);
        assert_eq!(nothing_is_left_open(&House::of("a.rs", "// todo!\nlet x = \"todo!\"; nottodo!()")), []);
    }

    #[test]
    fn a_path_of_a_machine_is_found() {
        let place = ["/ho", "me/me/camus"].concat();
        one(no_path_of_a_machine(&House::of("docs/a.md", &format!("\nrun {place}/x"))), 2);
        one(no_path_of_a_machine(&House::of("tests/run", &["cd /wo", "rk/x"].concat())), 1);
        assert_eq!(no_path_of_a_machine(&House::of("a.md", "https://example.org/home/x and a/root/b")), []);
    }
}
