//! From a program and its profile to ranked, selected autoprecompiles.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    panic::{catch_unwind, AssertUnwindSafe},
    path::PathBuf,
    str::FromStr,
};

use powdr_autoprecompiles::{
    adapter::{detect_blocks, select_apcs, AdapterApcWithStats, AdapterVmConfig, PgoAdapter},
    blocks::{BasicBlock, BlockAndStats},
    build,
    empirical_constraints::EmpiricalConstraints,
    execution_profile::ExecutionProfile,
    export::ExportOptions,
    pgo::{CellPgo, InstructionPgo, NonePgo},
    GenerateConfig, InstructionHandler, SelectConfig, VmConfig,
};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde::{Deserialize, Serialize};

use super::{
    adapter::{CellCandidate, OpenVmAdapter},
    air::OriginalAirs,
    autoprecompile::Autoprecompile,
    bus_interaction_handler::OpenVmBusInteractionHandler,
    error::ApcError,
    instruction::ApcInstruction,
    program::GuestProgram,
};

/// How blocks are ranked.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Pgo {
    /// By trace cells saved in the profiled execution, per column of the APC. Builds every executed block.
    #[default]
    Cell,
    /// By instructions executed in the profiled execution.
    Instruction,
    /// By the block's length alone; no profile.
    None,
}

impl FromStr for Pgo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        clap::ValueEnum::from_str(text, true)
    }
}

/// Which APCs to build and select.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ApcSettings {
    /// How many APCs to select.
    pub autoprecompiles: u64,
    /// How many of the best-ranked to pass over first.
    pub skip: u64,
    /// How blocks are ranked.
    pub pgo: Pgo,
    /// The most columns that all selected APCs may have together (only for [`Pgo::Cell`]).
    pub max_columns: Option<usize>,
    /// Where powdr writes every candidate for inspection.
    pub candidates_directory: Option<PathBuf>,
}

/// Builds the APCs of a program, best first.
///
/// Returns fewer than asked where the program has fewer eligible blocks: executed (for the profile-guided
/// rankings), two instructions or more. A block that powdr cannot build is left out, with a warning.
///
/// # Errors
/// [`ApcError::MissingProfile`] without a profile for a profile-guided ranking; [`ApcError::Optimizer`] if powdr
/// stops for another reason than a single block; [`ApcError::Unbound`], [`ApcError::CandidatesDirectory`].
pub fn build_apcs(
    program: &GuestProgram,
    profile: Option<&ExecutionProfile>,
    original_airs: &OriginalAirs,
    settings: &ApcSettings,
) -> Result<Vec<Autoprecompile>, ApcError> {
    if settings.autoprecompiles == 0 {
        return Ok(vec![]);
    }
    if let Some(directory) = &settings.candidates_directory {
        std::fs::create_dir_all(directory).map_err(|source| ApcError::CandidatesDirectory {
            path: directory.clone(),
            source,
        })?;
    }
    let generation = Generation::new(program, profile, original_airs, settings);
    let profile_for_ranking = || profile.cloned().ok_or(ApcError::MissingProfile);
    let ranked = match settings.pgo {
        Pgo::Cell => generation.rank(
            &CellPgo::<OpenVmAdapter, CellCandidate>::with_pgo_data_and_max_columns(
                profile_for_ranking()?,
                settings.max_columns,
            ),
        )?,
        Pgo::Instruction => generation.rank(&InstructionPgo::<OpenVmAdapter>::with_pgo_data(
            profile_for_ranking()?,
        ))?,
        Pgo::None => generation.rank(&NonePgo::<OpenVmAdapter>::default())?,
    };
    let selected = select_apcs::<OpenVmAdapter>(
        ranked,
        SelectConfig::new(settings.autoprecompiles, settings.skip),
    );
    selected
        .into_iter()
        .enumerate()
        .map(|(index, built)| {
            let start_pc = built.apc().start_pcs().first().copied().unwrap_or_default();
            let executions = profile
                .and_then(|profile| profile.pc_count.get(&start_pc).copied())
                .unwrap_or(0);
            Autoprecompile::new(built, index, executions, original_airs)
        })
        .collect()
}

/// What goes into powdr's generation of APCs.
struct Generation<'a> {
    original_airs: &'a OriginalAirs,
    pgo: Pgo,
    /// All basic blocks, single instructions included.
    blocks: Vec<Block>,
    config: GenerateConfig,
}

