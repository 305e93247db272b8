//! Digests of a segment's traces: what the traces of two generators (CPU and GPU, two bus kernels, two runs) are
//! compared by, without keeping either.
//!
//! Traces come one AIR at a time from the device to the host, through stark-backend's [`DeviceDataTransporter`], so that
//! at most one trace is held twice.

use std::fmt::{self, Display, Formatter};

use openvm_stark_backend::{
    prover::{
        ColMajorMatrix, DeviceDataTransporter, DeviceMultiStarkProvingKey, MatrixDimensions,
        ProvingContext,
    },
    StarkEngine, StarkProtocolConfig,
};
use p3_field::PrimeField32;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Labels;

/// Bytes of a column's digest that are kept: enough to tell which columns differ. That *none* differs is said by
/// [`MatrixDigest::values`], which is whole.
const COLUMN_DIGEST_BYTES: usize = 8;
/// Rows that one thread hashes at a time.
const ROWS_PER_CHUNK: usize = 256;

/// Which of an AIR's main traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TracePart {
    /// A trace that was committed to beforehand, by its index.
    Cached(usize),
    /// The trace that is committed to together with those of all other AIRs.
    Common,
}

impl Display for TracePart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cached(index) => write!(f, "cached trace {index}"),
            Self::Common => f.write_str("main trace"),
        }
    }
}

/// Digests of one matrix. All are SHA-256 of canonical values, as little-endian `u32`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatrixDigest {
    /// Which of the AIR's main traces.
    pub part: TracePart,
    /// Of the values in their places: of the columns' digests, in order.
    pub values: String,
    /// Of the rows whatever their order: of the rows' digests, sorted.
    pub rows: String,
    /// Of each column, the first 8 bytes.
    pub columns: Vec<String>,
}

impl MatrixDigest {
    /// Digests a matrix.
    pub fn of<F: PrimeField32>(part: TracePart, matrix: &ColMajorMatrix<F>) -> Self {
        let (width, height) = (matrix.width(), matrix.height());
        let columns: Vec<[u8; 32]> = (0..width)
            .into_par_iter()
            .map(|column| digest_values(matrix.column(column)))
            .collect();
        let mut rows: Vec<[u8; 32]> = (0..height.div_ceil(ROWS_PER_CHUNK))
            .into_par_iter()
            .flat_map_iter(|chunk| {
                let start = chunk * ROWS_PER_CHUNK;
                let end = height.min(start + ROWS_PER_CHUNK);
                // Column by column, as the values lie in memory.
                let mut transposed = F::zero_vec((end - start) * width);
                for column in 0..width {
                    for (row, value) in matrix.column(column)[start..end].iter().enumerate() {
                        transposed[row * width + column] = *value;
                    }
                }
                (0..end - start)
                    .map(move |row| digest_values(&transposed[row * width..(row + 1) * width]))
            })
            .collect();
        rows.par_sort_unstable();
        Self {
            part,
            values: digest_of(&columns),
            rows: digest_of(&rows),
            columns: columns
                .iter()
                .map(|digest| hex::encode(&digest[..COLUMN_DIGEST_BYTES]))
                .collect(),
        }
    }
}

fn digest_values<F: PrimeField32>(values: &[F]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut block = [0; 256];
    for values in values.chunks(block.len() / 4) {
        let block = &mut block[..4 * values.len()];
        for (bytes, value) in block.chunks_exact_mut(4).zip(values) {
            bytes.copy_from_slice(&value.as_canonical_u32().to_le_bytes());
        }
        hasher.update(block);
    }
    hasher.finalize().into()
}

fn digest_of(digests: &[[u8; 32]]) -> String {
    hex::encode(Sha256::digest(digests.as_flattened()))
}

/// Digests of one AIR's traces in one segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AirDigest {
    /// The AIR's position in the verifying key.
    pub air_id: usize,
    /// Its name: an APC's own, or the AIR's type.
    pub air: String,
    /// Rows of each of its traces.
    pub height: usize,
    /// Its public values, canonical.
    pub public_values: Vec<u32>,
    /// Its main traces: the cached ones, then the common one.
    pub matrices: Vec<MatrixDigest>,
}

