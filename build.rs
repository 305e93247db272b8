//! Build-time sources: the backend's rules module (`build/rules.rs`) and our CUDA kernels (`build/cuda.rs`).

#[cfg(feature = "cuda")]
#[path = "build/cuda.rs"]
mod cuda;
#[path = "build/rules.rs"]
mod rules;

fn main() {
    rules::build();
    #[cfg(feature = "cuda")]
    cuda::build();
}
