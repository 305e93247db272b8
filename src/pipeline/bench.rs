//! A/B of bus kernels in whole proofs on the GPU (feature `cuda`): the same guest proven with each in turn, in one process.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    device::gpu_setup,
    error::PipelineError,
    guest::GuestInput,
    stages::{Pipeline, ProveSettings, SelectedApcs},
};
use crate::{
    bus::BusKernel,
    gpu::{
        event::{record_launches, LaunchTiming},
        open_device, program_uploads, Provenance,
    },
    times::Times,
    trace::{gpu::plan_uploads, substage::Substage},
};

/// GPU milliseconds of one substage over the launches of one proof, by CUDA events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubstageTimes {
    /// Name of the substage.
    pub substage: &'static str,
    /// How often it ran: once per APC that was called and segment.
    pub launches: usize,
    /// Sum.
    pub sum: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Maximum.
    pub max: f64,
}

/// GPU milliseconds of the bus substages over the launches of one segment, by CUDA events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SegmentTimes {
    /// The segment, counted from zero.
    pub segment: usize,
    /// Sum of [`Substage::BusCompileH2d`].
    pub bus_compile_h2d: f64,
    /// Sum of [`Substage::BusKernel`].
    pub bus_kernel: f64,
}

/// One proof.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProofTimes {
    /// Wall-clock milliseconds from the input to the proof.
    pub proof: f64,
    /// The substages that ran, in their order.
    pub substages: Vec<SubstageTimes>,
    /// The bus substages, segment by segment.
    pub segments: Vec<SegmentTimes>,
    /// APCs that were called.
    pub called_apcs: usize,
    /// Bus programs uploaded by this proof: one per called APC in the first, none later.
    pub program_uploads: u64,
    /// Plans (substitutions and derived columns) uploaded by this proof: one per called APC in the first, none later.
    pub plan_uploads: u64,
}

impl ProofTimes {
    /// The sum of a substage, zero if it did not run.
    pub fn sum(&self, substage: Substage) -> f64 {
        self.of(substage).map_or(0.0, |times| times.sum)
    }

    /// A substage's times, if it ran.
    pub fn of(&self, substage: Substage) -> Option<&SubstageTimes> {
        self.substages
            .iter()
            .find(|times| times.substage == substage.name())
    }
}

/// All proofs with one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTimes {
    /// The kernel.
    pub kernel: BusKernel,
    /// The proofs, in order. The first one compiles and uploads the programs.
    pub proofs: Vec<ProofTimes>,
}

impl KernelTimes {
    /// Of the proofs after the first, which also compiles, uploads and loads kernels, the one with the median `bus_kernel`
    /// sum (the slower of the two in the middle); the first if it is the only one.
    pub fn median(&self) -> Option<&ProofTimes> {
        let mut proofs: Vec<_> = self.proofs.iter().collect();
        if proofs.len() > 1 {
            proofs.remove(0);
        }
        proofs.sort_by(|left, right| {
            left.sum(Substage::BusKernel)
                .total_cmp(&right.sum(Substage::BusKernel))
        });
        proofs.get(proofs.len() / 2).copied()
    }
}

/// The result of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// Device, driver and commit.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Number of APCs.
    pub apcs: usize,
    /// Segments of the run.
    pub segments: usize,
    /// The commitments to the segments' traces, the same with every kernel.
    pub trace_commits: Vec<[u32; 8]>,
    /// The kernels, in the order asked for.
    pub kernels: Vec<KernelTimes>,
}

