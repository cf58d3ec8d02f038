#!/usr/bin/env bash
# unpack_package.sh PACKAGE FOLDER: unpacks a Debian package into FOLDER. It is not installed, so no root is needed, but
# for a machine without package lists: only root can get them.
set -euo pipefail
package=$1
target=$2

fail() {
  echo "error: this needs Debian's package $package: apt-get install $package" >&2
  exit 1
}
command -v apt-get >/dev/null || fail
mkdir -p "$target"
target=$(cd "$target" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
download() { apt-get -qq download "$package" >"$work/log" 2>&1; }
if ! download; then
  [ "$(id -u)" = 0 ] && apt-get -qq update >/dev/null || fail
  download || fail
fi
dpkg-deb -x "${package}"_*.deb "$target"
