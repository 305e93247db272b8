//! The AIR of an APC: its machine's constraints and interactions over one row.

use std::sync::Arc;

use openvm_circuit_primitives::ColumnsAir;
use openvm_stark_backend::{
    interaction::{BusIndex, InteractionBuilder},
    p3_air::{Air, BaseAir},
    p3_field::PrimeCharacteristicRing,
    p3_matrix::Matrix,
    BaseAirWithPublicValues, PartitionedBaseAir,
};
use powdr_autoprecompiles::expression::AlgebraicExpression;
use powdr_expression::{
    AlgebraicBinaryOperation, AlgebraicBinaryOperator, AlgebraicUnaryOperation,
    AlgebraicUnaryOperator,
};

use super::binding::Binding;
use crate::{
    apc::{Autoprecompile, VmBuses},
    bus::{field::to_f, interaction::Expression, ColumnOrder, F},
};

/// Every executor AIR of OpenVM puts this weight on each of its interactions, sends and receives alike: the verifier
/// bounds the sum of weight × height per bus, so that no multiplicity wraps around the field.
const COUNT_WEIGHT: u32 = 1;

/// The AIR of one APC.
#[derive(Clone, Debug)]
pub struct ApcAir {
    apc: Arc<Autoprecompile>,
    columns: ColumnOrder,
    binding: Binding,
    execution_bus: BusIndex,
}

impl ApcAir {
    /// The AIR of this APC in a VM with these buses, to which it is bound by `binding`.
    pub fn new(apc: Arc<Autoprecompile>, binding: Binding, buses: &VmBuses) -> Self {
        let columns = ColumnOrder::new(apc.columns.iter().map(|column| column.poly_id));
        Self {
            apc,
            columns,
            binding,
            execution_bus: bus_index(buses.execution),
        }
    }

    /// The APC.
    pub fn apc(&self) -> &Arc<Autoprecompile> {
        &self.apc
    }
}

impl<Val: Send + Sync> BaseAir<Val> for ApcAir {
    fn width(&self) -> usize {
        self.apc.width()
    }
}

impl<Val: Send + Sync> BaseAirWithPublicValues<Val> for ApcAir {}
impl<Val: Send + Sync> PartitionedBaseAir<Val> for ApcAir {}

impl ColumnsAir for ApcAir {
    fn columns(&self) -> Option<Vec<String>> {
        Some(
            self.apc
                .columns
                .iter()
                .map(|column| column.name.clone())
                .collect(),
        )
    }
}

impl<AB> Air<AB> for ApcAir
where
    AB: InteractionBuilder<F = F>,
{
    fn eval(&self, builder: &mut AB) {
        let main = builder.main();
        let row = main
            .row_slice(0)
            .expect("a window of a trace has a current row");
        let evaluate = |expression| self.evaluate::<AB>(expression, &row);
        for constraint in &self.apc.machine.constraints {
            builder.assert_zero(evaluate(&constraint.expr));
        }
        for interaction in &self.apc.machine.bus_interactions {
            let bus = bus_index(interaction.id);
            let arguments: Vec<AB::Expr> = interaction.args.iter().map(evaluate).collect();
            builder.push_interaction(bus, arguments, evaluate(&interaction.mult), COUNT_WEIGHT);
        }
        // Never sent: they are there to be counted by the verifier, see `Binding::padding_interactions`.
        for _ in 0..self.binding.padding_interactions {
            builder.push_interaction(self.execution_bus, [AB::Expr::ZERO], AB::Expr::ZERO, 0);
        }
    }
}

fn bus_index(id: u64) -> BusIndex {
    BusIndex::try_from(id).expect("bus ids come from OpenVM's 16-bit bus indices")
}

impl ApcAir {
    fn evaluate<AB: InteractionBuilder<F = F>>(
        &self,
        expression: &Expression,
        row: &[AB::Var],
    ) -> AB::Expr {
        let evaluate = |expression| self.evaluate::<AB>(expression, row);
        match expression {
            AlgebraicExpression::Number(value) => AB::Expr::from(to_f(*value)),
            AlgebraicExpression::Reference(reference) => {
                let index = self
                    .columns
                    .index(reference.id)
                    .expect("an APC's columns are all references of its machine");
                row[index].into()
            }
            AlgebraicExpression::BinaryOperation(AlgebraicBinaryOperation { left, op, right }) => {
                let (left, right) = (evaluate(left), evaluate(right));
                match op {
                    AlgebraicBinaryOperator::Add => left + right,
                    AlgebraicBinaryOperator::Sub => left - right,
                    AlgebraicBinaryOperator::Mul => left * right,
                }
            }
            AlgebraicExpression::UnaryOperation(AlgebraicUnaryOperation { op, expr }) => match op {
                AlgebraicUnaryOperator::Minus => -evaluate(expr),
            },
        }
    }
}
