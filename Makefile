# The daily acts. `make train` and `make test` need Python 3.10 or newer, make and a C compiler, nothing else.
#   PYTHON=python3.12 make install    another interpreter
#   make train ARGS="--env=Pendulum-v1 --stop_at_reward=-250"

PYTHON ?= python3
VENV ?= .venv
ARGS ?= --env=CartPole-v1 --experiment=cartpole --restart_behavior=restart --stop_at_reward=475
PYTEST_ARGS ?=
GPU_ARGS ?=
RESULTS_ARGS ?=
CHAOS_ARGS ?=
RATIOS_ARGS ?=
MUTANTS_ARGS ?=

PYTEST_FLAGS := -n $$(nproc) --maxprocesses 8 --dist worksteal
# Files with tests that must be alone: to collect all others takes a while.
ALONE = $(if $(filter-out -%,$(PYTEST_ARGS)),,$(shell grep -rl 'mark[.]alone' tests --include='test_*.py'))
NONE_IS_FINE := $(if $(PYTEST_ARGS),|| test $$$$? -eq 5)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := docs,atari,envpool,minigrid,mujoco,pettingzoo,vizdoom,onnx,video,notebook,report,sweep,slurm,wandb,trackio,hub
EXTRAS_STAMP := $(VENV)/.extras-installed

# Hundreds of processes import the same modules: compiled ones are kept, also where the environment forbids it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install train check test test-more test-slow docs notebooks mutants bench-compare bench-ratios bench-gpu results chaos clean

install: $(STAMP)

# Written last, so that an install that was cut short is repeated.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 10) and f"sf needs Python 3.10 or newer, found {v[0]}.{v[1]} ($(PYTHON)). Choose another one: make install PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
# Box2D is built from source on some machines. Where that fails, all else is installed, and its tests fail alone.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[box2d]"
	@touch $@

# Environments of other packages, exported policies, reports, searches, trackers and the site: the tests use all of it.
$(EXTRAS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

train: $(STAMP)
	$(BIN)/sf-train $(ARGS)

# Formatting, lint, the direction of imports, and types.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# What answers soon: as many at once as there are cores.
test: check $(EXTRAS_STAMP)
	$(BIN)/pytest -m "not (more or alone or slow or gpu)" $(PYTEST_FLAGS) $(PYTEST_ARGS)

# The tests of whole runs, then those that must be alone. PYTEST_ARGS may leave no test of one kind, which is exit code 5.
test-more: $(EXTRAS_STAMP)
	$(BIN)/pytest -m "more and not (alone or slow or gpu)" $(PYTEST_FLAGS) $(PYTEST_ARGS) $(NONE_IS_FINE)
	$(BIN)/pytest -m "alone and not (slow or gpu)" $(ALONE) $(PYTEST_ARGS) $(NONE_IS_FINE)

# Simulators of other packages that step many copies at once, half a gigabyte with JAX.
test-simulators: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[craftax,jax,jumanji,playground,vmas]"
	$(BIN)/pytest tests/envs/test_simulators.py $(PYTEST_ARGS)

# Learning runs, some minutes each.
test-slow: $(EXTRAS_STAMP)
	$(BIN)/pytest -m "slow and not gpu" $(PYTEST_ARGS)

# The pages as a site in build/site, which opens without a server and without network. A broken link or anchor is an error.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m sf.cli.reference docs/reference
	$(BIN)/python -m zensical build --strict --clean

# Runs the notebooks in examples/ and keeps their outputs in them, two minutes.
notebooks: $(EXTRAS_STAMP)
	$(BIN)/python benchmarks/notebooks.py

# Small mistakes planted in the core, and how many the tests notice: an hour for a sample of 300, kept in build/mutants.
mutants: $(EXTRAS_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[mutants]"
	$(BIN)/python benchmarks/mutants.py $(MUTANTS_ARGS)

# What a frame costs beside the revision of the table in docs/benchmarks.md, in turns: half an hour on a machine at rest.
bench-compare: $(EXTRAS_STAMP)
	$(BIN)/python benchmarks/frame_costs.py --compare $(COMPARE_ARGS)

# What parts of it are worth beside each other and beside plain loops, a quarter of an hour; fails where one is too small.
bench-ratios: $(EXTRAS_STAMP)
	$(BIN)/python benchmarks/ratios.py $(RATIOS_ARGS)

# What needs an accelerator, and a torch that was built for it: its tests, then a table.
bench-gpu: $(EXTRAS_STAMP)
	$(BIN)/pytest -m gpu $(PYTEST_ARGS)
	$(BIN)/python benchmarks/gpu.py $(GPU_ARGS)

# Three seeds of known tasks against published scores, hours; what is there already is kept.
results: $(EXTRAS_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[results]"
	$(BIN)/python benchmarks/results.py $(RESULTS_ARGS)

# Kills by the hundred, an hour or two; writes chaos.md.
chaos: $(STAMP)
	$(BIN)/python benchmarks/chaos.py $(CHAOS_ARGS)
	$(BIN)/python benchmarks/chaos_ranks.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
