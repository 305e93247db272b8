//! Digests of all traces of a run, and their comparison: do two trace generators make the same traces?
//!
//! Traces have to be equal value by value. Two of OpenVM's own system AIRs are the exception, and compared as multisets
//! of rows: [`ROWS_IN_ANY_ORDER`].

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    path::Path,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{artifacts::write_atomically, device::Device, error::PipelineError};
use crate::{
    bus::BusKernel,
    vm::digest::{AirDigest, SegmentDigest, TracePart},
};

/// An AIR of OpenVM whose rows stand in another order on another device, or in another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnorderedAir {
    /// What the name of the AIR (its type) begins with.
    pub name: &'static str,
    /// Why the order differs.
    pub reason: &'static str,
    /// Whether it also differs between two runs on the CPU; if not, only between CPU and GPU.
    pub differs_on_cpu: bool,
}

/// The AIRs whose rows may stand in another order. Two runs on a GPU have to agree on these, too.
pub const ROWS_IN_ANY_ORDER: [UnorderedAir; 2] = [
    UnorderedAir {
        name: "Poseidon2Periphery",
        reason: "the CPU writes its rows in the order of a DashMap, the GPU sorts them (openvm-circuit 2.0.2, \
                 system/poseidon2/trace.rs)",
        differs_on_cpu: true,
    },
    UnorderedAir {
        name: "MemoryMerkleAir",
        reason: "within a layer of the tree the CPU goes from right to left, new node first, and the GPU from left to \
                 right, old node first (openvm-circuit 2.0.2, system/memory/merkle/trace.rs and \
                 cuda/src/system/memory/merkle_tree.cu)",
        differs_on_cpu: false,
    },
];

/// At most this many differences are described.
const MAX_DESCRIBED: usize = 20;
/// At most this many columns of one trace are listed.
const MAX_COLUMNS: usize = 8;

/// Digests of all traces of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceDigests {
    /// Where the traces were generated.
    pub device: Device,
    /// The kernel that applied the APCs' bus interactions.
    pub bus_kernel: BusKernel,
    /// The segments, in order.
    pub segments: Vec<SegmentDigest>,
}

/// A difference between two runs' traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceDifference {
    /// The runs have different numbers of segments; then nothing else is compared.
    Segments {
        /// Of the first run.
        first: usize,
        /// Of the second.
        second: usize,
    },
    /// An AIR has a trace in one run only.
    Missing {
        /// The segment.
        segment: usize,
        /// The AIR.
        air: String,
        /// Whether it is the first run that has it.
        in_first: bool,
    },
    /// The AIRs at the same place of the verifying keys are not the same.
    Name {
        /// The segment.
        segment: usize,
        /// The AIR in each run.
        airs: [String; 2],
    },
    /// Different heights.
    Height {
        /// The segment.
        segment: usize,
        /// The AIR.
        air: String,
        /// The height in each run.
        heights: [usize; 2],
    },
    /// Different public values.
    PublicValues {
        /// The segment.
        segment: usize,
        /// The AIR.
        air: String,
        /// The public values in each run.
        values: [Vec<u32>; 2],
    },
    /// Different numbers of cached and common traces, or of their columns.
    Shape {
        /// The segment.
        segment: usize,
        /// The AIR.
        air: String,
        /// Each trace with its number of columns, in each run.
        widths: [Vec<(TracePart, usize)>; 2],
    },
    /// Different values.
    Values {
        /// The segment.
        segment: usize,
        /// The AIR.
        air: String,
        /// Which trace of it.
        part: TracePart,
        /// The columns that differ.
        columns: Vec<usize>,
        /// Whether both have the same rows, in another order.
        same_rows: bool,
    },
}

