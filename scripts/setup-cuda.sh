#!/bin/sh
# Installs CUDA 13.0's compiler from NVIDIA's PyPI wheels into a folder of this project (no root, no system CUDA; about 280 MB).
#
#   scripts/setup-cuda.sh [FOLDER]        (default: OPENVM_APC_CUDA_FOLDER, or .cuda in the project's root, which git ignores)
#
# Building needs only this. Running on a GPU needs NVIDIA's driver (580 or newer for CUDA 13.0) and nothing else:
# the CUDA runtime is linked statically.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
folder=${1:-${OPENVM_APC_CUDA_FOLDER:-$root/.cuda}}

command -v python3 >/dev/null || { echo "setup-cuda: python3 with pip is needed" >&2; exit 1; }
mkdir -p "$folder"
python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
    --target "$folder/site" \
    "nvidia-cuda-nvcc==13.0.*" "nvidia-nvvm==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-cuda-runtime==13.0.*" \
    "nvidia-cuda-cccl==13.0.*" "nvidia-nvtx==13.0.*" "nvidia-cuda-profiler-api==13.0.*"

toolkit=$folder/site/nvidia/cu13
# The wheels lay the libraries out as `lib`; nvcc's profile looks for `lib64`, and linkers for unversioned names.
ln -sfn lib "$toolkit/lib64"
ln -sf libcudart.so.13 "$toolkit/lib/libcudart.so"

"$toolkit/bin/nvcc" --version | tail -n 2
echo "setup-cuda: nvcc is $toolkit/bin/nvcc"
