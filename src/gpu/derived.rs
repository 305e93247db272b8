//! Derived columns: compiles computation methods to stack bytecode over cells of the original traces, and uploads it.

use openvm_cuda_common::{d_buffer::DeviceBuffer, stream::GpuDeviceCtx};
use powdr_constraint_solver::constraint_system::ComputationMethod;
use powdr_expression::{AlgebraicBinaryOperator, AlgebraicExpression, AlgebraicUnaryOperator};
use powdr_number::BabyBearField;
use rustc_hash::FxHashMap;

use super::{
    error::GpuError,
    memory,
    structs::{DerivedColumn, OriginalCell},
};
use crate::bus::{
    field::canonical,
    vm::{self as operation, STACK_DEPTH},
};

/// A computation method whose references are cells of the original traces.
pub type DerivedMethod =
    ComputationMethod<BabyBearField, AlgebraicExpression<BabyBearField, OriginalCell>>;

/// Bytecode of all derived columns of one APC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DerivedCode {
    /// The columns, each with its span of `code`.
    pub columns: Vec<DerivedColumn>,
    /// Operations and operands; the operand of a column push is an index into `cells`.
    pub code: Vec<u32>,
    /// The cells that the code reads, each once.
    pub cells: Vec<OriginalCell>,
}

impl DerivedCode {
    /// Compiles `(APC column, method)` pairs.
    ///
    /// # Errors
    /// [`GpuError::TooLarge`] for an expression that needs a deeper stack than the device has.
    pub fn compile(apc: &str, columns: &[(u32, DerivedMethod)]) -> Result<Self, GpuError> {
        let mut compiler = Compiler::default();
        let mut compiled = Vec::with_capacity(columns.len());
        for (apc_column, method) in columns {
            let code_start = compiler.code.len();
            compiler.deepest = 0;
            compiler.method(method);
            if compiler.deepest > STACK_DEPTH {
                return Err(GpuError::TooLarge {
                    apc: apc.to_string(),
                    what: format!(
                        "derived column {apc_column} needs a stack of {} values, the kernel has {STACK_DEPTH}",
                        compiler.deepest
                    ),
                });
            }
            compiled.push(DerivedColumn {
                apc_column: *apc_column,
                code_start: code_start as u32,
                code_length: (compiler.code.len() - code_start) as u32,
            });
        }
        Ok(Self {
            columns: compiled,
            code: compiler.code,
            cells: compiler.cells,
        })
    }
}

#[derive(Default)]
struct Compiler {
    code: Vec<u32>,
    cells: Vec<OriginalCell>,
    cell_indices: FxHashMap<OriginalCell, u32>,
    depth: usize,
    deepest: usize,
}

impl Compiler {
    fn push(&mut self, operation: u32, operand: u32) {
        self.code.extend([operation, operand]);
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
    }

    fn binary(&mut self, operation: u32) {
        self.code.push(operation);
        self.depth -= 1;
    }

    fn constant(&mut self, value: u32) {
        self.push(operation::PUSH_CONSTANT, value);
    }

    fn expression(&mut self, expression: &AlgebraicExpression<BabyBearField, OriginalCell>) {
        match expression {
            AlgebraicExpression::Number(value) => self.constant(canonical(*value)),
            AlgebraicExpression::Reference(cell) => {
                let next = self.cells.len() as u32;
                let index = *self.cell_indices.entry(*cell).or_insert(next);
                if index == next {
                    self.cells.push(*cell);
                }
                self.push(operation::PUSH_COLUMN, index);
            }
            AlgebraicExpression::UnaryOperation(unary) => {
                self.expression(&unary.expr);
                match unary.op {
                    AlgebraicUnaryOperator::Minus => self.code.push(operation::NEG),
                }
            }
            AlgebraicExpression::BinaryOperation(binary) => {
                self.expression(&binary.left);
                self.expression(&binary.right);
                self.binary(match binary.op {
                    AlgebraicBinaryOperator::Add => operation::ADD,
                    AlgebraicBinaryOperator::Sub => operation::SUB,
                    AlgebraicBinaryOperator::Mul => operation::MUL,
                });
            }
        }
    }

    /// Leaves 1 on the stack if the expression is not zero, else 0.
    fn is_nonzero(&mut self, expression: &AlgebraicExpression<BabyBearField, OriginalCell>) {
        self.expression(expression);
        self.expression(expression);
        self.code.push(operation::INVERT_OR_ZERO);
        self.binary(operation::MUL);
    }