impl Display for TraceDifference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segments { first, second } => write!(
                f,
                "the runs have {first} and {second} segments: they were not segmented alike, and nothing else was compared \
                 (how much memory OpenVM expects a segment to take depends on the device)"
            ),
            Self::Missing {
                segment,
                air,
                in_first,
            } => {
                let run = if *in_first { "first" } else { "second" };
                write!(
                    f,
                    "segment {segment}: only the {run} run has a trace of {air}"
                )
            }
            Self::Name {
                segment,
                airs: [first, second],
            } => write!(
                f,
                "segment {segment}: {first} where the second run has {second}"
            ),
            Self::Height {
                segment,
                air,
                heights: [first, second],
            } => write!(f, "segment {segment}, {air}: {first} rows and {second}"),
            Self::PublicValues {
                segment,
                air,
                values: [first, second],
            } => write!(
                f,
                "segment {segment}, {air}: public values {first:?} and {second:?}"
            ),
            Self::Shape {
                segment,
                air,
                widths: [first, second],
            } => write!(
                f,
                "segment {segment}, {air}: traces and widths {first:?} and {second:?}"
            ),
            Self::Values {
                segment,
                air,
                part,
                columns,
                same_rows,
            } => {
                let shown = &columns[..columns.len().min(MAX_COLUMNS)];
                let more = if shown.len() < columns.len() {
                    " …"
                } else {
                    ""
                };
                let rows = if *same_rows {
                    "the same rows in another order"
                } else {
                    "other rows"
                };
                write!(
                    f,
                    "segment {segment}, {air}, {part}: {rows}; {} column(s) differ: {shown:?}{more}",
                    columns.len()
                )
            }
        }
    }
}

/// Two runs did not make the same traces.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct TracesDiffer {
    /// All differences.
    pub differences: Vec<TraceDifference>,
}

impl Display for TracesDiffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the traces differ in {} place(s)",
            self.differences.len()
        )?;
        for difference in self.differences.iter().take(MAX_DESCRIBED) {
            write!(f, "\n  {difference}")?;
        }
        match self.differences.len().saturating_sub(MAX_DESCRIBED) {
            0 => Ok(()),
            more => write!(f, "\n  … and {more} more"),
        }
    }
}

/// What two runs with the same traces had to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceComparison {
    /// Segments.
    pub segments: usize,
    /// Traces with equal values in equal places, over all segments.
    pub in_order: usize,
    /// Traces with the same rows in another order, by their AIR, over all segments.
    pub reordered: BTreeMap<String, usize>,
}

impl Display for TraceComparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            segments,
            in_order,
            reordered,
        } = self;
        write!(
            f,
            "{in_order} traces in {segments} segment(s) are equal value by value"
        )?;
        for (air, count) in reordered {
            write!(f, "\n{count} of {air} have the same rows in another order")?;
            if let Some(unordered) = ROWS_IN_ANY_ORDER
                .iter()
                .find(|unordered| air.starts_with(unordered.name))
            {
                write!(f, ": {}", unordered.reason)?;
            }
        }
        Ok(())
    }
}

impl TraceDigests {
    /// Writes them as JSON.
    pub fn write(&self, path: &Path) -> Result<(), PipelineError> {
        let mut json = serde_json::to_vec(self)
            .map_err(|error| PipelineError::Vm(format!("the trace digests: {error}")))?;
        json.push(b'\n');
        write_atomically("the trace digests", path, &json)
    }

    /// Reads what [`TraceDigests::write`] wrote.
    pub fn read(path: &Path) -> Result<Self, PipelineError> {
        let json = std::fs::read(path).map_err(|source| PipelineError::Read {
            what: "the trace digests",
            path: path.to_path_buf(),
            source,
        })?;
        serde_json::from_slice(&json).map_err(|error| PipelineError::TraceDigests {
            path: path.to_path_buf(),
            message: error.to_string(),
        })
    }

