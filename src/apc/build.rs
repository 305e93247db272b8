//! From a program and its profile to ranked, selected autoprecompiles.

use std::{
    collections::BTreeMap,
    panic::{catch_unwind, AssertUnwindSafe},
    path::PathBuf,
    str::FromStr,
};

use powdr_autoprecompiles::{
    adapter::{detect_blocks, select_apcs, AdapterApcWithStats, PgoAdapter},
    empirical_constraints::EmpiricalConstraints,
    execution_profile::ExecutionProfile,
    pgo::{CellPgo, InstructionPgo, NonePgo},
    GenerateConfig, InstructionHandler, PgoType, SelectConfig, VmConfig,
};
use serde::{Deserialize, Serialize};

use super::{
    adapter::{CellCandidate, OpenVmAdapter},
    air::OriginalAirs,
    autoprecompile::Autoprecompile,
    bus_interaction_handler::OpenVmBusInteractionHandler,
    error::ApcError,
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
/// rankings), two instructions or more.
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
    let ranked = catch_unwind(AssertUnwindSafe(|| {
        rank(program, profile, original_airs, settings)
    }))
    .map_err(|payload| ApcError::Optimizer(super::panic_message(&*payload)))?;
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

fn rank(
    program: &GuestProgram,
    profile: Option<&ExecutionProfile>,
    original_airs: &OriginalAirs,
    settings: &ApcSettings,
) -> Vec<AdapterApcWithStats<OpenVmAdapter>> {
    let empty = || ExecutionProfile {
        pc_count: Default::default(),
        pc_list: vec![],
    };
    let profile = || profile.cloned().unwrap_or_else(empty);
    match settings.pgo {
        Pgo::Cell => rank_with(
            &CellPgo::<OpenVmAdapter, CellCandidate>::with_pgo_data_and_max_columns(
                profile(),
                settings.max_columns,
            ),
            PgoType::Cell,
            program,
            original_airs,
            settings,
        ),
        Pgo::Instruction => rank_with(
            &InstructionPgo::<OpenVmAdapter>::with_pgo_data(profile()),
            PgoType::Instruction,
            program,
            original_airs,
            settings,
        ),
        Pgo::None => rank_with(
            &NonePgo::<OpenVmAdapter>::default(),
            PgoType::None,
            program,
            original_airs,
            settings,
        ),
    }
}

fn rank_with<P: PgoAdapter<Adapter = OpenVmAdapter>>(
    pgo: &P,
    pgo_type: PgoType,
    program: &GuestProgram,
    original_airs: &OriginalAirs,
    settings: &ApcSettings,
) -> Vec<AdapterApcWithStats<OpenVmAdapter>> {
    let mut generate = GenerateConfig::new(original_airs.degree_bound()).with_select_defaults(
        pgo_type,
        SelectConfig::new(settings.autoprecompiles, settings.skip),
    );
    if let Some(directory) = &settings.candidates_directory {
        generate = generate.with_apc_candidates_dir(directory);
    }
    let vm_config = VmConfig {
        instruction_handler: original_airs,
        bus_interaction_handler: OpenVmBusInteractionHandler::new(original_airs.buses.clone()),
        bus_map: original_airs.buses.bus_map(),
    };
    // An allowed instruction whose AIR the configured VM lacks, or whose AIR an APC cannot take in, makes its
    // block ineligible.
    let blocks = program
        .basic_blocks()
        .into_iter()
        .flat_map(|block| split_at_unserved(block, original_airs))
        .collect();
    let blocks = detect_blocks(pgo, blocks, &generate);
    pgo.create_apcs_with_pgo(
        blocks,
        &generate,
        vm_config,
        BTreeMap::new(),
        EmpiricalConstraints::default(),
    )
}

type Block = powdr_autoprecompiles::blocks::BasicBlock<super::instruction::ApcInstruction>;

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
