//! What the verifier wants of the traces' shapes.

use std::collections::BTreeMap;

use openvm_stark_backend::{
    keygen::types::LinearConstraint,
    prover::{DeviceMultiStarkProvingKey, MatrixDimensions, ProverBackend, ProvingContext},
    SystemParams,
};

use super::MockError;
use crate::vm::Labels;

/// What the verifier wants of the traces' shapes.
pub(super) fn check_shapes<PB: ProverBackend>(
    params: &SystemParams,
    pk: &DeviceMultiStarkProvingKey<PB>,
    ctx: &ProvingContext<PB>,
    labels: &Labels,
) -> Result<(), MockError> {
    let mut seen = BTreeMap::new();
    for (air_id, air_ctx) in &ctx.per_trace {
        let Some(air_pk) = pk.per_air.get(*air_id) else {
            return Err(MockError::UnknownAir {
                air_id: *air_id,
                airs: pk.per_air.len(),
            });
        };
        let air = || labels.air(*air_id, &air_pk.air_name).to_string();
        let height = air_ctx.common_main.height();
        if seen.insert(*air_id, height).is_some() {
            return Err(MockError::DuplicateAir { air: air() });
        }
        let max_log_height = params.log_stacked_height();
        if !height.is_power_of_two() || height > 1 << max_log_height {
            return Err(MockError::Height {
                air: air(),
                height,
                max_log_height,
            });
        }
        let width = &air_pk.vk.params.width;
        if air_ctx.cached_mains.len() != width.cached_mains.len() {
            return Err(MockError::CachedTraces {
                air: air(),
                expected: width.cached_mains.len(),
                actual: air_ctx.cached_mains.len(),
            });
        }
        let cached = air_ctx.cached_mains.iter().map(|part| &part.trace);
        let preprocessed = air_pk.preprocessed_data.iter().map(|part| &part.trace);
        let parts = cached
            .zip(&width.cached_mains)
            .enumerate()
            .map(|(index, (matrix, width))| (format!("cached trace {index}"), matrix, *width))
            .chain([(
                "main trace".to_string(),
                &air_ctx.common_main,
                width.common_main,
            )])
            .chain(preprocessed.map(|matrix| {
                (
                    "preprocessed trace".to_string(),
                    matrix,
                    width.preprocessed.unwrap_or(0),
                )
            }));
        for (part, matrix, expected) in parts {
            if matrix.width() != expected {
                return Err(MockError::Width {
                    air: air(),
                    part,
                    expected,
                    actual: matrix.width(),
                });
            }
            if matrix.height() != height {
                return Err(MockError::PartHeight {
                    air: air(),
                    part,
                    expected: height,
                    actual: matrix.height(),
                });
            }
        }
        let expected = air_pk.vk.params.num_public_values;
        if air_ctx.public_values.len() != expected {
            return Err(MockError::PublicValues {
                air: air(),
                expected,
                actual: air_ctx.public_values.len(),
            });
        }
    }
    for (air_id, air_pk) in pk.per_air.iter().enumerate() {
        if air_pk.vk.is_required && !seen.contains_key(&air_id) {
            return Err(MockError::MissingAir {
                air: labels.air(air_id, &air_pk.air_name).to_string(),
            });
        }
    }
    check_trace_heights(&pk.trace_height_constraints, &seen)
}

fn check_trace_heights(
    bounds: &[LinearConstraint],
    heights: &BTreeMap<usize, usize>,
) -> Result<(), MockError> {
    for (index, bound) in bounds.iter().enumerate() {
        let value = heights
            .iter()
            .map(|(air_id, height)| u64::from(bound.coefficients[*air_id]) * *height as u64)
            .sum();
        if value >= u64::from(bound.threshold) {
            return Err(MockError::TraceHeights {
                index,
                value,
                threshold: bound.threshold,
            });
        }
    }
    Ok(())
}
