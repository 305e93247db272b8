//! Build-time sources: the backend's rules module (`build/rules.rs`) and our CUDA kernels (`build/cuda.rs`).

#[path = "build/rules.rs"]
mod rules;

fn main() {
    rules::build();
}
