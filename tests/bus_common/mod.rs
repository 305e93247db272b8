//! What the tests and benches of bus programs share: reproducible numbers, and real machines.
#![allow(dead_code)] // every test uses its part

use openvm_apc::bus::{field::to_f, F};
use powdr_number::BabyBearField;

/// The BabyBear modulus.
pub const MODULUS: u32 = 15 * (1 << 27) + 1;

/// A trace value.
pub fn field_value(canonical: u32) -> F {
    to_f(BabyBearField::from(canonical))
}

/// Reproducible numbers: SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Mix {
    state: u64,
}

impl Mix {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }
}
