//! Requests, field by field: as a client writes them, or with lengths, counts, elements and tags that are wrong where
//! they stand, so that everything before and behind them is right.

use crate::rng::Rng;
use crate::schema::{Field, Kind, layout};
use crate::{batches, mutate};
use camus_net::api::table::Api;

/// Where a request is this large, arrays get no more elements.
const LARGE_BYTES: usize = 8 * 1024;

/// The body of a request. Of the places where something can be wrong one in `wrong_one_in` is; 0: none.
///
/// # Panics
/// If nobody has written its layout down (`schema.rs`).
pub fn request(rng: &mut Rng, api: &Api, version: i16, wrong_one_in: usize) -> Vec<u8> {
    let mut maker = Maker { rng, out: Vec::new(), version, flexible: api.is_flexible(version), wrong_one_in };
    maker.body(api);
    maker.out
}

/// The same with its header, as it is in a frame behind the length.
pub fn frame(rng: &mut Rng, api: &Api, version: i16, wrong_one_in: usize) -> Vec<u8> {
    let correlation = rng.draw() as i32;
    // The client's id is never compact (KIP-482).
    let mut maker = Maker { rng, out: Vec::new(), version, flexible: false, wrong_one_in };
    maker.out.extend_from_slice(&api.key.to_be_bytes());
    maker.out.extend_from_slice(&version.to_be_bytes());
    maker.out.extend_from_slice(&correlation.to_be_bytes());
    let null = maker.rng.one_in(3);
    maker.value(&Kind::Text, null);
    maker.flexible = api.is_flexible(version);
    maker.tags(&[]);
    maker.body(api);
    maker.out
}

struct Maker<'a> {
    rng: &'a mut Rng,
    out: Vec<u8>,
    version: i16,
    flexible: bool,
    wrong_one_in: usize,
}

