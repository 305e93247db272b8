#!/usr/bin/env bash
# Installs what `guests/build.sh` needs, from Debian's packages alone (as root).
set -euo pipefail
apt-get update
apt-get install -y --no-install-recommends rustc-web cargo-web rust-web-src lld-19
