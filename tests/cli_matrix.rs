//! The main job on small parameters: whatever the number of APCs, the same public values, and proofs that verify.

mod cli_common;

use cli_common::{directory, run, verify};

const INPUTS: [u32; 3] = [0, 1, 10];
const AUTOPRECOMPILES: [u32; 4] = [0, 1, 10, 30];

#[test]
fn public_values_agree_and_every_proof_verifies() {
    let place = directory();
    let artifacts = place.path().join("artifacts");
    let proof = place.path().join("proof.bin");
    for input in INPUTS {
        let mut public_values = vec![];
        let mut instructions = vec![];
        for apcs in AUTOPRECOMPILES {
            // One profile, so that the APCs are built once.
            let said = run(
                &format!(
                    "prove guest-keccak --autoprecompiles {apcs} --input {input} --profile-input 1 \
                     --security toy --proof {}",
                    proof.display()
                ),
                &artifacts,
            )
            .succeeded();
            let verified = verify(&proof).succeeded();
            for label in ["public values", "public_values_commit", "exe commitment"] {
                assert_eq!(verified.value(label), said.value(label));
            }
            public_values.push((
                verified.value("public values").to_string(),
                verified.value("public_values_commit").to_string(),
            ));
            let executed = said
                .output
                .lines()
                .find(|line| line.starts_with("with APCs") || line.starts_with("plain"))
                .and_then(|line| line.split_whitespace().find_map(|word| word.parse().ok()))
                .expect("the report counts instructions");
            instructions.push(executed);
        }
        assert!(
            public_values.windows(2).all(|pair| pair[0] == pair[1]),
            "input {input}: {public_values:?}"
        );
        // An APC that this input does not call saves nothing; a keccak's round, or ten APCs, always do.
        let instructions: Vec<u64> = instructions;
        assert!(
            instructions.windows(2).all(|pair| pair[1] <= pair[0]),
            "input {input}: {instructions:?}"
        );
        assert!(
            instructions[2] < instructions[0],
            "input {input}: {instructions:?}"
        );
    }
}

#[test]
fn several_segments() {
    let artifacts = directory();
    // APCs of the start alone, so that they are called in the first segment and not in the second.
    let said = run(
        "prove guest-keccak --autoprecompiles 3 --input 10 --profile-input 0 --security toy \
         --segment-memory 600",
        artifacts.path(),
    )
    .succeeded();
    assert!(
        said.output.contains("segment 1 trace commitment"),
        "{said:#?}"
    );
}