impl Maker<'_> {
    fn is_wrong_here(&mut self) -> bool {
        self.wrong_one_in > 0 && self.rng.one_in(self.wrong_one_in)
    }

    fn body(&mut self, api: &Api) {
        let fields = layout(api.key).unwrap_or_else(|| panic!("{} has no layout in schema.rs", api.name));
        self.fields(fields);
    }

    /// A struct, with its tagged fields.
    fn fields(&mut self, fields: &[Field]) {
        let version = self.version;
        for field in fields.iter().filter(|field| field.tag.is_none() && field.is_in(version)) {
            self.field(field);
        }
        self.tags(fields);
    }

    fn field(&mut self, field: &Field) {
        let mut null = field.is_nullable(self.version) && self.rng.one_in(5);
        if self.is_wrong_here() {
            null |= self.rng.one_in(2);
        }
        self.value(&field.kind, null);
    }

    fn value(&mut self, kind: &Kind, null: bool) {
        match kind {
            Kind::Bool => {
                let value = if self.is_wrong_here() { self.rng.byte() } else { self.rng.below(2) as u8 };
                self.out.push(value);
            }
            Kind::Int { bytes, among } => {
                let value = self.number(among);
                self.out.extend_from_slice(&value.to_be_bytes()[8 - *bytes..]);
            }
            Kind::Uuid => {
                let value = match self.rng.below(4) {
                    // the topics of the target
                    0 => 7,
                    1 => 8,
                    2 => 0,
                    _ => (u128::from(self.rng.draw()) << 64) | u128::from(self.rng.draw()),
                };
                self.out.extend_from_slice(&value.to_be_bytes());
            }
            Kind::Text => {
                let text = if null { None } else { Some(self.text()) };
                self.sized(true, text.as_deref());
            }
            Kind::Blob => {
                let count = self.rng.below(40);
                let bytes = if null { None } else { Some(self.rng.bytes(count)) };
                self.sized(false, bytes.as_deref());
            }
            Kind::Records => {
                let batches = if null { None } else { Some(self.batches()) };
                self.sized(false, batches.as_deref());
            }
            Kind::Struct(fields) => self.fields(fields),
            Kind::Maybe(_) if null => self.out.push(0xff),
            Kind::Maybe(fields) => {
                self.out.push(1);
                self.fields(fields);
            }
            Kind::Structs(fields) => self.elements(null, |maker| maker.fields(fields)),
            Kind::Many(kind) => self.elements(null, |maker| maker.value(kind, false)),
        }
    }

    fn number(&mut self, among: &[i64]) -> i64 {
        if !among.is_empty() && !self.is_wrong_here() {
            return self.rng.pick(among);
        }
        match self.rng.below(4) {
            0 => self.rng.pick(&[0, 1, -1, 2, 7, 100, 1000]),
            1 => self.rng.pick(&[i64::MIN, i64::MAX, i32::MIN.into(), i32::MAX.into(), i16::MAX.into(), -2]),
            2 => self.rng.below(64) as i64,
            _ => self.rng.draw() as i64,
        }
    }

    /// UTF-8, unless it is wrong.
    fn text(&mut self) -> Vec<u8> {
        const WORDS: &[&str] = &[
            "t",
            "u",
            "t",
            "",
            "g",
            "no.such",
            "consumer",
            "range",
            "m-1",
            "cleanup.policy",
            "compact",
            "delete",
            "retention.ms",
            "-1",
            "1",
            "message.timestamp.type",
            "\u{e9}t\u{e9}",
            "__internal",
            "..",
            "a/b",
        ];
        if self.is_wrong_here() {
            let count = self.rng.below(20);
            return self.rng.bytes(count);
        }
        let count = match self.rng.below(40) {
            0 => 260 + self.rng.below(40),
            1..=8 => self.rng.below(40),
            _ => return self.rng.pick(WORDS).as_bytes().to_vec(),
        };
        (0..count).map(|_| b'a' + self.rng.below(26) as u8).collect()
    }

    fn batches(&mut self) -> Vec<u8> {
        let wrong = self.is_wrong_here();
        let mut bytes = batches::batch(self.rng, wrong);
        if wrong && self.rng.one_in(4) {
            bytes.extend(batches::batch(self.rng, false));
        }
        if wrong && self.rng.one_in(4) {
            mutate::mutate(self.rng, &mut bytes, &[]);
        }
        bytes
    }

    /// An array of what `each` writes. Now and then an element stands there twice.
    fn elements(&mut self, null: bool, each: impl Fn(&mut Self)) {
        if null {
            self.length(false, None);
            return;
        }
        let wanted = if self.rng.one_in(30) { self.rng.below(40) } else { self.rng.below(4) };
        let before = std::mem::take(&mut self.out);
        let mut count = 0;
        while count < wanted && before.len() + self.out.len() < LARGE_BYTES {
            let from = self.out.len();
            each(self);
            count += 1;
            if self.rng.one_in(10) {
                self.out.extend_from_within(from..);
                count += 1;
            }
        }
        let elements = std::mem::replace(&mut self.out, before);
        self.length(false, Some(count));
        self.out.extend_from_slice(&elements);
    }

    /// Bytes behind their length.
    fn sized(&mut self, short: bool, bytes: Option<&[u8]>) {
        self.length(short, bytes.map(<[u8]>::len));
        self.out.extend_from_slice(bytes.unwrap_or_default());
    }

    /// `short`: two bytes where it is not compact.
    fn length(&mut self, short: bool, length: Option<usize>) {
        let right = length.map_or(-1, |length| length as i64);
        let said = if self.is_wrong_here() { self.extreme(right) } else { right };
        if self.flexible {
            if said != right && self.rng.one_in(6) {
                // it has no end
                self.out.extend_from_slice(&[0x80; 6]);
            } else {
                self.uvarint(said.wrapping_add(1) as u32);
            }
        } else if short {
            self.out.extend_from_slice(&(said as i16).to_be_bytes());
        } else {
            self.out.extend_from_slice(&(said as i32).to_be_bytes());
        }
    }

    fn extreme(&mut self, right: i64) -> i64 {
        let largest = i64::from(i32::MAX);
        let wide = [-2, -1, 0, 127, 128, 32_767, 32_768, 65_536, 1 << 20, 1 << 24, largest - 1, largest, 1 << 31];
        match self.rng.below(4) {
            0 => right + 1,
            1 => right - 1,
            _ => self.rng.pick(&wide),
        }
    }

    fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    /// The tagged fields at the end of a struct: those of `fields` that are tagged, and some that nobody knows.
    fn tags(&mut self, fields: &[Field]) {
        if !self.flexible {
            return;
        }
        let version = self.version;
        let mut tagged: Vec<(u32, Vec<u8>)> = Vec::new();
        for field in fields.iter().filter(|field| field.is_in(version)) {
            let Some(tag) = field.tag else { continue };
            if self.rng.one_in(2) {
                let before = std::mem::take(&mut self.out);
                self.field(field);
                tagged.push((tag, std::mem::replace(&mut self.out, before)));
            }
        }
        if self.rng.one_in(8) {
            for tag in 0..1 + self.rng.below(3) as u32 {
                let count = self.rng.below(10);
                tagged.push((1000 + tag, self.rng.bytes(count)));
            }
        }
        let (mut count_lies, mut sizes_lie) = (false, false);
        if self.is_wrong_here() {
            match self.rng.below(5) {
                0 => tagged.extend([(5000, vec![1]), (5000, vec![2])]),
                1 => tagged.extend((0..100).map(|tag| (6000 + tag, Vec::new()))),
                2 => tagged.extend([(8000, vec![1]), (7999, vec![2])]),
                3 => count_lies = true,
                _ => {
                    tagged.push((9000, vec![1, 2, 3]));
                    sizes_lie = true;
                }
            }
        }
        let count = tagged.len() as i64;
        let said = if count_lies { self.extreme(count) } else { count };
        self.uvarint(said as u32);
        for (tag, bytes) in &tagged {
            let size = bytes.len() as i64;
            let said = if sizes_lie && self.rng.one_in(2) { self.extreme(size) } else { size };
            self.uvarint(*tag);
            self.uvarint(said as u32);
            self.out.extend_from_slice(bytes);
        }
    }
}
