#!/usr/bin/env bash
# check_aarch64.sh TOOLS GOOGLETEST FOLDER: builds the parts of csrc/nvfp4 that need no torch, and their tests, for 64-bit ARM
# in FOLDER, with what get_aarch64.sh put into TOOLS, and runs the tests.
set -euo pipefail
tools=$1
googletest=$2
folder=$3
cd "$(dirname "$0")/.."

mkdir -p "$folder"
sources=(
  csrc/nvfp4/layout.cpp csrc/nvfp4/portable/kernels.cpp
  tests/cpp/nvfp4_format_test.cpp tests/cpp/nvfp4_cuda_blocks_test.cpp tests/cpp/nvfp4_kernels_test.cpp
)

compile() { "$tools/g++" -std=c++20 -Icsrc -isystem "$googletest/include" -c "$@"; }
for source in gtest-all gtest_main; do
  object=$folder/$source.o
  [ -f "$object" ] || compile -O1 -I"$googletest" "$googletest/src/$source.cc" -o "$object"
done
objects=("$folder/gtest-all.o" "$folder/gtest_main.o")
for source in "${sources[@]}"; do
  object=$folder/$(basename "$source" .cpp).o
  compile -O3 -ffp-contract=off -Wall -Wextra -Wno-unused-function -Werror "$source" -o "$object"
  objects+=("$object")
done
# The linker warns of a function of GoogleTest's that is not called.
"$tools/g++" -static "${objects[@]}" -o "$folder/tests" 2> >(grep -vE 'MakeConnection|getaddrinfo' >&2)
"$tools/run" "$folder/tests" --gtest_brief=1
