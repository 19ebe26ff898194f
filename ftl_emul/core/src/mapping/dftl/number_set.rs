//! A set of numbers below a bound, taken out in ascending order.

use crate::convert::exact;

const BITS: usize = u64::BITS as usize;

/// A bit for each number; faster than sorting many numbers with duplicates.
pub(super) struct NumberSet {
    words: Vec<u64>,
    /// No word before this one and none from `end` on has numbers.
    start: usize,
    end: usize,
}

impl NumberSet {
    /// Empty; holds numbers below `bound`.
    pub fn below(bound: usize) -> Self {
        Self { words: vec![0; bound.div_ceil(BITS)], start: usize::MAX, end: 0 }
    }

    #[inline]
    pub fn add(&mut self, number: u32) {
        let word = number as usize / BITS;
        self.words[word] |= 1 << (number as usize % BITS);
        self.start = self.start.min(word);
        self.end = self.end.max(word + 1);
    }

    /// Takes the least number out.
    #[inline]
    pub fn take_least(&mut self) -> Option<u32> {
        while self.start < self.end {
            let word = &mut self.words[self.start];
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                return Some(exact::<u32>(self.start * BITS) + bit);
            }
            self.start += 1;
        }
        (self.start, self.end) = (usize::MAX, 0);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_once_and_in_order() {
        let mut set = NumberSet::below(1000);
        for _ in 0..2 {
            for number in [999, 64, 63, 0, 500, 64] {
                set.add(number);
            }
            let taken: Vec<u32> = std::iter::from_fn(|| set.take_least()).collect();
            assert_eq!(taken, [0, 63, 64, 500, 999]);
            assert_eq!(set.take_least(), None);
        }
    }

    #[test]
    fn a_number_added_below_those_left_comes_next() {
        let mut set = NumberSet::below(1000);
        set.add(700);
        set.add(800);
        assert_eq!(set.take_least(), Some(700));
        set.add(3);
        assert_eq!((set.take_least(), set.take_least(), set.take_least()), (Some(3), Some(800), None));
    }
}