/// Proves `input` `runs` times with each kernel, verifies each proof, and checks that all agree on the traces and that
/// nothing is uploaded again that does not depend on the segment. `commit` is [`commit!`](crate::commit) of the binary.
///
/// # Errors
/// Those of proving, [`PipelineError::Verify`] if two kernels make different traces, and
/// [`PipelineError::Uploads`].
pub fn bench(
    commit: &'static str,
    pipeline: &Pipeline,
    selected: &SelectedApcs,
    settings: &ProveSettings,
    kernels: &[BusKernel],
    runs: usize,
    input: &GuestInput,
) -> Result<BenchReport, PipelineError> {
    let mut report = BenchReport {
        provenance: Provenance::new(&open_device()?, commit),
        apcs: selected.apcs.len(),
        segments: 0,
        trace_commits: vec![],
        kernels: vec![],
    };
    for &kernel in kernels {
        let settings = ProveSettings {
            bus_kernel: kernel,
            ..settings.clone()
        };
        let mut setup = gpu_setup(pipeline, selected, &settings)?;
        let mut proofs = Vec::with_capacity(runs);
        for _ in 0..runs {
            let uploads_before = [program_uploads(), plan_uploads()];
            let ((proven, elapsed), timings) =
                record_launches(|| pipeline.prove(&mut setup, input))?;
            let verified = proven.verify()?;
            if report.trace_commits.is_empty() {
                report.segments = verified.trace_commits.len();
                report.trace_commits = verified.trace_commits;
            } else if report.trace_commits != verified.trace_commits {
                return Err(PipelineError::Verify(format!(
                    "the traces with kernel {kernel} differ from those before it"
                )));
            }
            let uploads = [program_uploads(), plan_uploads()];
            let [program_uploads, plan_uploads] = [0, 1].map(|of| uploads[of] - uploads_before[of]);
            proofs.push(ProofTimes {
                proof: elapsed.as_secs_f64() * 1e3,
                substages: summarize(&timings),
                segments: by_segment(&timings),
                called_apcs: called_apcs(&timings),
                program_uploads,
                plan_uploads,
            });
        }
        check_uploads(kernel, &proofs)?;
        report.kernels.push(KernelTimes { kernel, proofs });
    }
    Ok(report)
}

/// Checks that the first proof uploaded one bus program and one plan for each APC that was called, whatever its segments,
/// and that the later ones uploaded none.
fn check_uploads(kernel: BusKernel, proofs: &[ProofTimes]) -> Result<(), PipelineError> {
    for (index, proof) in proofs.iter().enumerate() {
        let expected = if index == 0 {
            proof.called_apcs as u64
        } else {
            0
        };
        for (what, uploads) in [
            ("bus programs", proof.program_uploads),
            (
                "plans (substitutions and derived columns)",
                proof.plan_uploads,
            ),
        ] {
            if uploads != expected {
                return Err(PipelineError::Uploads {
                    kernel,
                    proof: index + 1,
                    what,
                    uploads,
                    expected,
                });
            }
        }
    }
    Ok(())
}

/// The APCs that a bus kernel was launched for.
fn called_apcs(timings: &[LaunchTiming]) -> usize {
    of_substage(timings, Substage::BusKernel)
        .map(|timing| timing.apc.as_str())
        .collect::<BTreeSet<_>>()
        .len()
}

fn of_substage(
    timings: &[LaunchTiming],
    substage: Substage,
) -> impl Iterator<Item = &LaunchTiming> {
    timings
        .iter()
        .filter(move |timing| timing.substage == substage.name())
}

fn by_segment(timings: &[LaunchTiming]) -> Vec<SegmentTimes> {
    let segments: BTreeSet<usize> = timings.iter().map(|timing| timing.segment).collect();
    segments
        .into_iter()
        .map(|segment| {
            let sum = |substage| {
                of_substage(timings, substage)
                    .filter(|timing| timing.segment == segment)
                    .map(|timing| timing.milliseconds)
                    .sum()
            };
            SegmentTimes {
                segment,
                bus_compile_h2d: sum(Substage::BusCompileH2d),
                bus_kernel: sum(Substage::BusKernel),
            }
        })
        .collect()
}

