#!/usr/bin/env bash
# Builds a shipped guest reproducibly from Debian's packages alone (run `guests/install-toolchain.sh` once, as root).
#
#   guests/build.sh keccak           rebuilds guests/keccak/guest-keccak.elf and its .sha256
#   guests/build.sh keccak OUT.elf   builds to OUT.elf and leaves the committed files alone
#
# The flags are those of openvm-build, plus `--emit-relocs` (block boundaries are found through the relocations) and
# path remapping (the same bytes in any folder and for any user).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=${1:?usage: guests/build.sh NAME [OUT.elf]}
guest="$here/$name"
[ -f "$guest/Cargo.toml" ] || { echo "no guest crate at guests/$name" >&2; exit 1; }
out=${2:-$guest/guest-$name.elf}

# Debian's toolchain, not rustup's.
unset RUSTUP_TOOLCHAIN RUSTC CARGO RUSTC_WRAPPER RUSTFLAGS
export PATH=/usr/bin:/bin
rustc --version >/dev/null 2>&1 || { echo "no /usr/bin/rustc: run guests/install-toolchain.sh first" >&2; exit 1; }
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
target=${GUEST_TARGET_DIR:-$guest/target}

separator=$'\x1f'
flags=(
  -C passes=lower-atomic
  -C link-arg=-Ttext=0x00200800
  -C link-arg=--fatal-warnings
  -C link-arg=--emit-relocs
  -C panic=abort
  --cfg 'getrandom_backend="custom"'
  --remap-path-prefix "$guest=/guest"
  --remap-path-prefix "$registry=/registry"
  --remap-path-prefix "/usr/lib/rustlib/src/rust=/rust"
)
encoded=$(printf "%s$separator" "${flags[@]}")
export CARGO_ENCODED_RUSTFLAGS=${encoded%"$separator"}
export RUSTC_BOOTSTRAP=1
export CARGO_TARGET_RISCV32IM_RISC0_ZKVM_ELF_LINKER=ld.lld-19

cd "$guest"
cargo build --locked --release --target-dir "$target" --target riscv32im-risc0-zkvm-elf \
  -Z build-std=alloc,core,proc_macro,panic_abort,std -Z build-std-features=compiler-builtins-mem
install -m 644 "$target/riscv32im-risc0-zkvm-elf/release/guest-$name" "$out"
if [ "$out" = "$guest/guest-$name.elf" ]; then
  (cd "$guest" && sha256sum "guest-$name.elf" > "guest-$name.elf.sha256"
   { rustc --version; ld.lld-19 --version | head -n 1; } > "guest-$name.elf.toolchain")
fi