/// Digests of all traces of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentDigest {
    /// The AIRs with a trace, by their ids.
    pub airs: Vec<AirDigest>,
}

impl SegmentDigest {
    /// Digests the traces of a segment, which stay as they are.
    ///
    /// # Panics
    /// If a trace cannot be brought to the host: stark-backend's transporters return no errors.
    pub fn of<E>(
        engine: &E,
        pk: &DeviceMultiStarkProvingKey<E::PB>,
        ctx: &ProvingContext<E::PB>,
        labels: &Labels,
    ) -> Self
    where
        E: StarkEngine,
        E::SC: StarkProtocolConfig<F: PrimeField32>,
    {
        let digest = |part, matrix| {
            let matrix = engine.device().transport_matrix_from_device_to_host(matrix);
            MatrixDigest::of(part, &matrix)
        };
        let mut airs: Vec<AirDigest> = ctx
            .per_trace
            .iter()
            .map(|(air_id, ctx)| {
                let type_name = pk
                    .per_air
                    .get(*air_id)
                    .map_or("unknown", |pk| pk.air_name.as_str());
                let mut matrices: Vec<MatrixDigest> = ctx
                    .cached_mains
                    .iter()
                    .enumerate()
                    .map(|(index, cached)| digest(TracePart::Cached(index), &cached.trace))
                    .collect();
                if ctx.common_main.width() != 0 {
                    matrices.push(digest(TracePart::Common, &ctx.common_main));
                }
                AirDigest {
                    air_id: *air_id,
                    air: labels.air(*air_id, type_name).to_string(),
                    height: ctx.common_main.height(),
                    public_values: ctx
                        .public_values
                        .iter()
                        .map(|value| value.as_canonical_u32())
                        .collect(),
                    matrices,
                }
            })
            .collect();
        airs.sort_by_key(|air| air.air_id);
        Self { airs }
    }
}

#[cfg(test)]
mod tests {
    use p3_baby_bear::BabyBear;
    use p3_field::PrimeCharacteristicRing;

    use super::*;

    /// 1,024 rows of 3 columns, so that several chunks are hashed.
    fn matrix(change: impl FnOnce(&mut Vec<BabyBear>)) -> MatrixDigest {
        let mut values = (0..3 * 1024).map(BabyBear::from_u32).collect();
        change(&mut values);
        MatrixDigest::of(TracePart::Common, &ColMajorMatrix::new(values, 3))
    }

    fn differing_columns(left: &MatrixDigest, right: &MatrixDigest) -> Vec<usize> {
        (0..left.columns.len())
            .filter(|&column| left.columns[column] != right.columns[column])
            .collect()
    }

    #[test]
    fn equal_matrices_have_equal_digests() {
        assert_eq!(matrix(|_| ()), matrix(|_| ()));
    }

    #[test]
    fn every_changed_cell_is_noticed() {
        let right = matrix(|_| ());
        for cell in [0, 255, 256, 1023, 1024, 3 * 1024 - 1] {
            let wrong = matrix(|values| values[cell] += BabyBear::ONE);
            assert_ne!(right.values, wrong.values, "cell {cell}");
            assert_ne!(right.rows, wrong.rows, "cell {cell}");
            assert_eq!(differing_columns(&right, &wrong), [cell / 1024]);
        }
    }

    #[test]
    fn rows_in_another_order_are_told_from_other_rows() {
        let right = matrix(|_| ());
        let swapped = matrix(|values| {
            (0..3).for_each(|column| values.swap(column * 1024, column * 1024 + 700))
        });
        assert_ne!(right.values, swapped.values);
        assert_eq!(right.rows, swapped.rows);
        // Swapped in one column alone: other rows.
        let torn = matrix(|values| values.swap(0, 700));
        assert_ne!(right.rows, torn.rows);
        // How often a row occurs counts.
        let doubled = matrix(|values| {
            (0..3).for_each(|column| values[column * 1024] = values[column * 1024 + 1])
        });
        let doubled_other = matrix(|values| {
            (0..3).for_each(|column| values[column * 1024] = values[column * 1024 + 2])
        });
        assert_ne!(doubled.rows, doubled_other.rows);
    }
}