fn summarize(timings: &[LaunchTiming]) -> Vec<SubstageTimes> {
    Substage::ALL
        .into_iter()
        .filter_map(|substage| {
            let mut launches: Vec<f64> = of_substage(timings, substage)
                .map(|timing| timing.milliseconds)
                .collect();
            let times = Times::of(&mut launches)?;
            Some(SubstageTimes {
                substage: substage.name(),
                launches: launches.len(),
                sum: launches.iter().sum(),
                mean: times.mean,
                median: times.median,
                max: times.max,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(substage: Substage, apc: &str, segment: usize, milliseconds: f64) -> LaunchTiming {
        LaunchTiming {
            substage: substage.name(),
            apc: apc.to_string(),
            segment,
            milliseconds,
        }
    }

    /// A proof that called ten APCs and uploaded nothing.
    fn proof(timings: &[LaunchTiming]) -> ProofTimes {
        ProofTimes {
            proof: 1.0,
            substages: summarize(timings),
            segments: by_segment(timings),
            called_apcs: 10,
            program_uploads: 0,
            plan_uploads: 0,
        }
    }

    #[test]
    fn uploads_other_than_one_per_called_apc_are_an_error() {
        let check = |uploads: &[(u64, u64)]| {
            let proofs: Vec<_> = uploads
                .iter()
                .map(|&(program_uploads, plan_uploads)| ProofTimes {
                    program_uploads,
                    plan_uploads,
                    ..proof(&[])
                })
                .collect();
            check_uploads(BusKernel::Dag, &proofs)
        };
        assert!(check(&[(10, 10), (0, 0), (0, 0)]).is_ok());
        for (wrong, said) in [
            (&[(20, 10), (0, 0)][..], "proof 1"),
            (&[(0, 0), (0, 0)], "proof 1"),
            (&[(10, 11), (0, 0)], "plans"),
            (&[(10, 10), (1, 0)], "bus programs"),
            (&[(10, 10), (0, 0), (0, 1)], "proof 3"),
        ] {
            let error = check(wrong).expect_err("wrong uploads").to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn the_first_proof_is_not_the_median() {
        let kernel = |sums: &[f64]| KernelTimes {
            kernel: BusKernel::Terms,
            proofs: sums
                .iter()
                .map(|&sum| proof(&[timing(Substage::BusKernel, "a", 0, sum)]))
                .collect(),
        };
        let median = |sums: &[f64]| {
            kernel(sums)
                .median()
                .map(|proof| proof.sum(Substage::BusKernel))
        };
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9.0]), Some(9.0));
        assert_eq!(median(&[9.0, 1.0]), Some(1.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[0.0, 3.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn bus_substages_are_summed_by_segment_and_called_apcs_counted() {
        let timings = [
            timing(Substage::BusCompileH2d, "a", 0, 4.0),
            timing(Substage::BusKernel, "a", 0, 1.0),
            timing(Substage::BusKernel, "b", 0, 2.0),
            timing(Substage::BusKernel, "a", 2, 8.0),
            timing(Substage::Derived, "c", 2, 16.0),
        ];
        let segment = |segment, bus_compile_h2d, bus_kernel| SegmentTimes {
            segment,
            bus_compile_h2d,
            bus_kernel,
        };
        assert_eq!(
            by_segment(&timings),
            [segment(0, 4.0, 3.0), segment(2, 0.0, 8.0)]
        );
        assert_eq!(called_apcs(&timings), 2);
    }

    #[test]
    fn launches_are_summed_by_substage() {
        let summary = summarize(&[
            timing(Substage::BusKernel, "a", 0, 3.0),
            timing(Substage::Derived, "a", 0, 0.5),
            timing(Substage::BusKernel, "a", 1, 1.0),
            timing(Substage::BusKernel, "b", 1, 8.0),
        ]);
        assert_eq!(
            summary,
            vec![
                SubstageTimes {
                    substage: "derived",
                    launches: 1,
                    sum: 0.5,
                    mean: 0.5,
                    median: 0.5,
                    max: 0.5,
                },
                SubstageTimes {
                    substage: "bus_kernel",
                    launches: 3,
                    sum: 12.0,
                    mean: 4.0,
                    median: 3.0,
                    max: 8.0,
                },
            ]
        );
    }
}
