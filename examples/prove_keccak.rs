//! The main job as library calls: APCs for the keccak guest, a proof, its verification.
//!
//! `cargo run --release --example prove_keccak -- 10`: the argument is the guest's input, 1 if there is none.

use std::sync::Arc;

use openvm_apc::{
    apc::{ApcSettings, Pgo},
    pipeline::{ArtifactStore, Guest, GuestInput, Pipeline, ProveSettings, Silent},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let input = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let input = GuestInput::u32(input);
    let guest = Guest::find("guest-keccak")?;
    let pipeline = Pipeline::new(guest, ArtifactStore::open(None)?, Arc::new(Silent));
    let settings = ApcSettings {
        autoprecompiles: 1,
        pgo: Pgo::Instruction,
        ..Default::default()
    };
    let selected = pipeline.select_apcs(&settings, &input)?;
    let mut setup = pipeline.setup(&selected, &ProveSettings::default())?;
    let (proven, elapsed) = pipeline.prove(&mut setup, &input)?;
    let verified = proven.verify()?;
    verified.expect(Some(setup.exe_commit()?), None)?;
    println!("proven in {elapsed:?}, {} bits", verified.security_bits);
    println!("public values: {:?}", verified.public_values);
    Ok(())
}
