//! Expressions as sums of terms of degree at most two.

use p3_field::PrimeCharacteristicRing;
use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
    AlgebraicUnaryOperator,
};

use super::MAX_TERMS;
use crate::bus::{
    field::to_f,
    interaction::{ColumnOrder, Expression},
    F,
};

/// `constant + Σ cᵢ·xᵢ + Σ cⱼₖ·xⱼ·xₖ`. Terms are sorted by their columns, which are distinct; no coefficient is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) constant: F,
    pub(super) linear: Vec<(u32, F)>,
    /// The columns of each are sorted.
    pub(super) products: Vec<([u32; 2], F)>,
}

impl Sum {
    /// The sum that the expression is, or `None` if its degree is higher, if it has more than [`MAX_TERMS`] terms on the
    /// way, or if a column is unknown or its index does not fit.
    pub(super) fn of(expression: &Expression, columns: &ColumnOrder) -> Option<Self> {
        match expression {
            AlgebraicExpression::Number(value) => Some(Self::constant(to_f(*value))),
            AlgebraicExpression::Reference(reference) => Some(Self {
                linear: vec![(u32::try_from(columns.index(reference.id)?).ok()?, F::ONE)],
                ..Self::default()
            }),
            AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { op, expr }) => match op {
                AlgebraicUnaryOperator::Minus => Some(Self::of(expr, columns)?.times(F::NEG_ONE)),
            },
            AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, op, right }) => {
                let left = Self::of(left, columns)?;
                let right = Self::of(right, columns)?;
                match op {
                    AlgebraicBinaryOperator::Add => left.plus(right),
                    AlgebraicBinaryOperator::Sub => left.plus(right.times(F::NEG_ONE)),
                    AlgebraicBinaryOperator::Mul => left.multiplied(right),
                }
            }
        }
    }

    fn constant(constant: F) -> Self {
        Self {
            constant,
            ..Self::default()
        }
    }

    /// Its value if it has no terms.
    pub(super) fn as_constant(&self) -> Option<F> {
        (self.linear.is_empty() && self.products.is_empty()).then_some(self.constant)
    }

    fn times(mut self, factor: F) -> Self {
        if factor == F::ZERO {
            return Self::default();
        }
        self.constant *= factor;
        self.linear.iter_mut().for_each(|term| term.1 *= factor);
        self.products.iter_mut().for_each(|term| term.1 *= factor);
        self
    }

    fn plus(self, other: Self) -> Option<Self> {
        let sum = Self {
            constant: self.constant + other.constant,
            linear: merged(self.linear, other.linear),
            products: merged(self.products, other.products),
        };
        sum.within_limit()
    }

    fn within_limit(self) -> Option<Self> {
        (self.linear.len() + self.products.len() <= MAX_TERMS).then_some(self)
    }

    fn multiplied(self, other: Self) -> Option<Self> {
        if let Some(factor) = other.as_constant() {
            return Some(self.times(factor));
        }
        if let Some(factor) = self.as_constant() {
            return Some(other.times(factor));
        }
        if !self.products.is_empty()
            || !other.products.is_empty()
            || self.linear.len() * other.linear.len() > MAX_TERMS
        {
            return None;
        }
        let mut products: Vec<([u32; 2], F)> = Vec::new();
        for &(left, left_coefficient) in &self.linear {
            for &(right, right_coefficient) in &other.linear {
                products.push((
                    [left.min(right), left.max(right)],
                    left_coefficient * right_coefficient,
                ));
            }
        }
        products.sort_unstable_by_key(|term| term.0);
        let (left_constant, right_constant) = (self.constant, other.constant);
        let linear = Self {
            constant: F::ZERO,
            linear: self.linear,
            products: Vec::new(),
        }
        .times(right_constant)
        .plus(
            Self {
                constant: F::ZERO,
                linear: other.linear,
                products: Vec::new(),
            }
            .times(left_constant),
        )?;
        let product = Self {
            constant: left_constant * right_constant,
            linear: linear.linear,
            products: merged(products, Vec::new()),
        };
        product.within_limit()
    }
}

/// The terms of two sorted lists, those of equal columns added up, without those that vanish.
fn merged<Columns: Ord + Copy>(
    left: Vec<(Columns, F)>,
    right: Vec<(Columns, F)>,
) -> Vec<(Columns, F)> {
    let mut result: Vec<(Columns, F)> = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (Some(left), Some(right)) => left.0 <= right.0,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => break,
        };
        let next = if take_left { left.next() } else { right.next() };
        let Some((columns, coefficient)) = next else {
            break;
        };
        match result.last_mut() {
            Some(last) if last.0 == columns => last.1 += coefficient,
            _ => result.push((columns, coefficient)),
        }
    }
    result.retain(|term| term.1 != F::ZERO);
    result
}

#[cfg(test)]
mod tests {
    use powdr_autoprecompiles::expression::AlgebraicReference;
    use powdr_number::BabyBearField;

    use super::*;

    fn column(id: u64) -> Expression {
        AlgebraicExpression::Reference(AlgebraicReference {
            name: format!("column_{id}").into(),
            id,
        })
    }

    fn number(value: u32) -> Expression {
        AlgebraicExpression::Number(BabyBearField::from(value))
    }

    fn sum(expression: &Expression) -> Option<Sum> {
        Sum::of(expression, &ColumnOrder::new(0..4))
    }

    #[test]
    fn products_are_expanded_and_equal_terms_added() {
        // (x0 + 2)(x1 - x0) = x0·x1 - x0² + 2·x1 - 2·x0
        let expanded =
            sum(&((column(0) + number(2)) * (column(1) - column(0)))).expect("of degree two");
        assert_eq!(expanded.constant, F::ZERO);
        assert_eq!(expanded.linear, [(0, -F::TWO), (1, F::TWO)]);
        assert_eq!(expanded.products, [([0, 0], F::NEG_ONE), ([0, 1], F::ONE)]);
        // Both orders of a product are one term.
        let doubled = sum(&(column(2) * column(1) + column(1) * column(2))).expect("of degree two");
        assert_eq!(doubled.products, [([1, 2], F::TWO)]);
    }

    #[test]
    fn what_cancels_leaves_nothing() {
        let difference = column(0) * column(1) + column(3) - column(1) * column(0) - column(3);
        assert_eq!(sum(&difference), Some(Sum::default()));
        // The degree counts after cancellation.
        let zero = column(0) - column(0);
        assert_eq!(sum(&(zero * column(1) * column(2))), Some(Sum::default()));
    }

    #[test]
    fn higher_degrees_and_long_sums_are_refused() {
        assert_eq!(sum(&(column(0) * column(1) * column(2))), None);
        let long = |terms: u64| {
            (0..terms)
                .map(column)
                .reduce(|left, right| left + right)
                .expect("terms")
        };
        let columns = ColumnOrder::new(0..2 * MAX_TERMS as u64);
        assert!(Sum::of(&long(MAX_TERMS as u64), &columns).is_some());
        assert!(Sum::of(&long(MAX_TERMS as u64 + 1), &columns).is_none());
        // 1,024 products and 514 linear terms.
        let wide = (long(512) + number(1)) * (column(600) + column(601) + number(1));
        assert!(Sum::of(&wide, &columns).is_none());
    }
}
