#!/usr/bin/env bash
# get_aarch64.sh FOLDER: makes FOLDER/g++, a compiler for 64-bit ARM, and FOLDER/run, which runs what it built with -static.
# They are the machine's own where it has them, else Debian's packages, unpacked into FOLDER: 69 MB are downloaded.
set -euo pipefail
target=$1

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$target"
target=$(cd "$target" && pwd)
root=$target/packages
wanted=()
command -v aarch64-linux-gnu-g++ >/dev/null || wanted+=(g++-aarch64-linux-gnu)
command -v qemu-aarch64 >/dev/null || command -v qemu-aarch64-static >/dev/null || wanted+=(qemu-user)
if [ ${#wanted[@]} != 0 ]; then
  command -v apt-get >/dev/null || { echo "error: this needs Debian's packages ${wanted[*]}" >&2; exit 1; }
  # With what they need and the machine lacks. Not the libraries of sanitizers and OpenMP, which nothing here links.
  names() {
    apt-get --simulate --no-install-recommends install "${wanted[@]}" 2>/dev/null | awk '$1 == "Inst" { print $2 }' |
      grep -vE '^lib(asan|hwasan|lsan|tsan|ubsan|gomp|itm|atomic)[0-9]' || true
  }
  packages=$(names)
  if [ -z "$packages" ] && [ "$(id -u)" = 0 ]; then
    apt-get -qq update >/dev/null
    packages=$(names)
  fi
  [ -n "$packages" ] || { echo "error: this needs Debian's packages ${wanted[*]}" >&2; exit 1; }
  for package in $packages; do "$here/unpack_package.sh" "$package" "$root"; done
fi

# GCC finds its own parts and libraries from where it lies itself; what it links with from the machine is Debian's own.
compiler=$(command -v aarch64-linux-gnu-g++ || echo "$root/usr/bin/aarch64-linux-gnu-g++")
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || echo "$root/usr/bin/qemu-aarch64")
libraries=$root/usr/lib/$(uname -m)-linux-gnu
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s PATH=%s:$PATH exec %s "$@"\n' "$libraries" "$root/usr/bin" "$compiler" >"$target/g++"
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$emulator" >"$target/run"
chmod +x "$target/g++" "$target/run"
