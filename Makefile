# make demo      set up, build wheels, install them, generate text and compare it with transformers' own
# make test      set up, run the tests that answer in minutes: most of those that need no GPU; HOUSE=compiler: of one house
# make test-all  every test that needs no GPU and no engine
# make test-slow what make test leaves out; PART=1/8: the second of 8 parts of it
# make check     lint, types, every test
# make fuzz      attack every input with random cases of another seed, for ten minutes
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
MODELS := examples/models
# Their names start with that of their draft, if they have one.
DEMOS  := standalone-chain eagle-chain eagle-chain-head eagle-chain-adaptive eagle-chain-budget eagle-tree-and-chain eagle3-chain frozen-kv-chain mtp-chain dflash-chain dspark-chain dflash2-chain ngram-chain \
          standalone-tree eagle-tree eagle-tree-wide eagle-tree-sampled eagle-tree-json eagle3-tree eagle3-reduced-tree frozen-kv-tree dflash-tree ngram-tree

# Hundreds of processes import specc, and all tests are read twice, which takes four times as long where Python may not
# keep what it compiles.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test durations test-slow test-all lint types check golden models known coverage versions resolve conformance site browser sglang vllm answers gpu sanitize fuzz perturb grammars mutants bench clean

setup: $(VENV)/.ready

# torch comes first and pinned: an unpinned torch would bring gigabytes of CUDA packages that nothing here needs.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cuda,dev,grammar,bench]'
	touch $@

demo: setup
	rm -rf build/demo
	mkdir -p build/demo
	for demo in $(DEMOS); do $(BIN)/specc build examples/$$demo.yaml -o build/wheels || exit 1; done
	$(BIN)/python examples/random_models.py build/random-qwen3
	$(BIN)/specc build examples/random-qwen3-chain.yaml -o build/wheels --quiet
	$(BIN)/pip install --quiet --no-deps build/wheels/*.whl
	$(BIN)/specc run specc_program_eagle_tree_sampled --target $(MODELS)/target --draft $(MODELS)/eagle \
	    --prompts examples/prompts.json --temperature 0.8 --seed 7
	$(BIN)/specc run specc_program_eagle_tree_json --target $(MODELS)/target --draft $(MODELS)/eagle \
	    --prompts examples/prompts.json --json-schema '{"enum": ["yes", "no", {"why": [null, true]}]}'
	for demo in $(DEMOS); do \
	    echo "== $$demo"; \
	    draft=$(MODELS)/$$(echo $$demo | sed 's/-chain.*//; s/-tree.*//' | tr - _); \
	    test -d $$draft && draft="--draft $$draft" || draft=; \
	    $(BIN)/specc run specc_program_$$(echo $$demo | tr - _) --target $(MODELS)/target $$draft \
	        --prompts examples/prompts.json --check --format json >build/demo/$$demo.json \
	        || { cat build/demo/$$demo.json; exit 1; }; \
	done
	$(BIN)/specc run specc_program_random_qwen3_chain --target build/random-qwen3/target --draft build/random-qwen3/draft \
	    --prompts examples/prompts.json --check --max-new-tokens 24 --format json >build/demo/random-qwen3-chain.json \
	    || { cat build/demo/random-qwen3-chain.json; exit 1; }
	$(BIN)/python examples/demo_table.py $(DEMOS:%=build/demo/%.json) build/demo/random-qwen3-chain.json

# tests/slow.txt says which tests are slow, tests/README.md what is where.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal -W error --timeout 300

# Of one house: make test HOUSE=compiler. The compiler's run where neither engines nor the lab can be imported.
HOUSE    ?=
compiler := tests/unit/compiler tests/golden tests/filecheck
runtime  := tests/unit/runtime
cli      := tests/unit/cli
engines  := tests/unit/engines
lab      := tests/unit/lab tests/e2e

test: setup
	$(PYTEST) -m "not slow$(if $(filter compiler,$(HOUSE)), and not engines)" $(if $(HOUSE),--house $(HOUSE) $($(HOUSE)))

# The cases in tests/slow.txt, anew: of make test and of what stands there by its case, in some twenty minutes.
durations: setup
	$(PYTEST) -m "not slow" --durations-list

# CI runs another part of what takes long with every commit.
PART ?= 0/1

test-slow: setup
	$(PYTEST) -m slow --part $(PART)

test-all: setup
	$(PYTEST)

# The attack on every input, in all cores, for as long as it is told: make fuzz SECONDS=600 SEED=7 JOBS=16, or
# COUNT=100000 inputs of each generator. Ends with a command for each case that failed.
SECONDS ?= 600
COUNT   ?=
SEED    ?=
JOBS    ?=

fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(COUNT:%=--count %) $(SEED:%=--seed %) $(JOBS:%=--jobs %)

# Every internal value of every example as an output more: compiled, run, and the kernels that it changes interpreted.
perturb: setup
	$(BIN)/python -m pytest -n 2 -W error tests/compose --every-value