impl<'a> Generation<'a> {
    fn new(
        program: &GuestProgram,
        profile: Option<&ExecutionProfile>,
        original_airs: &'a OriginalAirs,
        settings: &ApcSettings,
    ) -> Self {
        let blocks = match profile {
            Some(profile) => program.basic_blocks_of_execution(profile),
            None => program.basic_blocks(),
        };
        // Ranking by cells builds every candidate: what a block saves is known only then.
        let most = match settings.pgo {
            Pgo::Cell => None,
            Pgo::Instruction | Pgo::None => {
                Some(settings.autoprecompiles.saturating_add(settings.skip))
            }
        };
        let mut config =
            GenerateConfig::new(original_airs.degree_bound()).with_apc_candidates(most);
        if let Some(directory) = &settings.candidates_directory {
            config = config.with_apc_candidates_dir(directory);
        }
        Self {
            original_airs,
            pgo: settings.pgo,
            // An allowed instruction whose AIR the configured VM lacks, or whose AIR an APC cannot take in, ends
            // its block.
            blocks: blocks
                .into_iter()
                .flat_map(|block| split_at_unserved(block, original_airs))
                .collect(),
            config,
        }
    }

    fn vm_config(&self) -> AdapterVmConfig<'a, OpenVmAdapter> {
        VmConfig {
            instruction_handler: self.original_airs,
            bus_interaction_handler: OpenVmBusInteractionHandler::new(
                self.original_airs.buses.clone(),
            ),
            bus_map: self.original_airs.buses.bus_map(),
        }
    }

    /// Builds and ranks. powdr stops at the first block that it cannot build, by a panic: that block is found and left
    /// out, and the others are built again.
    fn rank<P: PgoAdapter<Adapter = OpenVmAdapter>>(
        &self,
        pgo: &P,
    ) -> Result<Vec<AdapterApcWithStats<OpenVmAdapter>>, ApcError> {
        let mut refused = BTreeSet::new();
        loop {
            let candidates = || {
                caught(|| {
                    let mut candidates = detect_blocks(pgo, self.blocks.clone(), &self.config);
                    candidates
                        .blocks
                        .retain(|candidate| !refused.contains(&candidate.block.start_pcs()));
                    candidates
                })
            };
            let all = candidates()?;
            let stopped = match caught(|| {
                pgo.create_apcs_with_pgo(
                    all,
                    &self.config,
                    self.vm_config(),
                    BTreeMap::new(),
                    EmpiricalConstraints::default(),
                )
            }) {
                Ok(ranked) => return Ok(ranked),
                Err(stopped) => stopped,
            };
            let unbuildable = self.unbuildable(candidates()?.blocks);
            if unbuildable.is_empty() {
                return Err(stopped);
            }
            for start_pcs in &unbuildable {
                tracing::warn!(
                    "no APC for the block at pc {:#010x}: powdr cannot build it",
                    start_pcs.first().copied().unwrap_or_default()
                );
            }
            refused.extend(unbuildable);
        }
    }

    /// The blocks among those that powdr has tried to build, by their start pcs, that it cannot build.
    fn unbuildable(&self, mut candidates: Vec<BlockAndStats<ApcInstruction>>) -> Vec<Vec<u64>> {
        // The order in which powdr takes them.
        candidates.sort_by_key(|candidate| {
            let length = candidate.block.instructions().count() as u32;
            Reverse(match self.pgo {
                Pgo::Cell => 0,
                Pgo::Instruction => candidate.count.wrapping_mul(length),
                Pgo::None => length,
            })
        });
        let most = self.config.apc_candidates.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        });
        candidates.truncate(most);
        candidates
            .into_par_iter()
            .filter(|candidate| {
                let built = caught(|| {
                    build::<OpenVmAdapter>(
                        candidate.block.clone(),
                        self.vm_config(),
                        self.config.degree_bound,
                        ExportOptions::default(),
                        &EmpiricalConstraints::default(),
                    )
                });
                !matches!(built, Ok(Ok(_)))
            })
            .map(|candidate| candidate.block.start_pcs())
            .collect()
    }
}

/// powdr states by panicking what it cannot do.
fn caught<T>(call: impl FnOnce() -> T) -> Result<T, ApcError> {
    catch_unwind(AssertUnwindSafe(call))
        .map_err(|payload| ApcError::Optimizer(super::panic_message(&*payload)))
}

type Block = BasicBlock<ApcInstruction>;

/// Cuts a block around instructions that no original AIR of the VM serves.
fn split_at_unserved(block: Block, original_airs: &OriginalAirs) -> Vec<Block> {
    let served = |index: usize| {
        original_airs
            .air_of_opcode(block.instructions[index].opcode)
            .is_some()
    };
    let length = block.instructions.len();
    if length == 1 || (0..length).all(served) {
        return vec![block];
    }
    let mut cuts = vec![0];
    for index in 0..length {
        if !served(index) {
            cuts.extend([index, index + 1]);
        }
    }
    cuts.push(length);
    cuts.windows(2)
        .filter(|cut| cut[0] < cut[1])
        .map(|cut| Block {
            start_pc: block.start_pc + cut[0] as u64 * u64::from(super::PC_STEP),
            instructions: block.instructions[cut[0]..cut[1]].to_vec(),
        })
        .collect()
}
