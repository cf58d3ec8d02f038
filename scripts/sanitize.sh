#!/usr/bin/env bash
# sanitize.sh [TEST ...]: runs tests (a selection of its own without arguments) and the fuzzer's cases over a core that
# AddressSanitizer and UndefinedBehaviorSanitizer watch. torch and CPython are not instrumented: what is seen is every
# read and write that our own code makes, of anyone's memory, and what the instrumented runtime's malloc and free see.
set -euo pipefail
cd "$(dirname "$0")/.."
cases=${CASES:-3000}

runtime() {
  local file
  file=$(${CXX:-g++} -print-file-name="$1")
  # A name without a folder means that the compiler has none.
  [ "$file" != "$1" ] || { echo "error: $1 is missing: apt-get install g++ (its libasan and libubsan)" >&2; exit 1; }
  readlink -f "$file"
}
# libstdc++ too: AddressSanitizer looks for the functions that it wraps before any library of Python's is loaded.
preload="$(runtime libasan.so) $(runtime libubsan.so) $(runtime libstdc++.so)"

scripts/variant.sh sanitize >/dev/null
report=$PWD/build/sanitize/report
sanitized() {
  # PYTHONMALLOC: objects come from malloc one by one, not out of pages that are never freed.
  # detect_leaks=0: CPython keeps what it allocates; test_leaks.py looks for ours.
  env LD_PRELOAD="$preload" PYTHONMALLOC=malloc PYTHONPATH="$PWD/build/sanitize/package" \
    ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:handle_segv=0:log_path=$report" \
    UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:log_path=$report" "$@"
}
step() { printf '\n== %s\n' "$1"; }

step "mistakes made on purpose are reported"
rm -f "$report".*
expect() {
  # AddressSanitizer follows log_path, UndefinedBehaviorSanitizer writes to the output when both are loaded.
  if DUTYFREE_FAULT=$1 sanitized python tests/fault_checks.py "$1" >"$report.output" 2>&1 ||
    ! grep -qs "$2" "$report".*; then
    echo "error: the fault $1 was not reported as \"$2\"" >&2
    cat "$report".* >&2
    exit 1
  fi
  grep -ho -m 1 "$2.*" "$report".* | sed "s/^/$1: /"
  rm -f "$report".*
}
export PATH=$PWD/.venv/bin:$PATH
expect list-read-past-end "AddressSanitizer: heap-buffer-overflow"
expect kernel-unheld "AddressSanitizer: heap-use-after-free"
expect shift-too-far "runtime error: shift exponent"

# Left out: what measures time or memory, what needs another build, and what spends its time in Inductor or in running
# other tests again.
left_out=(accelerate_boxed_exceptions accelerate_parity bench bench_cpp bench_ltx2 bench_process compatibility
  compile_caches cost cpp cuda instructions leaks ltx2_trace readme tracing typing)
tests=("$@")
if [ $# = 0 ]; then
  for file in tests/test_*.py; do
    topic=${file#tests/test_}
    [[ " ${left_out[*]} " == *" ${topic%.py} "* ]] || tests+=("$file")
  done
fi
step "tests"
sanitized python -m pytest -q -p no:cacheprovider "${tests[@]}"

if [ $# = 0 ]; then
  step "$cases cases of the fuzzer"
  sanitized python -c 'from dutyfree.cli import app; app()' check --fuzz --cases "$cases" --save build/sanitize/fuzz
fi
# A child process that a test expects to fail must not have failed here.
if compgen -G "$report.*" >/dev/null; then
  cat "$report".* >&2
  exit 1
fi
echo "no report"
