# One verb a chore. Each brings its own set-up; `make PYTHON=python3.12 ...` builds on another Python.

PYTHON ?= python3
VENV := .venv/bin
FAULTS ?= 200
SEED ?= 0
HISTORY ?= benchmarks/recovery/soak.jsonl

.DEFAULT_GOAL := help
.PHONY: help run test test-cluster test-images soak checks format manifests constraints images clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: .venv/.ready ## train, evaluate and report on a small model, from the sources of Python's standard library
	@$(VENV)/shardline run examples/quickstart.yaml

test: .venv/.ready-dev ## the tests that need no cluster; ARGS are pytest's: make test ARGS="-k loader -x"
	@$(VENV)/python -m pytest $(ARGS)

test-images: .venv/.ready-dev ## build the container images and run them (root, buildah, runc, debootstrap)
	@$(VENV)/python -m pytest tests/images $(ARGS)

test-cluster: .venv/.ready-dev ## the tests on a Kubernetes cluster: KUBECONFIG's, else three nodes started here (root, Go)
	@$(VENV)/python -m pytest tests/cluster $(ARGS)

soak: .venv/.ready ## disturb a tiny run 200 times; FAULTS=, SEED=, HISTORY=FILE for its figures, ARGS are those of `shardline drill`
	@OMP_NUM_THREADS=1 $(VENV)/shardline drill examples/drill.yaml --faults $(FAULTS) --every 5s --seed $(SEED) --baseline \
		--history $(HISTORY) $(ARGS)

checks: .venv/.ready-dev .typing/shardline ## lint, format, types, import contracts, constraints.txt
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/lint-imports --no-logo
	@! grep -nvE '^[a-z0-9-]+==[0-9a-z.]+$$' constraints.txt || { echo 'constraints.txt: these lines are not NAME==VERSION' >&2; exit 1; }

format: .venv/.ready-dev ## put the code into the format that checks ask for
	$(VENV)/ruff check --fix-only
	$(VENV)/ruff format

manifests: .venv/.ready-dev ## write the generated files under k8s/ anew
	$(VENV)/python -m shardline.components.common.kubernetes.generate examples/cluster.yaml k8s

constraints: .venv/.ready-dev ## bring constraints.txt in line with pyproject.toml; ARGS=--upgrade takes the newest versions
	$(VENV)/uv pip compile pyproject.toml --extra dev --extra gs --extra az --python-version 3.11 --quiet --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --output-file constraints.txt $(ARGS)

images: ## the container images, with buildah, podman or docker; ARGS are options of its build: images/README.md
	images/build.sh light $(ARGS)
	images/build.sh training $(ARGS)

clean: ## remove the environment and what checks and builds leave; runs and data sets stay
	rm -rf .venv .typing .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info

.venv/.ready .venv/.ready-dev: pyproject.toml constraints.txt .ci/set_up.py
	@command -v $(PYTHON) >/dev/null || { echo 'shardline: there is no $(PYTHON): sudo apt-get install python3-venv' >&2; exit 3; }
	@$(PYTHON) .ci/set_up.py $(if $(findstring dev,$@),dev)

# mypy does not follow an editable install: it sees the packages where their import names say.
.typing/shardline:
	@mkdir -p $@
	@ln -sfn ../../components $@/components
	@ln -sfn ../../pipelines $@/pipelines
