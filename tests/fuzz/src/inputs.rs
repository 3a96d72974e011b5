//! Which input comes when. Each follows from the target, the seed and its number alone.

use crate::rng::Rng;
use crate::{INPUT_BYTES_MAX, Target, corpus, mutate};

/// The inputs of one run of a target: the corpus, then what is made, as it is made, then changes of both.
#[derive(Debug)]
pub struct Inputs<'a> {
    target: &'a Target,
    seed: u64,
    corpus: Vec<(&'static str, Vec<u8>)>,
}

impl<'a> Inputs<'a> {
    pub fn new(target: &'a Target, seed: u64) -> Inputs<'a> {
        Inputs { target, seed, corpus: corpus::parse(target.corpus) }
    }

    /// So many come in every run, however short it is.
    pub fn whole(&self) -> u64 {
        self.corpus.len() as u64 + (self.target.whole)()
    }

    pub fn nth(&self, number: u64) -> Vec<u8> {
        let kept = self.corpus.len() as u64;
        let mut bytes = match self.corpus.get(number as usize) {
            Some((_, bytes)) => bytes.clone(),
            None => self.made(number - kept),
        };
        bytes.truncate(INPUT_BYTES_MAX);
        bytes
    }

    fn made(&self, n: u64) -> Vec<u8> {
        let mut rng = Rng::of(self.seed, self.target.name, n);
        let made = (self.target.make)(&mut rng, n);
        if n < (self.target.whole)() || rng.one_in(3) {
            return made;
        }
        let kept = |rng: &mut Rng| match self.corpus.is_empty() {
            true => Vec::new(),
            false => self.corpus[rng.below(self.corpus.len())].1.clone(),
        };
        let (mut bytes, other) = match rng.below(4) {
            0 => (kept(&mut rng), made),
            1 => {
                let other = kept(&mut rng);
                (made, other)
            }
            _ => {
                let near = n.wrapping_add(rng.below(1000) as u64);
                let other = (self.target.make)(&mut rng, near);
                (made, other)
            }
        };
        for _ in 0..1 + rng.below(8) {
            mutate::mutate(&mut rng, &mut bytes, &other);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the command that a finding prints finds nothing.
    #[test]
    fn an_input_follows_from_its_number_and_the_seed() {
        for target in crate::TARGETS {
            let (one, same, other) = (Inputs::new(target, 7), Inputs::new(target, 7), Inputs::new(target, 8));
            let numbers = [0, one.whole() / 2, one.whole(), one.whole() + 17, one.whole() + 4711];
            for number in numbers {
                assert_eq!(one.nth(number), same.nth(number), "{} {number}", target.name);
                assert!(one.nth(number).len() <= INPUT_BYTES_MAX);
            }
            assert!(numbers.iter().any(|number| one.nth(*number) != other.nth(*number)), "{}", target.name);
        }
    }
}
