//! The guest of the main job: keccak-256 applied `n` times to 32 zero bytes.
//!
//! Input: one `u32` `n`. Output: the first byte of the final state, as a `u32` at public-value index 0.

use tiny_keccak::{Hasher, Keccak};

fn main() {
    let iterations: u32 = openvm::io::read();
    let mut state = [0u8; 32];
    for _ in 0..iterations {
        let mut hasher = Keccak::v256();
        hasher.update(&state);
        hasher.finalize(&mut state);
    }
    openvm::io::reveal_u32(u32::from(state[0]), 0);
}
