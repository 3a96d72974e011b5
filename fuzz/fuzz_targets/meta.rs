//! Commands and snapshots of the meta shard: any bytes are refused or mean one thing.
#![no_main]

use camus_engine::types::{Index, ShardId};
use camus_meta::{Command, State};
use libfuzzer_sys::fuzz_target;

fn shards() -> Vec<ShardId> {
    (1..=4).map(ShardId).collect()
}

fuzz_target!(|input: (bool, Vec<Vec<u8>>)| {
    let (snapshot, inputs) = input;
    let mut state = State::new(shards());
    for (n, bytes) in inputs.iter().take(64).enumerate() {
        if snapshot && n == 0 {
            if let Ok(restored) = State::restore(shards(), bytes) {
                state = restored;
            }
            continue;
        }
        let Ok(command) = Command::decode(bytes) else { continue };
        assert_eq!(Command::decode(&command.encode()).expect("what was encoded decodes"), command);
        let index = Index(state.applied().0 + 1);
        let expected = State::check(&state.image(), &command);
        let decided = state.apply(index, &command);
        let _ = (expected, decided);
        let copy = State::restore(shards(), &state.snapshot()).expect("what was written is read");
        assert_eq!(copy.snapshot(), state.snapshot());
    }
});
