//! The parameters of the proof system.

use openvm_stark_backend::{
    interaction::LogUpSecurityParameters, keygen::types::MultiStarkVerifyingKey,
    soundness::SoundnessCalculator, SystemParams, WhirProximityStrategy,
};
use openvm_stark_sdk::config::{
    app_params_with_100_bits_security, baby_bear_poseidon2::BabyBearPoseidon2Config,
    MAX_APP_LOG_STACKED_HEIGHT,
};
use serde::{Deserialize, Serialize};

/// How secure a proof is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// OpenVM's parameters for 100 bits of proven security.
    #[default]
    #[value(name = "100")]
    Bits100,
    /// Toy parameters, for tests and experiments: fast, and worth nothing as a proof.
    Toy,
}

/// Bits of security, rounded down, by stark-backend's calculator.
///
/// It is the key that counts, not the parameters alone: they are calibrated for AIRs of a certain size, which large
/// APCs exceed.
pub fn security_bits(vk: &MultiStarkVerifyingKey<BabyBearPoseidon2Config>) -> u32 {
    SoundnessCalculator::calculate_from_vk(vk)
        .total_bits
        .max(0.0) as u32
}

impl Security {
    /// The parameters.
    pub fn params(self) -> SystemParams {
        match self {
            Security::Bits100 => app_params_with_100_bits_security(MAX_APP_LOG_STACKED_HEIGHT),
            Security::Toy => {
                let (l_skip, n_stack, k_whir) = (4, 17, 4);
                SystemParams::new(
                    1,
                    l_skip,
                    n_stack,
                    1 << 12,
                    (l_skip + n_stack) % k_whir,
                    1,
                    1,
                    WhirProximityStrategy::UniqueDecoding,
                    5,
                    LogUpSecurityParameters {
                        max_interaction_count: 1 << 30,
                        log_max_message_length: 7,
                        pow_bits: 1,
                    },
                    3,
                    1,
                    k_whir,
                )
            }
        }
    }
}
