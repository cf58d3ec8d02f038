#!/usr/bin/env bash
# variant.sh NAME [COMMAND ...]: builds the core with other flags under build/NAME, and makes build/NAME/package: the
# checkout's Python files beside that core. COMMAND runs with that package; without one the folder is printed, and
# `PYTHONPATH=build/NAME/package python ...` chooses it.
#
#   faults    the core makes the mistake that DUTYFREE_FAULT names, see csrc/seeded_fault.h
#   sanitize  the same, instrumented for AddressSanitizer and UndefinedBehaviorSanitizer; scripts/sanitize.sh runs it
set -euo pipefail
name=${1:?usage: variant.sh NAME [COMMAND ...]}
shift
cd "$(dirname "$0")/.."

case $name in
  faults) options=(-DDUTYFREE_SEEDED_FAULTS=ON) ;;
  sanitize) options=(-DDUTYFREE_SEEDED_FAULTS=ON -DDUTYFREE_SANITIZE=ON) ;;
  *) echo "error: no variant is called $name" >&2; exit 2 ;;
esac
build=$PWD/build/$name
package=$build/package
export PATH=$PWD/.venv/bin:$PATH

if [ ! -f "$build/build.ninja" ]; then
  # A few files that include the others: most of the time goes into what torch's headers make every file compile.
  cmake -G Ninja -S . -B "$build" -DPython_EXECUTABLE="$PWD/.venv/bin/python" -DDUTYFREE_WERROR=ON \
    -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=10 "${options[@]}" >&2
fi
cmake --build "$build" --target _core >&2

# Made anew each time, so that a file that is gone from the checkout is gone here.
rm -rf "$package"
mkdir -p "$package/dutyfree"
ln -s "$PWD/scripts/variant/sitecustomize.py" "$package/"
for file in src/dutyfree/*; do
  case $file in
    *.so | */_build_info.py | */__pycache__) ;;
    *) ln -s "$PWD/$file" "$package/dutyfree/" ;;
  esac
done
ln -s "$build"/_core*.so "$build/_build_info.py" "$package/dutyfree/"
ln -s "$PWD/include" "$PWD/cmake" "$package/dutyfree/"  # as in a wheel

if [ $# = 0 ]; then
  echo "$package"
else
  # Not the normal core by mistake: sitecustomize.py knows the editable installation by a private name.
  if [ "$name" = faults ] && ! PYTHONPATH=$package python -c 'from dutyfree import _core; _core.seeded_faults()'; then
    echo "error: Python does not import the core in $package" >&2
    exit 1
  fi
  PYTHONPATH=$package exec "$@"
fi