# JSON of a schema on every one of 200 prompts, by chains and by trees.
grammars: setup
	$(BIN)/python -m pytest -W error tests/e2e/test_grammar.py -k every_prompt --prompts 200

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

# The oldest, the pinned and the newest release of Triton that are supported: every example for every kind of GPU, and the kernel tests.
TRITONS ?= 3.6.0 3.7.1 3.9.0
QUICK   ?=

versions: setup
	$(BIN)/python tests/triton_versions.py $(TRITONS) $(QUICK)

# Whether the pins resolve from the default index alone; nothing is installed, and fast-deps reads the metadata in wheels of
# gigabytes without the rest.
resolve: setup
	env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null $(BIN)/pip install --dry-run --ignore-installed --quiet \
	    --use-feature=fast-deps --constraint constraints.txt '.[cuda,dev,grammar,bench]'

check: lint types test-all

golden: setup
	$(BIN)/python -m pytest tests/golden tests/aot/test_registers.py tests/unit/cli/test_transcripts.py --update-golden

# Small mistakes, each in a copy of the tree, and whether the tests that must notice them do: tests/mutants/mutants.toml.
# CHANGED=main: only mistakes in files that differ from a revision's.
JOBS    ?= 2
CHANGED ?=

mutants: setup
	$(BIN)/python tests/mutants/run.py --jobs $(JOBS) $(if $(CHANGED),--changed $(CHANGED))

# The list of causal language models in docs/models.md: what the reference engine runs, and what it refuses.
models: setup
	PYTHONPATH=tests:tests/unit/lab $(BIN)/python -m engine.causal_types

known: setup
	PYTHONPATH=tests:tests/unit/compiler $(BIN)/python -m config.known_types

# What people serve: what the checks say of each server, all reasons of refusals, and the totals. docs/models.md has them.
coverage: setup
	PYTHONPATH=tests $(BIN)/python -m served

conformance: setup
	$(PYTHON) tests/sglang/make_environment.py
	$(BIN)/python -m pytest tests/conformance -m conformance

# The documentation as a site in build/site, with Mermaid's script in it; a warning is an error.
MERMAID := 11.17.2

build/mermaid.min.js:
	command -v npm >/dev/null || (apt-get update -q && apt-get install -y -q --no-install-recommends npm)
	mkdir -p build
	npm pack --silent --pack-destination build mermaid@$(MERMAID)
	tar -xzf build/mermaid-$(MERMAID).tgz --touch --strip-components 2 -C build package/dist/mermaid.min.js
	rm build/mermaid-$(MERMAID).tgz

site: setup build/mermaid.min.js
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Pages in a headless Chromium, the system's own; pictures of them are left in build/screenshots.
browser: setup build/mermaid.min.js
	command -v chromium google-chrome >/dev/null || (apt-get update -q && apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core)
	$(BIN)/python -m pytest tests/browser -m browser

# The real SGLang on a CPU, in an environment of its own; VERSION=0.5.22 another one than the newest that is tested.
# TEXTS=2000 compares distributions of so many of each prompt.
SGLANG  ?=
TEXTS   ?= 300
VERSION ?=

sglang: export SPECC_TEST_SGLANG = $(VERSION)
sglang: setup
	$(PYTHON) tests/sglang/make_environment.py
	SPECC_TEST_TEXTS=$(TEXTS) $(BIN)/python -m pytest tests/sglang -m sglang --part $(PART) $(SGLANG)

# The real vLLM on a CPU, in an environment of its own; VERSION=0.32.0 another one than the newest that is tested.
VLLM ?=

vllm: export SPECC_TEST_VLLM = $(VERSION)
vllm: setup
	$(PYTHON) tests/vllm/make_environment.py
	$(BIN)/python -m pytest tests/vllm -m vllm --part $(PART) $(VLLM)

# What engines answer about their own arguments and classes, written anew into specc/engines/answers: the newest that are
# tested, or ENGINES=sglang VERSION=0.5.22 another one.
ENGINES ?= sglang vllm

answers: export SPECC_TEST_SGLANG = $(VERSION)
answers: export SPECC_TEST_VLLM = $(VERSION)
answers:
	$(if $(VERSION),$(if $(word 2,$(ENGINES)),$(error VERSION is of one engine: ENGINES=sglang or ENGINES=vllm)))
	for engine in $(ENGINES); do $(PYTHON) tests/$$engine/make_environment.py || exit 1; done
	$(PYTHON) tests/engine_answers.py $(ENGINES)

gpu: setup
	SPECC_TEST_GPU=1 $(BIN)/python -m pytest tests/kernels tests/gpu -m gpu

# Every kernel and captured steps under compute-sanitizer's four tools, or those in TOOLS.
TOOLS ?=

sanitize: setup
	$(BIN)/python tests/sanitize.py $(TOOLS)

bench: setup
	$(BIN)/python bench/glue.py
	$(BIN)/python bench/between.py
	$(BIN)/python bench/cpu.py

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
