# The Python package: a wheel from py/ and the built C parts, installed into the virtual environment.
# PACKAGE is the stamp of the installation, SITE that of one beside it (for sanitizer builds).

PY_SRC := $(wildcard py/*.py py/*.toml py/csrc/*.* py/csrc/*/* docs/man/*.[1-9]) $(shell find py/cableway -name '*.py' -o -name '*.pyi' -o -name py.typed -o -name '*.html') ipc/cableway.h LICENSE
RAW_WHEEL := $(BUILD)/wheel/made.stamp
PACKAGE := $(VENV)/package.stamp
SITE := $(BUILD)/site/made.stamp
PIP_LOCAL := install -q --disable-pip-version-check --no-deps --no-index --force-reinstall

$(RAW_WHEEL): $(PY_SRC) $(BUILD)/libcableway-python.so.0 $(PROGRAMS) $(VENV)/deps-package.stamp
	rm -rf $(BUILD)/wheel $(BUILD)/py
	mkdir -p $(BUILD)/wheel $(BUILD)/py
	cd py && CABLEWAY_BUILD_DIR=$(abspath $(BUILD)) CC='$(CC)' CFLAGS='$(SANITIZE)' LDFLAGS='$(SANITIZE)' $(abspath $(VPY)) setup.py -q \
	    egg_info --egg-base $(abspath $(BUILD))/py build --build-base $(abspath $(BUILD))/py \
	    bdist_wheel --dist-dir $(abspath $(BUILD))/wheel >$(abspath $(BUILD))/py/build.log 2>&1 || { cat $(abspath $(BUILD))/py/build.log; exit 1; }
	@touch $@

$(PACKAGE): $(RAW_WHEEL) $(VENV)/deps-package.stamp
	$(PIP) $(PIP_LOCAL) $(BUILD)/wheel/cableway-*.whl
	@touch $@
# The systems of docs/examples/coming-from, for each Python that is here, with this wheel.
COMING_FROM := $(BUILD)/coming-from/made.stamp
$(COMING_FROM): $(RAW_WHEEL) $(wildcard tools/requirements/coming-from*.txt) tools/coming_from.sh
	sh tools/coming_from.sh $(BUILD)
	@touch $@
# Dask, and Ray, with this wheel, for the tests of cableway.dask and cableway.ray: environments of their own, since nothing else of
# ours needs them.
DASK := $(BUILD)/dask/made.stamp
RAY := $(BUILD)/ray/made.stamp
$(DASK) $(RAY): $(BUILD)/%/made.stamp: $(RAW_WHEEL) tools/requirements/%.txt $(VENV)/made.stamp
	test -x $(@D)/bin/python || $(VPY) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements/$*.txt
	$(@D)/bin/python -m pip $(PIP_LOCAL) $(BUILD)/wheel/cableway-*.whl
	@touch $@
# Dask with what distributed's own tests need.
DASK_SUITES := $(BUILD)/dask-suites/made.stamp
$(DASK_SUITES): $(RAW_WHEEL) tools/requirements/dask.txt tools/requirements/dask-suites.txt $(VENV)/made.stamp
	test -x $(@D)/bin/python || $(VPY) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements/dask.txt -r tools/requirements/dask-suites.txt
	$(@D)/bin/python -m pip $(PIP_LOCAL) $(BUILD)/wheel/cableway-*.whl
	@touch $@
$(SITE): $(RAW_WHEEL) $(VENV)/deps-package.stamp
	$(PIP) $(PIP_LOCAL) --upgrade --target $(BUILD)/site $(BUILD)/wheel/cableway-*.whl
	@touch $@
