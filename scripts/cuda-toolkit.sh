# What cuda-cargo and check-cuda-kernels both look for. Sourced by them; `root` is the project's folder.
# shellcheck shell=sh

# The path of nvcc, or nothing.
find_nvcc() {
    for candidate in \
        "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
        "$(command -v nvcc 2>/dev/null || true)" \
        "${OPENVM_APC_CUDA_FOLDER:-${root:?}/.cuda}/site/nvidia/cu13/bin/nvcc" \
        /usr/local/cuda/bin/nvcc
    do
        if [ -f "$candidate" ] && [ -x "$candidate" ]; then printf '%s\n' "$candidate"; return; fi
    done
}

# The folders of the resolved OpenVM crates, one a line; each ends in NAME-VERSION.
openvm_crates() {
    metadata=$(cargo metadata --format-version 1 --all-features --manifest-path "${root:?}/Cargo.toml") || return 1
    printf '%s\n' "$metadata" | tr ',' '\n' \
        | sed -n 's/^"manifest_path":"\(.*\/openvm-[^"/]*\)\/Cargo.toml"$/\1/p'
}

# openvm_include FOLDERS CRATE FOLDER: the crate's include folder, which has to be there.
openvm_include() {
    for crate in $1; do
        case ${crate##*/} in
            "$2"-[0-9]*) if [ -d "$crate/$3" ]; then printf '%s\n' "$crate/$3"; return; fi ;;
        esac
    done
    echo "${0##*/}: $2 is not among the resolved packages, or has no $3" >&2
    return 1
}
