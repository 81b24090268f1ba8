# `make demo` shows what vidc does; `make test` runs what CI runs; `make test-all` adds the
# deep tests and runs five times the examples of property tests; `make docs` builds the site.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# From the ordinary index, torch brings gigabytes of CUDA. For the build for CPUs:
# make demo TORCH="torch --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0

WHEEL := $(BIN)/pip wheel --quiet --no-deps --no-build-isolation
PYTEST := $(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder

STREAM := --blocks 8 --prompt "a red square moving left over grass" \
  --switch "4:a blue square moving left over grass"

.PHONY: demo docs lint test test-all wheels wheel-cuda matrix tensorrt clean

demo: $(VENV)/.build
	$(BIN)/vidc build demo --gpu cpu --checkpoint configs/demo -o out/demo
	$(BIN)/vidc validate out/demo --video out/demo-side-by-side.mp4
	$(BIN)/vidc run out/demo -o out/demo.webp --scale 2 $(STREAM)
	$(BIN)/vidc run out/demo -o out/demo.mp4 --scale 4 $(STREAM)
	@echo "video:                       $(CURDIR)/out/demo.mp4, out/demo.webp"
	@echo "reference and engine:        $(CURDIR)/out/demo-side-by-side.mp4"
	@echo "what the build measured:     $(CURDIR)/out/demo/report.html"
	@echo "the bundle, for your code:   $(CURDIR)/out/demo"

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: lint
	$(PYTEST) -m "not deep" --hypothesis-profile=ci

test-all: lint
	$(PYTEST)

# The documentation, in out/docs; a warning, such as a broken link, fails.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -W --keep-going -q -b html -d out/.doctrees docs out/docs
	@echo "site: $(CURDIR)/out/docs/index.html"

# The wheel without CUDA kernels, the demo's weights and the source archive, in dist/.
wheels: $(VENV)/.dev
	$(WHEEL) --wheel-dir dist .
	$(WHEEL) --wheel-dir dist ./configs/demo-package
	$(BIN)/python -m build --sdist --no-isolation --skip-dependency-check --outdir dist .

# The wheel with the kernels of every GPU and the TensorRT plugins, in dist/. It needs nvcc of CUDA 13,
# no GPU. Its name says the oldest Linux that it runs on, the one it was built on.
wheel-cuda: $(VENV)/.dev
	rm -rf build/wheel
	VIDC_CUDA=1 VIDC_TENSORRT_INCLUDE=$$($(HEADERS)) $(WHEEL) --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude 'libtorch*.so' \
	  --exclude libc10.so --wheel-dir dist build/wheel/vidc-*.whl

# Every engine that TensorRT-RTX builds without a GPU, and what is in it: takes half an hour or more.
matrix: $(VENV)/.dev
	$(BIN)/python benchmarks/tensorrt_matrix.py > out.matrix.json
	mv out.matrix.json benchmarks/results/tensorrt-rtx-matrix.json

# All that waits for a card of TensorRT-RTX or a GPU with TensorRT: builds the library of plugins for
# it, builds, validates and runs the demo with plugins, and runs the tests of plugins on it.
HEADERS = $(BIN)/python -c "from importlib.util import find_spec as f; print(f('kernel_lens').submodule_search_locations[0] + '/include/tensorrt')"
tensorrt: $(VENV)/.dev
	VIDC_CUDA=1 VIDC_TENSORRT_INCLUDE=$$($(HEADERS)) \
	  $(BIN)/pip install --quiet --no-build-isolation --editable .
	$(BIN)/vidc doctor
	for form in fp16 int8; do \
	  $(BIN)/vidc build demo --gpu auto --backend tensorrt --precision $$form \
	    --set tensorrt.plugins=all --checkpoint configs/demo -o out/demo-tensorrt-$$form && \
	  $(BIN)/vidc validate out/demo-tensorrt-$$form && \
	  $(BIN)/vidc run out/demo-tensorrt-$$form -o out/demo-tensorrt-$$form.mp4 $(STREAM) || exit $$?; \
	done
	$(BIN)/pytest tests/gpu tests/plugins/test_tensorrt_plugins.py

$(VENV)/.build: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[build]'
	touch $@

$(VENV)/.docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/.dev: pyproject.toml tests/headers.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement tests/headers.txt
	touch $@

clean:
	rm -rf $(VENV) build out