    /// Compares with the traces of another run: AIRs, heights, public values, and values in their places, except for
    /// [`ROWS_IN_ANY_ORDER`].
    ///
    /// # Errors
    /// Every difference; if the numbers of segments differ, that alone.
    pub fn compare(&self, other: &Self) -> Result<TraceComparison, TracesDiffer> {
        if self.segments.len() != other.segments.len() {
            let differences = vec![TraceDifference::Segments {
                first: self.segments.len(),
                second: other.segments.len(),
            }];
            return Err(TracesDiffer { differences });
        }
        let mut comparison = TraceComparison {
            segments: self.segments.len(),
            ..Default::default()
        };
        let mut differences = vec![];
        for (segment, (first, second)) in self.segments.iter().zip(&other.segments).enumerate() {
            let by_id = |digest: &SegmentDigest| -> BTreeMap<usize, AirDigest> {
                let airs = digest.airs.iter();
                airs.map(|air| (air.air_id, air.clone())).collect()
            };
            let (first, mut second) = (by_id(first), by_id(second));
            for (air_id, first) in first {
                match second.remove(&air_id) {
                    Some(second) => {
                        let any_order = self.any_order(other, &first.air);
                        compare_airs(
                            segment,
                            [&first, &second],
                            any_order,
                            &mut comparison,
                            &mut differences,
                        );
                    }
                    None => differences.push(TraceDifference::Missing {
                        segment,
                        air: first.air,
                        in_first: true,
                    }),
                }
            }
            differences.extend(second.into_values().map(|air| TraceDifference::Missing {
                segment,
                air: air.air,
                in_first: false,
            }));
        }
        if differences.is_empty() {
            Ok(comparison)
        } else {
            Err(TracesDiffer { differences })
        }
    }

    /// Whether the rows of an AIR may stand in another order in the other run.
    fn any_order(&self, other: &Self, air: &str) -> bool {
        ROWS_IN_ANY_ORDER
            .iter()
            .find(|unordered| air.starts_with(unordered.name))
            .is_some_and(|unordered| {
                self.device != other.device
                    || (unordered.differs_on_cpu && self.device == Device::Cpu)
            })
    }
}

