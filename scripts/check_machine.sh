#!/usr/bin/env bash
# check_machine.sh PYTHON: says in one line what a machine lacks for building dutyfree.
set -euo pipefail
python=$1

fail() { echo "error: $1" >&2; exit 1; }

command -v "$python" >/dev/null || fail "$python is missing: apt-get install python3 python3-venv python3-dev"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$python" --version) is too old, dutyfree needs 3.10 or later: make setup PYTHON=python3.11"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make a venv: apt-get install python3-venv"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
[ -f "$headers/Python.h" ] || fail "Python's headers are missing ($headers/Python.h): apt-get install python3-dev"
compiler=${CXX:-g++}
command -v "$compiler" >/dev/null || fail "$compiler is missing: apt-get install g++"
echo 'static_assert(__cplusplus >= 202002L);' | "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
  fail "$compiler cannot compile C++20: g++ 11 or later is needed (apt-get install g++, or CXX=...)"
