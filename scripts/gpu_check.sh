#!/usr/bin/env bash
# 1 GPU of 80 GB or more, at most 8 minutes: seconds, tokens and memory of a training step of a 3B-shaped model.
#
#     scripts/gpu_check.sh OUT_FOLDER [flags of benchmarks/gpu_check.py]
#
# Needs torch, transformers, accelerate and numpy, nothing else and no network. Writes OUT_FOLDER/gpu_check.json.
set -euo pipefail
out=$(mkdir -p "${1:?usage: scripts/gpu_check.sh OUT_FOLDER [flags]}" && cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=$PWD/packages/igrpo-theory/src:$PWD/packages/igrpo-train/src
# Last, so that an installed package wins over its fallback: the core needs these for annotations only.
export PYTHONPATH=$PWD:$packages${PYTHONPATH:+:$PYTHONPATH}:$PWD/scripts/fallback
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
exec timeout 480 "${PYTHON:-python3}" -m benchmarks.gpu_check "$out" "$@"