/// Compares the traces of one AIR in one segment.
fn compare_airs(
    segment: usize,
    [first, second]: [&AirDigest; 2],
    any_order: bool,
    comparison: &mut TraceComparison,
    differences: &mut Vec<TraceDifference>,
) {
    let air = || first.air.clone();
    if first.air != second.air {
        differences.push(TraceDifference::Name {
            segment,
            airs: [first.air.clone(), second.air.clone()],
        });
        return;
    }
    if first.public_values != second.public_values {
        differences.push(TraceDifference::PublicValues {
            segment,
            air: air(),
            values: [first.public_values.clone(), second.public_values.clone()],
        });
    }
    if first.height != second.height {
        differences.push(TraceDifference::Height {
            segment,
            air: air(),
            heights: [first.height, second.height],
        });
        return;
    }
    let widths = [first, second].map(|air| -> Vec<(TracePart, usize)> {
        let matrices = air.matrices.iter();
        matrices
            .map(|matrix| (matrix.part, matrix.columns.len()))
            .collect()
    });
    if widths[0] != widths[1] {
        differences.push(TraceDifference::Shape {
            segment,
            air: air(),
            widths,
        });
        return;
    }
    for (first, second) in first.matrices.iter().zip(&second.matrices) {
        let same_rows = first.rows == second.rows;
        if first.values == second.values && same_rows {
            comparison.in_order += 1;
        } else if any_order && same_rows {
            *comparison.reordered.entry(air()).or_default() += 1;
        } else {
            differences.push(TraceDifference::Values {
                segment,
                air: air(),
                part: first.part,
                columns: (0..first.columns.len())
                    .filter(|&column| first.columns[column] != second.columns[column])
                    .collect(),
                same_rows,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::digest::MatrixDigest;

    fn air(air_id: usize, name: &str) -> AirDigest {
        let matrix = |part| MatrixDigest {
            part,
            values: "ordered".to_string(),
            rows: "rows".to_string(),
            columns: vec!["a".to_string(), "b".to_string()],
        };
        AirDigest {
            air_id,
            air: name.to_string(),
            height: 8,
            public_values: vec![1, 2],
            matrices: vec![matrix(TracePart::Cached(0)), matrix(TracePart::Common)],
        }
    }

    fn digests(device: Device) -> TraceDigests {
        let airs = [
            "ProgramAir",
            "MemoryMerkleAir<8>",
            "Autoprecompile_0x100",
            "Poseidon2PeripheryAir<1>",
        ];
        let airs = airs.into_iter().enumerate();
        let segment = SegmentDigest {
            airs: airs.map(|(air_id, name)| air(air_id, name)).collect(),
        };
        TraceDigests {
            device,
            bus_kernel: BusKernel::Vm,
            segments: vec![segment.clone(), segment],
        }
    }

    /// The common trace of an AIR in segment 1.
    fn common(digests: &mut TraceDigests, air: usize) -> &mut MatrixDigest {
        &mut digests.segments[1].airs[air].matrices[1]
    }

    fn reordered(device: Device, air: usize) -> TraceDigests {
        let mut digests = digests(device);
        let matrix = common(&mut digests, air);
        matrix.values = "in another order".to_string();
        matrix.columns = vec!["c".to_string(), "d".to_string()];
        digests
    }

    #[test]
    fn equal_runs_are_equal_in_order() {
        for other in [Device::Cpu, Device::Cuda] {
            let comparison = digests(Device::Cpu).compare(&digests(other));
            let comparison = comparison.expect("the digests are equal");
            assert_eq!((comparison.segments, comparison.in_order), (2, 16));
            assert!(comparison.reordered.is_empty());
        }
    }

    #[test]
    fn rows_in_another_order_are_accepted_of_the_named_airs_alone() {
        use Device::{Cpu, Cuda};
        let [merkle, apc, poseidon2] = [1, 2, 3];
        for (first, second, air, accepted) in [
            (Cpu, Cpu, poseidon2, true),
            (Cpu, Cuda, poseidon2, true),
            (Cuda, Cuda, poseidon2, false),
            (Cpu, Cpu, merkle, false),
            (Cuda, Cpu, merkle, true),
            (Cuda, Cuda, merkle, false),
            (Cpu, Cuda, apc, false),
        ] {
            let compared = digests(first).compare(&reordered(second, air));
            assert_eq!(
                compared.is_ok(),
                accepted,
                "{first:?}, {second:?}, AIR {air}"
            );
            match compared {
                Ok(comparison) => assert_eq!(comparison.reordered.values().sum::<usize>(), 1),
                Err(TracesDiffer { differences }) => assert!(matches!(
                    &differences[..],
                    [TraceDifference::Values { segment: 1, part: TracePart::Common, columns, same_rows: true, .. }]
                        if columns[..] == [0, 1]
                )),
            }
        }
    }

    #[test]
    fn other_rows_are_a_difference_everywhere() {
        for air in 0..4 {
            let mut other = reordered(Device::Cuda, air);
            common(&mut other, air).rows = "other rows".to_string();
            let differ = digests(Device::Cpu).compare(&other);
            let differ = differ.expect_err("the rows differ");
            assert_eq!(differ.differences.len(), 1, "{differ}");
            assert!(differ.to_string().contains("other rows"), "{differ}");
        }
    }

    #[test]
    fn shapes_and_public_values_are_compared() {
        type Change = fn(&mut TraceDigests);
        let changes: [(Change, &str); 7] = [
            (
                |digests| drop(digests.segments.pop()),
                "the runs have 2 and 1 segments",
            ),
            (
                |digests| drop(digests.segments[0].airs.remove(2)),
                "only the first run has a trace of Autoprecompile_0x100",
            ),
            (
                |digests| digests.segments[0].airs[2].air = "Autoprecompile_0x200".to_string(),
                "Autoprecompile_0x200",
            ),
            (
                |digests| digests.segments[0].airs[2].height = 16,
                "8 rows and 16",
            ),
            (
                |digests| digests.segments[0].airs[2].public_values[1] = 3,
                "[1, 2] and [1, 3]",
            ),
            (|digests| drop(common(digests, 2).columns.pop()), "widths"),
            (
                |digests| drop(digests.segments[1].airs[0].matrices.remove(0)),
                "widths",
            ),
        ];
        for (change, said) in changes {
            let mut other = digests(Device::Cuda);
            change(&mut other);
            let differ = digests(Device::Cpu).compare(&other);
            let differ = differ.expect_err("something differs").to_string();
            assert!(differ.contains(said), "{differ}");
        }
    }
}
