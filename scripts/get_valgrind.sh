#!/usr/bin/env bash
# get_valgrind.sh FOLDER: makes FOLDER/valgrind, a command, and FOLDER/include, its headers. They are the machine's own
# where it has both, else those of Debian's package `valgrind`, unpacked into FOLDER.
set -euo pipefail
target=$1

mkdir -p "$target"
target=$(cd "$target" && pwd)
if command -v valgrind >/dev/null && [ -f /usr/include/valgrind/callgrind.h ]; then
  include=/usr/include
  command="exec $(command -v valgrind)"
else
  "$(dirname "$0")/unpack_package.sh" valgrind "$target/package"
  include=$target/package/usr/include
  tool=$(find "$target/package" -name 'callgrind-*-linux' | head -n 1)
  [ -n "$tool" ] || { echo "error: Debian's package valgrind holds no callgrind" >&2; exit 1; }
  tools=$(dirname "$tool")
  # Not the package's own wrapper, which sets variables that the measured program would inherit.
  command="VALGRIND_LIB=$tools exec $target/package/usr/bin/valgrind.bin"
fi
mkdir -p "$target/include"
ln -sfn "$include/valgrind" "$target/include/valgrind"
printf '#!/bin/sh\n%s "$@"\n' "$command" >"$target/valgrind"
chmod +x "$target/valgrind"
