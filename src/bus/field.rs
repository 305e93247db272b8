//! Crossing between the two BabyBear types: powdr's (expressions) and OpenVM's (traces), as canonical `u32`.

use p3_field::{PrimeCharacteristicRing, PrimeField32};
use powdr_number::{BabyBearField, FieldElement, LargeInt};

use super::F;

/// An expression's constant as a trace value.
pub fn to_f(value: BabyBearField) -> F {
    F::from_u32(canonical(value))
}

/// An expression's constant as a canonical integer.
pub fn canonical(value: BabyBearField) -> u32 {
    value
        .to_integer()
        .try_into_u32()
        .expect("a BabyBear element is below 2^31")
}

/// A trace value as an expression's constant.
pub fn from_f(value: F) -> BabyBearField {
    BabyBearField::from(value.as_canonical_u32())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for value in [0, 1, 30720, F::ORDER_U32 - 1] {
            assert_eq!(canonical(from_f(F::from_u32(value))), value);
            assert_eq!(to_f(BabyBearField::from(value)), F::from_u32(value));
        }
    }
}