    fn method(&mut self, method: &DerivedMethod) {
        match method {
            ComputationMethod::Constant(value) => self.constant(canonical(*value)),
            ComputationMethod::QuotientOrZero(dividend, divisor) => {
                self.expression(dividend);
                if *divisor != AlgebraicExpression::Number(BabyBearField::from(1u32)) {
                    self.expression(divisor);
                    self.code.push(operation::INVERT_OR_ZERO);
                    self.binary(operation::MUL);
                }
            }
            ComputationMethod::IfEqZero(condition, if_zero, otherwise) => {
                // if_zero * (1 - n) + otherwise * n
                self.constant(1);
                self.is_nonzero(condition);
                self.binary(operation::SUB);
                self.method(if_zero);
                self.binary(operation::MUL);
                self.is_nonzero(condition);
                self.method(otherwise);
                self.binary(operation::MUL);
                self.binary(operation::ADD);
            }
        }
    }
}

/// The derived columns of one APC in device memory.
pub struct DeviceDerivedColumns {
    pub(super) columns: DeviceBuffer<DerivedColumn>,
    pub(super) code: DeviceBuffer<u32>,
    pub(super) cells: DeviceBuffer<OriginalCell>,
}

impl DeviceDerivedColumns {
    /// Copies compiled columns to the device.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] or [`GpuError::Copy`].
    pub fn upload(
        apc: &str,
        code: &DerivedCode,
        device_ctx: &GpuDeviceCtx,
    ) -> Result<Self, GpuError> {
        let what = || format!("the derived columns of {apc}");
        Ok(Self {
            columns: memory::upload(&code.columns, &what, device_ctx)?,
            code: memory::upload(&code.code, &what, device_ctx)?,
            cells: memory::upload(&code.cells, &what, device_ctx)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use p3_field::{Field, PrimeCharacteristicRing, PrimeField32};

    use super::*;
    use crate::bus::F;

    /// The stack machine of `stack_machine.cuh`, on the host.
    fn run(code: &DerivedCode, column: usize, cell_values: &[u32]) -> u32 {
        let column = code.columns[column];
        let mut words =
            code.code[column.code_start as usize..][..column.code_length as usize].iter();
        let mut stack: Vec<F> = Vec::new();
        while let Some(&word) = words.next() {
            match word {
                operation::PUSH_COLUMN => {
                    stack.push(F::from_u32(cell_values[*words.next().unwrap() as usize]))
                }
                operation::PUSH_CONSTANT => stack.push(F::from_u32(*words.next().unwrap())),
                operation::NEG => *stack.last_mut().unwrap() *= F::NEG_ONE,
                operation::INVERT_OR_ZERO => {
                    let top = stack.last_mut().unwrap();
                    *top = top.try_inverse().unwrap_or(F::ZERO);
                }
                binary => {
                    let right = stack.pop().unwrap();
                    let left = stack.last_mut().unwrap();
                    match binary {
                        operation::ADD => *left += right,
                        operation::SUB => *left -= right,
                        operation::MUL => *left *= right,
                        unknown => panic!("unknown operation {unknown}"),
                    }
                }
            }
        }
        assert_eq!(stack.len(), 1);
        stack[0].as_canonical_u32()
    }

    fn cell(column: u32) -> AlgebraicExpression<BabyBearField, OriginalCell> {
        AlgebraicExpression::Reference(OriginalCell {
            trace: 0,
            column,
            row_in_call: 0,
        })
    }

    fn number(value: u32) -> AlgebraicExpression<BabyBearField, OriginalCell> {
        AlgebraicExpression::Number(BabyBearField::from(value))
    }

    #[test]
    fn quotients_constants_and_cases() {
        let quotient = DerivedMethod::QuotientOrZero(cell(0) + number(3), cell(1));
        let case = DerivedMethod::IfEqZero(
            cell(1),
            Box::new(DerivedMethod::Constant(BabyBearField::from(7u32))),
            Box::new(DerivedMethod::QuotientOrZero(-cell(0), number(1))),
        );
        let code = DerivedCode::compile(
            "test",
            &[
                (4, quotient),
                (5, case),
                (6, DerivedMethod::Constant(BabyBearField::from(9u32))),
            ],
        )
        .unwrap();
        assert_eq!(code.cells.len(), 2);
        assert_eq!(run(&code, 0, &[7, 5]), 2);
        assert_eq!(run(&code, 0, &[7, 0]), 0);
        assert_eq!(run(&code, 1, &[7, 0]), 7);
        assert_eq!(run(&code, 1, &[7, 5]), F::ORDER_U32 - 7);
        assert_eq!(run(&code, 2, &[0, 0]), 9);
    }

    #[test]
    fn too_deep_an_expression_is_refused() {
        let deep = (0..20).fold(cell(0), |sum, _| cell(1) * (cell(0) - sum));
        let method = DerivedMethod::QuotientOrZero(deep, number(1));
        assert!(matches!(
            DerivedCode::compile("test", &[(0, method)]),
            Err(GpuError::TooLarge { .. })
        ));
    }
}
