# make demo    opens the window on the bundled scene and trains it live (without a display: pictures on disk)
# make test    ruff, basedpyright, pytest (files side by side, one more than cores: window tests wait): the same by hand and in continuous integration
# make setup   only the installation; TORCH_BACKEND=cpu takes the small CPU build of torch, CUDA=cuda12 the older CuPy
VENV := .venv
CUDA ?= $(if $(filter cpu,$(TORCH_BACKEND)),,cuda13)
TORCH_BACKEND ?=
WORKERS := $(shell expr `nproc` + 1)
UV_OPTIONS := $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND))

.PHONY: setup demo test
setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt .ci/setup.sh
	@bash .ci/setup.sh $(VENV) '$(CUDA)' $(UV_OPTIONS)

demo: setup
	@$(VENV)/bin/splatscope demo

test: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/basedpyright
	@$(VENV)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
