#!/usr/bin/env bash
# Checks each committed guest ELF against its sha256; where the toolchain that built it is present, rebuilds and compares.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for elf in "$here"/*/guest-*.elf; do
  folder=$(dirname "$elf"); name=$(basename "$folder")
  (cd "$folder" && sha256sum --quiet --check "$(basename "$elf").sha256")
  present=$( { PATH=/usr/bin:/bin rustc --version; PATH=/usr/bin:/bin ld.lld-19 --version | head -n 1; } 2>/dev/null || true)
  if [ "$present" = "$(cat "$elf.toolchain")" ]; then
    rebuilt=$(mktemp -d); trap 'rm -rf "$rebuilt"' EXIT
    GUEST_TARGET_DIR="$rebuilt/target" "$here/build.sh" "$name" "$rebuilt/rebuilt.elf"
    cmp "$rebuilt/rebuilt.elf" "$elf"
    echo "$name: sha256 and rebuilt bytes agree"
  else
    echo "$name: sha256 agrees (the toolchain of $(basename "$elf").toolchain is not here, so nothing was rebuilt)"
  fi
done
