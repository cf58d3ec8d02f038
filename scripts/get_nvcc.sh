#!/usr/bin/env bash
# get_nvcc.sh FOLDER PYTHON: makes FOLDER/bin/nvcc, with what it needs beside it, from NVIDIA's packages for pip. 104 MB are
# downloaded, and 253 MB remain. It compiles for all GPUs, and needs no GPU, no driver and no root.
set -euo pipefail
target=$1
python=$2

# One release of the toolkit, exactly: its parts read each other's output. 13.0, the first with packages of this layout: for
# GPUs that the library has no machine code for, the driver compiles its PTX, and takes none of a later toolkit than its own.
packages=(
  nvidia-cuda-nvcc==13.0.88     # nvcc itself, cudafe++, ptxas, fatbinary
  nvidia-nvvm==13.0.88          # cicc, which compiles the device's side
  nvidia-cuda-crt==13.0.88      # headers that nvcc includes by itself
  nvidia-cuda-runtime==13.0.96  # cuda_runtime.h and the runtime as a static library
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Into a folder: nothing in the environment shall find them, torch of a CUDA build least of all.
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work" "${packages[@]}"
rm -rf "$target"
mkdir -p "$(dirname "$target")"
mv "$work/nvidia/cu13" "$target"
ln -s lib "$target/lib64"  # where nvcc looks for the runtime
