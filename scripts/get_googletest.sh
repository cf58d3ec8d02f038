#!/usr/bin/env bash
# get_googletest.sh FOLDER: puts GoogleTest's sources into FOLDER. They come from Debian's package `googletest`, unpacked
# here and not installed, so that no root is needed.
set -euo pipefail
target=$1

if [ -f /usr/src/googletest/googletest/src/gtest-all.cc ]; then
  mkdir -p "$target"
  cp -r /usr/src/googletest/googletest/. "$target"
  exit
fi

fail() {
  echo "error: the C++ tests need GoogleTest's sources: apt-get install googletest (or unpack them into $target)" >&2
  exit 1
}
command -v apt-get >/dev/null || fail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
download() { apt-get -qq download googletest >"$work/log" 2>&1; }
# A fresh machine has no package lists; only root can get them.
if ! download; then
  [ "$(id -u)" = 0 ] && apt-get -qq update >/dev/null || fail
  download || fail
fi
dpkg-deb -x googletest_*.deb unpacked
cd - >/dev/null
mkdir -p "$target"
cp -r "$work/unpacked/usr/src/googletest/googletest/." "$target"
