#!/usr/bin/env bash
# Makes the environment that tests/packages runs in: packages_venv.sh <the checkout's venv> <the new venv>
#
# torch and the other dependencies are the checkout's, seen through a path file; what the group `packages` of
# pyproject.toml adds to them is installed into the new one, so that the checkout's stays as it is.
set -euo pipefail
from=$1/bin/python
to=$2

rm -rf "$to"
"$from" -m venv "$to"
# Every folder that the checkout's interpreter finds packages in, beyond those of Python itself.
"$from" -c 'import sys; print(*[p for p in sys.path if p.endswith("site-packages") and not p.startswith(sys.base_prefix)], sep="\n")' \
  >"$("$to/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/dependencies.pth"
# As `make setup` does: the package becomes importable from the checkout, and nothing is compiled. What builds it is the
# checkout's too.
"$to/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[packages]' \
  --config-settings=wheel.cmake=false --config-settings=editable.mode=inplace
