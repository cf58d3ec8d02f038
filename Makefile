# make bench, make test: set up what they need and run. make lint, make format, make build, make setup, make clean.
# make cuda, make aarch64, make fuzz, make faults, make sanitize, make instructions, make packages: checks beyond the tests,
# see CONTRIBUTING.md.

PYTHON ?= python3
venv := .venv
# The torch that this checkout was last set up for, so that a plain `make` keeps it. To change it: make setup TORCH=2.15.0
TORCH ?= $(or $(patsubst $(venv)/.setup-torch-%,%,$(wildcard $(venv)/.setup-torch-*)),2.13.0)
build := build/dev
packages := build/packages-venv
googletest := build/googletest
valgrind := build/valgrind
nvcc := build/nvcc
aarch64 := build/aarch64
setup := $(venv)/.setup-torch-$(TORCH)
configured := $(build)/build.ninja
with_tests := $(build)/.with-tests

# CMake and Ninja are the venv's, whatever the machine has.
export PATH := $(CURDIR)/$(venv)/bin:$(PATH)

CASES ?= 100000
SEED ?= 0

.PHONY: setup build cuda aarch64 bench test fuzz lint format clean faults sanitize instructions packages bench-packages
.PHONY: lint-ruff lint-format lint-mypy lint-clang-format lint-clang-tidy

setup: $(setup)

# The editable install compiles nothing (wheel.cmake=false): it makes the package and its command known, while CMake below
# builds the extension incrementally, straight into src/dutyfree.
$(setup): pyproject.toml src/dutyfree_auto.pth
	@scripts/check_machine.sh $(PYTHON)
	@test -x $(venv)/bin/python || $(PYTHON) -m venv $(venv)
	$(venv)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) --editable '.[dev]' \
		--config-settings=wheel.cmake=false --config-settings=editable.mode=inplace
	@cp src/dutyfree_auto.pth "$$($(venv)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
	@rm -f $(venv)/.setup-torch-*
	@touch $@

$(configured): $(setup)
	cmake -G Ninja -S . -B $(build) -DPython_EXECUTABLE=$(CURDIR)/$(venv)/bin/python \
		-DDUTYFREE_INPLACE=ON -DDUTYFREE_WERROR=ON
	@touch $@

build: $(configured)
	cmake --build $(build) --target _core

$(googletest)/src/gtest-all.cc:
	scripts/get_googletest.sh $(googletest)
	@touch $@

# Without it the counts of instructions are skipped, and nothing else.
$(valgrind)/.looked-for:
	scripts/get_valgrind.sh $(valgrind) || mkdir -p $(valgrind)
	@touch $@

$(with_tests): $(configured) $(googletest)/src/gtest-all.cc $(valgrind)/.looked-for
	cmake $(build) -DDUTYFREE_GTEST_SOURCE=$(CURDIR)/$(googletest) \
		-DDUTYFREE_VALGRIND=$$(test -x $(valgrind)/valgrind && echo $(CURDIR)/$(valgrind))
	@touch $(configured) $@

# The library of CUDA kernels, by the machine's nvcc or one of NVIDIA's packages for pip; no GPU is needed.
$(nvcc)/.looked-for: scripts/get_nvcc.sh $(setup)
	@command -v nvcc >/dev/null || scripts/get_nvcc.sh $(nvcc) $(venv)/bin/python
	@mkdir -p $(nvcc)
	@touch $@

cuda: $(configured) $(nvcc)/.looked-for
	cmake $(build) -DDUTYFREE_CUDA=ON
	cmake --build $(build) --target dutyfree_nvfp4_cuda

$(aarch64)/tools/run: scripts/get_aarch64.sh
	scripts/get_aarch64.sh $(aarch64)/tools
	@touch $@

# What of NVFP4 needs no torch, for 64-bit ARM: built by a cross compiler, and its tests run by an emulator.
aarch64: $(aarch64)/tools/run $(googletest)/src/gtest-all.cc
	scripts/check_aarch64.sh $(aarch64)/tools $(googletest) $(aarch64)

test: $(with_tests)
	cmake --build $(build)
	python tests/cpp_twins.py
	python -m pytest -q

# Generated operators and calls against torch.library.custom_op: make fuzz CASES=1000000 SEED=7
fuzz: build
	dutyfree check --fuzz --cases $(CASES) --seed $(SEED) --save build/fuzz

bench: build
	dutyfree bench calls --compile --json benchmarks/results/calls.json
	dutyfree bench training --json benchmarks/results/training.json
	dutyfree bench accelerated --json benchmarks/results/accelerated.json
	dutyfree bench cpp --json benchmarks/results/cpp.json
	dutyfree bench nvfp4 --json benchmarks/results/nvfp4.json
	dutyfree bench ltx2 --compile --processes 2 --json benchmarks/results/ltx2.json
	python benchmarks/render.py

# Operators of real packages before and after dutyfree.accelerate, in an environment of their own.
$(packages)/.installed: pyproject.toml scripts/packages_venv.sh $(setup)
	scripts/packages_venv.sh $(venv) $(packages)
	@touch $@

packages: build $(packages)/.installed
	$(packages)/bin/python -m pytest -q tests/packages

bench-packages: build $(packages)/.installed
	$(packages)/bin/python tests/packages/measure.py
	python benchmarks/render.py

# Counts the instructions of calls anew; tests/test_instructions.py holds later ones to them.
instructions: $(with_tests)
	cmake --build $(build)
	python benchmarks/instructions.py --record

# Other builds of the core, beside the normal one: scripts/variant.sh.
faults: $(setup)
	scripts/variant.sh faults python scripts/faults.py

sanitize: $(setup)
	scripts/sanitize.sh

# Not what CMake puts into an example's build folder.
cpp_files = $(shell find csrc include tests/cpp tests/cpp_operators examples -not -path '*/build/*' '(' -name '*.h' -o -name '*.cpp' -o -name '*.cu' ')' 2>/dev/null)

# One target a tool, so that `make -k lint` runs all of them even when one complains.
lint: lint-ruff lint-format lint-mypy lint-clang-format lint-clang-tidy

lint-ruff: $(setup)
	ruff check .

lint-format: $(setup)
	ruff format --check .

lint-mypy: $(setup)
	mypy

lint-clang-format: $(setup)
	clang-format --dry-run -Werror $(cpp_files)

lint-clang-tidy: $(setup)
	scripts/tidy.sh build/lint

format: $(setup)
	ruff check --fix-only --quiet .
	ruff format .
	clang-format -i $(cpp_files)

clean:
	rm -rf build src/dutyfree/*.so src/dutyfree/_build_info.py
