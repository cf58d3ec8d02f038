#!/usr/bin/env bash
# tidy.sh FOLDER: clang-tidy over the C++ core, configured in FOLDER for the purpose. Nearly all of its time goes into
# parsing torch's headers, so it is given a few files that include the others. (A precompiled header of GCC's is of no use
# to it.) Seeded faults are in, so that it sees every file.
set -euo pipefail
folder=$1

find "$folder" -name 'unity_*.cxx' -delete 2>/dev/null || true
cmake -G Ninja -S . -B "$folder" -DPython_EXECUTABLE="$(command -v python)" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=10 -DDUTYFREE_SEEDED_FAULTS=ON --log-level=WARNING
find "$folder" -name 'unity_*.cxx' -print0 |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$folder" 2> >(grep -v 'warnings generated' >&2)
