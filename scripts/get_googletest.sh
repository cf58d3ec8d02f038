#!/usr/bin/env bash
# get_googletest.sh FOLDER: puts GoogleTest's sources into FOLDER, from Debian's package `googletest`. Where there is none,
# unpack the sources into FOLDER by hand.
set -euo pipefail
target=$1

sources=/usr/src/googletest/googletest
if [ ! -f "$sources/src/gtest-all.cc" ]; then
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  "$(dirname "$0")/unpack_package.sh" googletest "$unpacked"
  sources=$unpacked$sources
fi
mkdir -p "$target"
cp -r "$sources/." "$target"
