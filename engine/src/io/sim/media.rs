//! What a simulated device holds: sectors on the media, over them those in its cache, and how a loss of power tears.

use super::SECTOR_BYTES;
use crate::io::BlockBuf;
use crate::limits::BLOCK_BYTES;
use crate::rt::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// On the heap: sectors go from the cache to the media, and from node to node of their maps.
pub(super) type Sector = Box<[u8; SECTOR_BYTES]>;

const SECTORS_PER_BLOCK: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;

#[derive(Clone)]
pub(super) struct SimFile {
    pub len: u64,
    /// What is on the media; a sector that is not here is zero.
    pub durable: BTreeMap<u64, Sector>,
    /// Over it, in the cache: what a read finds and a power loss takes.
    volatile: BTreeMap<u64, Sector>,
}

/// What becomes of one sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Lost,
    Volatile,
    Durable,
}

impl SimFile {
    pub fn new(len: u64) -> SimFile {
        SimFile { len, durable: BTreeMap::new(), volatile: BTreeMap::new() }
    }

    /// Without what is only in the cache.
    pub fn on_media(&self) -> SimFile {
        SimFile { volatile: BTreeMap::new(), ..self.clone() }
    }

    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let mut at = at;
        let mut rest = buf;
        while !rest.is_empty() {
            let (sector, within) = (at / SECTOR_BYTES as u64, (at % SECTOR_BYTES as u64) as usize);
            let here = rest.len().min(SECTOR_BYTES - within);
            let (now, later) = rest.split_at_mut(here);
            match self.volatile.get(&sector).or_else(|| self.durable.get(&sector)) {
                Some(found) => now.copy_from_slice(&found[within..within + here]),
                None => now.fill(0),
            }
            (rest, at) = (later, at + here as u64);
        }
    }

    /// Each sector has its fate. What would lie behind the end of the file is nowhere.
    pub fn write(&mut self, at: u64, buf: &BlockBuf, mut fate: impl FnMut(u64) -> Fate) {
        let within = at / SECTOR_BYTES as u64..self.len / SECTOR_BYTES as u64;
        for (sector, bytes) in within.zip(buf.bytes.chunks_exact(SECTOR_BYTES)) {
            let bytes = || -> Sector { Box::new(bytes.try_into().expect("chunks of that length")) };
            match fate(sector) {
                Fate::Lost => {}
                Fate::Volatile => {
                    self.volatile.insert(sector, bytes());
                }
                Fate::Durable => {
                    self.volatile.remove(&sector);
                    self.durable.insert(sector, bytes());
                }
            }
        }
    }

    /// Of these sectors, those that are in the cache meet their fate; in their order.
    pub fn settle(&mut self, sectors: Range<u64>, mut fate: impl FnMut(u64) -> Fate) {
        let cached: Vec<u64> = self.volatile.range(sectors).map(|(sector, _)| *sector).collect();
        for sector in cached {
            let fate = fate(sector);
            if fate == Fate::Volatile {
                continue;
            }
            let bytes = self.volatile.remove(&sector).expect("listed above");
            if fate == Fate::Durable {
                self.durable.insert(sector, bytes);
            }
        }
    }

    /// Everything that is in the cache is on the media.
    pub fn sync(&mut self) {
        self.durable.append(&mut self.volatile);
    }
}

/// The sectors of so many bytes.
pub(super) fn sectors_of(at: u64, len: u64) -> Range<u64> {
    at / SECTOR_BYTES as u64..(at + len).div_ceil(SECTOR_BYTES as u64)
}

/// Which parts of a write stay when it is cut off: now single sectors, now whole blocks, as on a device whose own
/// sectors are that large.
pub(super) struct Tear {
    part_sectors: u64,
    percent: u64,
    /// The part that was asked about last, and whether it stays.
    last: Option<(u64, bool)>,
}

impl Tear {
    /// Now and then all of it stays, or nothing.
    pub fn drawn(rng: &mut Rng) -> Tear {
        let percent = match rng.between(0, 9) {
            0 => 0,
            1 => 100,
            _ => 50,
        };
        Tear { percent, ..Tear::in_half(rng) }
    }

    /// About half of it stays.
    pub fn in_half(rng: &mut Rng) -> Tear {
        Tear { part_sectors: if rng.chance(30) { SECTORS_PER_BLOCK } else { 1 }, percent: 50, last: None }
    }

    /// All of it stays.
    pub fn nowhere() -> Tear {
        Tear { part_sectors: 1, percent: 100, last: None }
    }

    /// Asked in the order of the sectors.
    pub fn keeps(&mut self, sector: u64, rng: &mut Rng) -> bool {
        let part = sector / self.part_sectors;
        match self.last {
            Some((last, keeps)) if last == part => keeps,
            Some(_) | None => {
                let keeps = rng.chance(self.percent);
                self.last = Some((part, keeps));
                keeps
            }
        }
    }
}
