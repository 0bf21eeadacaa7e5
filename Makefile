# cableway: the targets are listed by `make help`.
#
# How the folders become programs (add a file, and it is built and run; no list to extend):
#   shm, ipc            libcwshm.a, libcwipc.a (for our own programs), libcableway.a, libcableway.so
#   broker              cablewayd, without the folders of the next two; all but main.c also as libcwbroker.a, for tests
#   broker/mover        cableway-mover
#   broker/bridge       cableway-bridge
#   tools               cableway, without tools/bench
#   (each with its folders, one level deep)
#   tests/{unit,stress,crash}   a file with a main() is a program, all others of its folders are linked into each
#                       program of it; programs named *_helper.c or *_victim.c are built but not run by themselves
#   (a comment `LDLIBS: -lX` in a program's file adds libraries to its link)
#   tests/fuzz/*.c      libFuzzer programs (clang)
#   tests/*/rules.mk    whatever else a folder needs: it may add programs to TEST_PROGRAMS as PART:PATH
#   docs/examples/*.c   built against cableway.h and libcableway.so alone, and run
#   tools/bench/programs benchmarks, by the same rule; with tools/bench/*.py they are what `make bench` runs
BUILD   ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
CLANG   ?= clang
OPT     ?= -O2 -g
PREFIX  ?= /usr/local
PYTHON  ?= python3
TIMEOUT ?= 600
# A warning that a newer compiler has ends nobody's build; CI and tests/compilers.sh say -Werror.
WERROR  ?=
export WERROR

CFLAGS  += -std=gnu11 $(OPT) -fPIC -pthread -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes \
           -Wmissing-prototypes -Wvla -Wwrite-strings $(WERROR) $(SANITIZE)
CPPFLAGS += -D_GNU_SOURCE -I.
LDFLAGS += -pthread $(SANITIZE)

# ---- set-up: what this machine must have ---------------------------------------------------------------

# The set-up comes before all else, whatever is typed first: while this file is read, before anything is asked of this machine
# (HAVE_BRIDGE) and before make looks at a target. What fails there ends make at once, also with -k. A make that one of ours
# calls finds CABLEWAY_SET_UP and leaves it out; so does a dry run.
GOALS      := $(or $(MAKECMDGOALS),all)
FOR_LINT   := lint
FOR_MORE   := test-more
FOR_TESTS  := test test-% faults faults-programs fuzz fuzzers soak asan tsan sanitized sanitize-% bench bench-% $(BUILD)/tests/% $(BUILD)/tools/bench/% \
              $(BUILD)/venv%/deps-test.stamp $(BUILD)/venv%/deps-bench%
NO_SET_UP  := help clean print-% test-fresh
SET_UP     := $(or $(if $(filter $(FOR_LINT),$(GOALS)),lint),$(if $(filter $(FOR_MORE),$(GOALS)),more),$(if $(filter $(FOR_TESTS),$(filter-out $(NO_SET_UP),$(GOALS))),test),$(if $(filter wheel deb,$(GOALS)),wheel),build)
ifeq ($(filter-out $(NO_SET_UP),$(GOALS)),)
else ifneq ($(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),)
else ifndef CABLEWAY_SET_UP
SET_UP_DONE := $(BUILD)/setup-$(SET_UP).stamp
ifneq ($(shell [ $(SET_UP_DONE) -nt tools/setup.sh ] || echo anew),)
HAS_ALL := $(shell PYTHON='$(PYTHON)' CC='$(CC)' sh tools/setup.sh $(SET_UP) >&2 && mkdir -p $(BUILD) && touch $(SET_UP_DONE) && echo done)
$(if $(HAS_ALL),,$(error nothing was built: this machine lacks what is named above))
endif
endif
export CABLEWAY_SET_UP := $(SET_UP)
# What is built at once where nobody said: one a core. With a -j of the caller's, make shares that out.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc))

# cuda.h: the Toolkit's where it stands, else PyPI's. Whatever is built from here uses the same one.
CUDA_INCLUDE ?= $(or $(shell sh tools/cuda_header.sh find),$(abspath $(BUILD))/cuda)
CUDA_INCLUDE := $(CUDA_INCLUDE)
export CUDA_INCLUDE
CPPFLAGS += -isystem $(CUDA_INCLUDE)
VERSION := $(shell sed -n 's/^.define CW_VERSION *"\(.*\)"/\1/p' ipc/cableway.h)
VENV    ?= $(BUILD)/venv
VPY     := $(VENV)/bin/python
# One pip at a time in an environment, also with -j.
PIP     := flock $(VENV)/pip.lock $(VPY) -m pip

# The sources of a folder and of the folders in it.
c_of = $(wildcard $(1)/*.c $(1)/*/*.c)
SHM_SRC    := $(call c_of,shm)
IPC_SRC    := $(call c_of,ipc)
MOVER_SRC  := $(call c_of,broker/mover)
BRIDGE_SRC := $(call c_of,broker/bridge)
BROKER_SRC := $(filter-out broker/mover/% broker/bridge/%,$(call c_of,broker))
# The bridge needs liburing 2.3 and OpenSSL 3.0 with their headers (tools/setup.sh); without them all else is built.
hash := \#
HAVE_BRIDGE := $(shell printf '%s\n' '$(hash)include <liburing.h>' '$(hash)include <openssl/evp.h>' \
    'void *used[] = {(void *)io_uring_submit_and_get_events, (void *)EVP_PKEY_Q_keygen};' \
    | $(CC) -D_GNU_SOURCE -fsyntax-only -x c - >/dev/null 2>&1 && echo yes)
BRIDGE_LIBS ?= -luring -lssl -lcrypto
# The screen of `cableway top` needs the archives of ncurses with its headers (tools/setup.sh); without them it has --once alone.
# Some distributions have libtinfo apart. Linked from archives, so that the wheel needs nothing of the system's.
archive = $(if $(findstring /,$(shell $(CC) -print-file-name=lib$(1).a 2>/dev/null)),-l:lib$(1).a)
SCREEN_LIBS := $(if $(shell printf '%s\n' '$(hash)include <curses.h>' 'void *used[] = {(void *)addwstr, (void *)set_escdelay};' \
    | $(CC) -D_GNU_SOURCE -fsyntax-only -x c - >/dev/null 2>&1 && echo yes),$(and $(call archive,ncursesw),$(call archive,ncursesw) $(call archive,tinfo)))
TOOLS_SRC  := $(filter-out tools/bench/% $(if $(SCREEN_LIBS),tools/top/no_screen.c,tools/screen/%),$(call c_of,tools))
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
with_main = $(shell grep -lE '^(int )?main.(int|void)' $(1) /dev/null)

PROGRAMS := $(if $(BROKER_SRC),$(BUILD)/cablewayd $(BUILD)/cableway-mover) $(if $(TOOLS_SRC),$(BUILD)/cableway) $(if $(HAVE_BRIDGE),$(BUILD)/cableway-bridge)

all: $(BUILD)/libcableway.so $(BUILD)/libcableway.a $(PROGRAMS)
	$(if $(HAVE_BRIDGE),,@echo "cableway-bridge is left out: liburing 2.3 and OpenSSL 3.0 with their headers are not here, so no other node can be reached")
	$(if $(SCREEN_LIBS),,@echo "cableway top has no screen: ncurses' archives with their headers are not here")

help:
	@echo "make                  build everything that is written in C"
	@echo "make test             set up, build, run the tests (from a fresh clone)"
	@echo "make test-more        the tests that take minutes; make test-fresh: README's commands in new roots (as root)"
	@echo "make test-gpu         the tests of GPU memory on real GPUs; make bench-gpu: its benchmarks; make sanitize-gpu"
	@echo "make demo             set up, build, run the demonstration (from a fresh clone)"
	@echo "make docs             the guide and the API reference in HTML: $(BUILD)/docs/index.html"
	@echo "make install          PREFIX=$(PREFIX) DESTDIR="
	@echo "make wheel            $(BUILD)/dist/*.whl, checked with auditwheel and in an empty environment"
	@echo "make deb              $(BUILD)/deb/*.deb, the programs and the library without Python, checked with lintian where it is installed"
	@echo "make faults           each call site of the broker, the library and the package fails once (FAULTS='--role client')"
	@echo "make lint asan tsan fuzz soak bench bench-bridge bench-dask bench-dask-nodes bench-ray dask-suites test-pythons clean"

# ---- libraries and programs ------------------------------------------------------------------------

# `make V=1` shows the whole commands.
$(BUILD)/%.o: %.c | $(CUDA_INCLUDE)/cuda.h
	@mkdir -p $(@D)
	@$(if $(V),set -x,echo '  CC      $<'); $(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# A processor is asked before this is called.
ifneq ($(findstring x86_64,$(shell $(CC) -dumpmachine 2>/dev/null)),)
$(BUILD)/ipc/base/hash_avx2.o: CFLAGS += -mavx2
endif

$(BUILD)/libcwshm.a: $(call obj,$(SHM_SRC))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/libcwipc.a: $(call obj,$(IPC_SRC) $(SHM_SRC))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/libcwbroker.a: $(call obj,$(filter-out broker/main.c,$(BROKER_SRC)))
	rm -f $@ && ar rcs $@ $^

# Only what cableway.h declares is seen from outside, also in the static library: one object, all else local.
$(BUILD)/libcableway.names: ipc/cableway.h
	@mkdir -p $(@D)
	grep -oE '\bcw_[a-z_0-9]+\(' $< | tr -d '(' | sort -u >$@
$(BUILD)/libcableway.o: $(call obj,$(IPC_SRC) $(SHM_SRC)) $(BUILD)/libcableway.names
	$(LD) -r -o $@ $(filter %.o,$^) && objcopy --keep-global-symbols=$(BUILD)/libcableway.names $@
$(BUILD)/libcableway.a: $(BUILD)/libcableway.o
	rm -f $@ && ar rcs $@ $^
$(BUILD)/libcableway.map: ipc/cableway.h
	@mkdir -p $(@D)
	(echo 'CABLEWAY_0 { global:'; grep -oE '\bcw_[a-z_0-9]+\(' $< | tr '(' ';' | sort -u; echo 'local: *; };') >$@
# The package's own has another soname: a program that has loaded some libcableway.so.0 before must not give it to the package.
$(BUILD)/libcableway.so.0 $(BUILD)/libcableway-python.so.0: $(call obj,$(IPC_SRC)) $(BUILD)/libcwshm.a $(BUILD)/libcableway.map
	$(CC) -shared -Wl,-soname,$(@F) -Wl,--version-script,$(BUILD)/libcableway.map -Wl,-z,defs -Wl,-z,nodelete \
	    -o $@ $(filter %.o %.a,$^) $(LDFLAGS)
$(BUILD)/libcableway.so: $(BUILD)/libcableway.so.0
	ln -sf libcableway.so.0 $@

$(BUILD)/cablewayd: $(call obj,$(BROKER_SRC)) $(BUILD)/libcwipc.a
	$(CC) -o $@ $^ $(LDFLAGS) -l:libinih.a
$(BUILD)/cableway-mover: $(call obj,$(MOVER_SRC)) $(BUILD)/libcwipc.a
	$(CC) -o $@ $^ $(LDFLAGS)
$(BUILD)/cableway-bridge: $(call obj,$(BRIDGE_SRC)) $(BUILD)/libcwipc.a
	$(CC) -o $@ $^ $(LDFLAGS) $(BRIDGE_LIBS) -l:libinih.a -l:libjansson.a
$(BUILD)/cableway: $(call obj,$(TOOLS_SRC)) $(BUILD)/libcwipc.a
	$(CC) -o $@ $^ $(LDFLAGS) -l:libjansson.a $(SCREEN_LIBS)

# ---- virtual environment, the package in it -----------------------------------------------------------

$(VENV)/made.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "cableway needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --disable-pip-version-check --upgrade pip
	@touch $@
$(VENV)/deps-%.stamp: tools/requirements/%.txt $(VENV)/made.stamp
	$(PIP) install -q --disable-pip-version-check -r $<
	@touch $@

ifeq ($(wildcard $(CUDA_INCLUDE)/cuda.h),)
$(CUDA_INCLUDE)/cuda.h: tools/cuda_header.sh | $(VENV)/made.stamp
	sh tools/cuda_header.sh fetch $(CUDA_INCLUDE) "$(VPY) -m pip"
endif

include tools/python.mk

# ---- tests -----------------------------------------------------------------------------------------

C_PARTS := unit stress crash
TEST_PROGRAMS :=
BENCH_PROGRAMS :=

# Without the bridge its tests are left out, too.
define c_part
$(1)_SRC  := $$(filter-out $$(if $$(HAVE_BRIDGE),,tests/unit/bridge/% tests/unit/test_bridge_%),$$(call c_of,tests/$(1)))
$(1)_MAIN := $$(call with_main,$$($(1)_SRC))
$(1)_HELP := $$(call obj,$$(filter-out $$($(1)_MAIN),$$($(1)_SRC)))
TEST_BUILT += $$(patsubst %.c,$(BUILD)/%,$$($(1)_MAIN))
TEST_PROGRAMS += $$(patsubst %.c,$(1):$(BUILD)/%,$$(filter-out %_helper.c %_victim.c,$$($(1)_MAIN)))
$(BUILD)/tests/$(1)/%: $(BUILD)/tests/$(1)/%.o $$($(1)_HELP) $(BUILD)/libcwbroker.a $(BUILD)/libcwipc.a
	$$(CC) -o $$@ $$^ $$(LDFLAGS) -lcmocka -l:libinih.a $$$$(sed -n 's|.*LDLIBS: *\([-a-z0-9: ]*\).*|\1|p' tests/$(1)/$$*.c)
endef
$(foreach part,$(C_PARTS),$(eval $(call c_part,$(part))))
.SECONDARY:

EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard docs/examples/*.c))
# Beside those in C: one in C++, one that has the library in itself, and a plugin with its host.
EXAMPLES += $(BUILD)/docs/examples/linking/cplusplus $(BUILD)/docs/examples/linking/static $(BUILD)/docs/examples/linking/host
EXAMPLE_FLAGS = -Iipc -Wall -Wextra $(WERROR) $(SANITIZE)
EXAMPLE_SHARED = -L$(BUILD) -lcableway -Wl,-rpath,$(abspath $(BUILD))
TEST_PROGRAMS += $(addprefix example:,$(EXAMPLES))
$(BUILD)/docs/examples/linking/cplusplus: docs/examples/linking/cplusplus.cpp $(BUILD)/libcableway.so
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(EXAMPLE_FLAGS) -o $@ $< $(EXAMPLE_SHARED)
$(BUILD)/docs/examples/linking/static: docs/examples/linking/static.c $(BUILD)/libcableway.a
	@mkdir -p $(@D)
	$(CC) -std=c11 $(EXAMPLE_FLAGS) -o $@ $^ -pthread
$(BUILD)/docs/examples/linking/plugin.so: docs/examples/linking/plugin.c $(BUILD)/libcableway.so
	@mkdir -p $(@D)
	$(CC) -std=c11 $(EXAMPLE_FLAGS) -shared -fPIC -o $@ $< $(EXAMPLE_SHARED)
$(BUILD)/docs/examples/linking/host: docs/examples/linking/host.c $(BUILD)/docs/examples/linking/plugin.so
	@mkdir -p $(@D)
	$(CC) -std=c11 $(EXAMPLE_FLAGS) -o $@ $< -ldl
$(BUILD)/docs/examples/%: docs/examples/%.c $(BUILD)/libcableway.so
	@mkdir -p $(@D)
	$(CC) -std=c11 -Iipc -Wall -Wextra $(WERROR) $(SANITIZE) -o $@ $< -L$(BUILD) -lcableway -Wl,-rpath,$(abspath $(BUILD))

# Built by tests/fuzz.sh in a folder of their own, everything instrumented.
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(if $(HAVE_BRIDGE),$(wildcard tests/fuzz/*.c),$(filter-out %/fuzz_link.c,$(wildcard tests/fuzz/*.c))))
$(BUILD)/tests/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/libcwbroker.a $(BUILD)/libcwipc.a
	$(CC) -o $@ $^ $(LDFLAGS) -fsanitize=fuzzer -l:libinih.a -l:libjansson.a
# The bridge's state machine: all of it but what tests/fuzz/link plays.
FUZZ_LINK_OBJ := $(call obj,$(filter-out $(patsubst %,broker/bridge/%.c,main io/io io/epoll io/uring tls/tls io/helpers local/broker_channel tls/keys cli/%),$(BRIDGE_SRC)) $(wildcard tests/fuzz/link/*.c))
$(BUILD)/tests/fuzz/fuzz_link: $(FUZZ_LINK_OBJ) $(BUILD)/cablewayd
$(BUILD)/tests/fuzz/fuzz_link: $(BUILD)/tests/fuzz/fuzz_link.o $(FUZZ_LINK_OBJ) $(BUILD)/libcwipc.a
	$(CC) -o $@ $(filter %.o %.a,$^) $(LDFLAGS) -fsanitize=fuzzer -Wl,--wrap=cwb_log -pthread -lssl -lcrypto -l:libinih.a
fuzzers: $(FUZZERS)

ifneq ($(wildcard tests/model/Makefile),)
MODEL := model:$(BUILD)/tests/model
TEST_PROGRAMS += $(MODEL)
$(BUILD)/tests/model: always
	@$(MAKE) --no-print-directory -C tests/model BUILD=$(abspath $(BUILD)) $(abspath $@)
endif
always:
-include $(wildcard tests/*/rules.mk)

test-programs: all $(TEST_BUILT) $(EXAMPLES) $(foreach p,$(TEST_PROGRAMS),$(lastword $(subst :, ,$(p))))

RUN := $(VPY) tests/run.py --build $(BUILD) --timeout $(TIMEOUT)
HAVE_CLANG := command -v $(CLANG) >/dev/null

# A part that does not build is a failed test; the rest is run all the same.
test: $(VENV)/deps-test.stamp $(VENV)/deps-docs.stamp
	@built=; $(MAKE) --no-print-directory -k $(JOBS) test-programs $(PACKAGE) $(DASK) || built=build:/bin/false; \
	$(RUN) tidy:tests/tidy.py $$built $(filter-out $(MODEL),$(TEST_PROGRAMS)) "py:pytest --quick tests/py" "doc:doctest cableway" doc:tests/docs.sh
# What takes minutes: the model of the memory order, storms of deaths and cuts, CPython's and loky's own tests over ours, all
# warnings of two compilers, the fuzzers, the walk through the local protocol, some of `make faults` by chance, the examples of
# systems that people come from.
test-more: $(VENV)/deps-test.stamp
	@built=; $(MAKE) --no-print-directory -k $(JOBS) test-programs $(PACKAGE) $(COMING_FROM) $(DASK) $(RAY) || built=build:/bin/false; \
	$(RUN) $$built $(MODEL) compilers:tests/compilers.sh $(if $(FUZZERS),"fuzz:tests/fuzz.sh 5") "protocol:tests/protocol.sh 300" "faults:tests/faults/faults.py --sample 24 --jobs 1" "py:pytest --more tests/py"
# The README's commands in new roots of Debian and Ubuntu (tests/fresh). FRESH: its options, such as --whole.
test-fresh:
	@$(PYTHON) -B tests/fresh/fresh.py --build $(BUILD) $(FRESH)
test-c: test-programs $(VENV)/made.stamp
	@$(RUN) $(TEST_PROGRAMS)
test-py: $(PACKAGE) $(DASK) $(VENV)/deps-test.stamp
	@$(RUN) "py:pytest tests/py"
# The same tests of GPU memory as in `make test`, on real GPUs. Elsewhere: copy the tree with BUILD and run the script.
test-gpu: all $(SITE) $(VENV)/deps-test.stamp $(GPU_TESTS)
	PYTHON=$(abspath $(VPY)) sh tests/gpu/run.sh $(BUILD)
# GPU arrays beside the driver, torch and NCCL, on the GPUs that are there.
bench-gpu: all $(SITE) $(VENV)/deps-test.stamp $(GPU_TESTS) $(if $(HAVE_BRIDGE),$(BUILD)/tools/bench/programs/bench_tls)
	PYTHON=$(abspath $(VPY)) sh tests/gpu/run.sh $(BUILD) bench
# The GPU tests in C and some others under compute-sanitizer, where it is installed.
sanitize-gpu: all $(SITE) $(VENV)/deps-test.stamp $(GPU_TESTS)
	PYTHON=$(abspath $(VPY)) sh tests/gpu/run.sh $(BUILD) sanitize
fuzz: $(VENV)/made.stamp
	@$(RUN) --timeout 100000 "fuzz:tests/fuzz.sh $(or $(FUZZ_SECONDS),60)"
# Each call site of each allocation and system call fails once (tests/faults). FAULTS: options of faults.py.
faults: $(PACKAGE) $(VENV)/deps-test.stamp faults-programs
	@$(RUN) --timeout 36000 "faults:tests/faults/faults.py $(FAULTS)"
soak: $(PACKAGE) $(VENV)/deps-test.stamp $(DASK) test-programs
	@CABLEWAY_SOAK=1 $(RUN) --timeout 36000 $(filter stress:% crash:% model:%,$(TEST_PROGRAMS)) "protocol:tests/protocol.sh 3600" $(if $(filter %/fuzz_link,$(FUZZERS)),"fuzz:tests/fuzz.sh 3600 fuzz_bridge fuzz_link") "py:pytest tests/py"
# Many real nodes on 127.0.0.0/8: memory, CPU, links (tools/bench/studies/bench_nodes.py). NODES='--nodes 100' for fewer.
nodes1000: $(PACKAGE)
	@$(VPY) tools/bench/studies/bench_nodes.py $(NODES)

# gcc guesses at lengths and paths wrongly once sanitizers have rewritten the code.
QUIET := -Wno-format-truncation -Wno-maybe-uninitialized
# AddressSanitizer and UndefinedBehaviorSanitizer, C and Python; ThreadSanitizer for threads over one mapping.
asan: $(VENV)/deps-test.stamp
	@$(MAKE) --no-print-directory $(JOBS) sanitized BUILD=$(BUILD)/asan VENV=$(VENV) OPT='-O1 -g -fno-omit-frame-pointer $(QUIET)' \
	    SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined' SANITIZED_PARTS='$(C_PARTS) example' SANITIZED_PY=1
tsan: $(PACKAGE) $(VENV)/deps-test.stamp
	@$(MAKE) --no-print-directory $(JOBS) sanitized BUILD=$(BUILD)/tsan VENV=$(VENV) OPT='-O1 -g -fno-omit-frame-pointer $(QUIET)' \
	    SANITIZE='-fsanitize=thread' SANITIZED_PARTS='unit stress' SANITIZED_BRIDGE=1 # the bridge has threads
# The package with the sanitizers stands before the tests' packages in a venv of its own: PYTHONPATH would not reach a
# Python that is run with -I or in an environment of its own. Its console script is the package's, with this Python.
SANITIZED_COMMAND := $(BUILD)/venv/bin/cableway
sanitized:
	@$(if $(SANITIZED_PY),$(VPY) -m venv --without-pip $(BUILD)/venv)
	@$(if $(SANITIZED_PY),$(VPY) -c 'import sysconfig; print("$(abspath $(BUILD)/site)", sysconfig.get_path("purelib"), sep="\n")' \
	    >"$$(echo $(BUILD)/venv/lib/python3*/site-packages)/cableway.pth")
	@built=; $(MAKE) --no-print-directory -k test-programs $(if $(SANITIZED_PY),$(SITE)) $(if $(SANITIZED_BRIDGE),$(BUILD)/cableway-bridge) || built=build:/bin/false; \
	$(if $(SANITIZED_PY),rm -f $(SANITIZED_COMMAND) && sed '1s|.*|#!$(abspath $(BUILD))/venv/bin/python|' $(BUILD)/site/bin/cableway >$(SANITIZED_COMMAND) && chmod +x $(SANITIZED_COMMAND) || built=build:/bin/false;) \
	$(RUN) --timeout 1800 $$built $(foreach p,$(SANITIZED_PARTS),$(filter $(p):%,$(TEST_PROGRAMS))) \
	    $(if $(SANITIZED_PY),"py:pytest-asan tests/py") $(if $(SANITIZED_BRIDGE),"py:pytest-bridge tests/py/bridge/transfers/test_bridge_streams.py tests/py/bridge/faults/test_bridge_streams_hostile.py")

# These need OpenSSL or liburing.
BRIDGE_BENCHES := bench_send bench_tls bench_tls_server bench_tls_load
BENCH_SRC  := $(filter-out $(if $(HAVE_BRIDGE),,$(BRIDGE_BENCHES:%=tools/bench/programs/%.c)),$(call c_of,tools/bench))
BENCH_MAIN := $(call with_main,$(BENCH_SRC))
BENCH_HELP := $(call obj,$(filter-out $(BENCH_MAIN),$(BENCH_SRC)))
WORKERS    ?= 2
BENCHES    := $(patsubst %.c,$(BUILD)/%,$(BENCH_MAIN))
bench:
	@$(MAKE) --no-print-directory $(JOBS) all bench-programs
	@$(MAKE) --no-print-directory bench-run VENV=$(BUILD)/bench-venv
bench-programs: $(BENCHES)
# The bridge between nodes on this machine, beside OpenSSL, Dask and multiprocessing.
bench-bridge:
	@$(MAKE) --no-print-directory $(JOBS) all $(BRIDGE_BENCHES:%=$(BUILD)/tools/bench/programs/%)
	@$(MAKE) --no-print-directory bench-bridge-run VENV=$(BUILD)/bench-venv
bench-bridge-run: $(PACKAGE) $(VENV)/deps-bench-bridge.stamp
	@$(VPY) tools/bench/run.py --bridge --build $(BUILD)
# Dask with cableway beside stock Dask. BENCH_DASK: options of the program.
bench-dask: $(DASK)
	@folder=$$(mktemp -d) && CABLEWAY_DIR=$$folder PATH=$(abspath $(BUILD))/dask/bin:$$PATH DASK_TEMPORARY_DIRECTORY=$$folder \
	    python tools/bench/clusters/bench_dask.py $(BENCH_DASK); code=$$?; \
	CABLEWAY_DIR=$$folder $(BUILD)/dask/bin/cableway stop --yes --force >/dev/null; rm -r $$folder; exit $$code
bench-dask-nodes: $(DASK)
	@folder=$$(mktemp -d) && PATH=$(abspath $(BUILD))/dask/bin:$$PATH DASK_TEMPORARY_DIRECTORY=$$folder \
	    python tools/bench/clusters/bench_dask_nodes.py $(BENCH_DASK); code=$$?; rm -r $$folder; exit $$code
# Arrays from one actor of Ray to another. For those of PyTorch, too: build/ray/bin/pip install torch. BENCH_RAY: options.
bench-ray: $(RAY)
	@folder=$$(mktemp -d) && CABLEWAY_DIR=$$folder PATH=$(abspath $(BUILD))/ray/bin:$$PATH RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled \
	    python tools/bench/clusters/bench_ray.py $(BENCH_RAY); code=$$?; \
	CABLEWAY_DIR=$$folder $(BUILD)/ray/bin/cableway stop --yes --force >/dev/null; rm -r $$folder; exit $$code
# distributed's own tests with cableway and with stock Dask, in one run. CHECKOUT: a checkout of github.com/dask/distributed of about
# the version in tools/requirements/dask.txt; SUITES: test files, all those of dask_suite.py by default.
dask-suites: $(DASK_SUITES)
	@test -d "$(CHECKOUT)/distributed" || { echo 'make dask-suites CHECKOUT=FOLDER: a checkout of github.com/dask/distributed' >&2; exit 2; }
	@PATH=$(abspath $(BUILD))/dask-suites/bin:$$PATH python tests/py/clusters/dask_suite.py $(CHECKOUT) $(SUITES)
bench-run: $(PACKAGE) $(VENV)/deps-bench.stamp $(VENV)/peers.stamp
	@$(VPY) tools/bench/run.py --build $(BUILD) --workers $(WORKERS)
# Those that cannot be installed are not measured; the next run tries again.
$(VENV)/peers.stamp: tools/requirements/bench-peers.txt $(VENV)/deps-bench.stamp
	@rm -f $@; lacking=; for peer in $$(grep -v '^#' $<); do \
	    $(PIP) install -q --disable-pip-version-check "$$peer" || lacking="$$lacking $$peer"; done; \
	if [ -z "$$lacking" ]; then touch $@; else echo "cableway: not installed, and so not measured:$$lacking" >&2; fi
$(BUILD)/tools/bench/programs/bench_tls_server $(BUILD)/tools/bench/programs/bench_tls_load: $(BUILD)/broker/bridge/wire/frame.o
$(BUILD)/tools/bench/programs/%: $(BUILD)/tools/bench/programs/%.o $(BENCH_HELP) $(BUILD)/libcwipc.a
	$(CC) -o $@ $^ $(LDFLAGS) $$(sed -n 's|.*LDLIBS: *\([-a-z0-9: ]*\).*|\1|p' tools/bench/programs/$*.c) -l:libck.a -lm

demo:
	@$(MAKE) --no-print-directory $(JOBS) all $(PACKAGE) $(VENV)/deps-demo.stamp
	@$(MAKE) --no-print-directory demo-run
# CuPy, where there is a GPU; without it the demo says what it left out.
DEMO_GPU := $(if $(wildcard /dev/nvidiactl),demo-gpu-deps)
demo-gpu-deps: $(VENV)/deps-demo.stamp
	-$(VPY) -c 'import cupy' 2>/dev/null || $(PIP) install -q --disable-pip-version-check -r tools/requirements/demo-gpu.txt
demo-run: $(PACKAGE) $(VENV)/deps-demo.stamp $(DEMO_GPU)
	@PATH="$(abspath $(VENV))/bin:$$PATH" PYTHONDONTWRITEBYTECODE=1 $(VPY) docs/examples/demo/demo.py --out $(BUILD)

# The guide and the API reference in HTML; a warning is an error.
docs: $(PACKAGE) $(VENV)/deps-docs.stamp
	@PYTHON=$(VPY) CABLEWAY_BUILD=$(BUILD) sh tests/docs.sh && echo "$(BUILD)/docs/index.html"

lint: $(VENV)/deps-lint.stamp $(PACKAGE)
	@$(RUN) --timeout 900 lint:tests/lint.sh tidy:tests/tidy.py

# ---- install ---------------------------------------------------------------------------------------

D = $(DESTDIR)$(PREFIX)
# Where zsh looks for completions: distributions have a folder of their own for packages.
ZSH_COMPLETIONS ?= share/zsh/site-functions
install: all
	install -d $(D)/bin $(D)/lib/pkgconfig $(D)/include $(D)/lib/systemd/user $(D)/share/bash-completion/completions $(D)/$(ZSH_COMPLETIONS)
	install -m 755 $(PROGRAMS) $(D)/bin
	install -m 755 $(BUILD)/libcableway.so.0 $(D)/lib/libcableway.so.$(VERSION)
	ln -sf libcableway.so.$(VERSION) $(D)/lib/libcableway.so.0
	ln -sf libcableway.so.0 $(D)/lib/libcableway.so
	install -m 644 $(BUILD)/libcableway.a $(D)/lib
	install -m 644 ipc/cableway.h $(D)/include
	sed 's|@PREFIX@|$(PREFIX)|;s|@VERSION@|$(VERSION)|' tools/cableway.pc.in >$(D)/lib/pkgconfig/cableway.pc
	sed 's|@PREFIX@|$(PREFIX)|' tools/cablewayd.service.in >$(D)/lib/systemd/user/cablewayd.service
	for page in docs/man/*.[1-9]; do [ ! -f $$page ] || install -D -m 644 $$page $(D)/share/man/man$${page##*.}/$${page##*/}; done
	$(BUILD)/cableway completion bash >$(D)/share/bash-completion/completions/cableway
	ln -sf cableway $(D)/share/bash-completion/completions/cablewayd
	$(BUILD)/cableway completion zsh >$(D)/$(ZSH_COMPLETIONS)/_cableway
	@sh tools/installed.sh '$(PREFIX)' '$(DESTDIR)'

# What wheels and packages are made of: nothing of the system's inside needed but the C library.
release = $(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/release VENV=$(VENV) OPT=-O2 \
	    $(if $(HAVE_BRIDGE),BRIDGE_LIBS="$$(sh tools/static_libs.sh $(CC))")
# A package of Debian and Ubuntu with all that `make install` installs but the static library: $(BUILD)/deb/*.deb.
deb: $(VENV)/made.stamp
	@command -v dpkg-deb >/dev/null || { echo 'make deb: dpkg-deb is not here; it is part of Debian and Ubuntu, and a package elsewhere' >&2; exit 1; }
	+@$(release) deb-made
deb-made: all
	rm -rf $(BUILD)/deb
	@$(MAKE) --no-print-directory install DESTDIR=$(abspath $(BUILD))/deb PREFIX=/usr ZSH_COMPLETIONS=share/zsh/vendor-completions >/dev/null
	sh tools/deb.sh $(BUILD)/deb $(VERSION) $(dir $(BUILD))deb

# One wheel for Python 3.10 and later: library, broker and command inside, nothing else of ours needed.
wheel: $(VENV)/deps-wheel.stamp
	+@$(release) $(BUILD)/release/wheel/made.stamp
	rm -rf $(BUILD)/dist && mkdir $(BUILD)/dist
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VPY) -m auditwheel show $(BUILD)/release/wheel/cableway-*.whl
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VPY) -m auditwheel repair --plat auto -w $(BUILD)/dist $(BUILD)/release/wheel/cableway-*.whl
	sh tests/wheel.sh $(PYTHON) $(BUILD)/dist/cableway-*.whl

# The Python tests under every Python that is found. The wheel is one; each gets its own environment.
PYTHONS ?= $$(sh tools/pythons.sh)
test-pythons: test-programs $(RAW_WHEEL)
	@set -e; for python in $(PYTHONS); do \
	    name=$$($$python -c 'import sys; print("py%d.%d" % sys.version_info[:2])'); venv=$(BUILD)/venv-$$name; \
	    [ -x $$venv/bin/python ] || $$python -m venv $$venv; \
	    $$venv/bin/python -m pip install -q --disable-pip-version-check -r tools/requirements/test.txt; \
	    $$venv/bin/python -m pip $(PIP_LOCAL) $(BUILD)/wheel/cableway-*.whl; \
	    $$venv/bin/python tests/run.py --build $(BUILD) "$$name:pytest tests/py"; done

clean:
	rm -rf $(BUILD)/*

print-%:
	@echo '$($*)'
-include $(wildcard $(foreach d,* */* */*/* */*/*/*,$(BUILD)/$(d).d))
.PHONY: all help always nodes1000 faults faults-programs test test-more test-fresh test-c test-py test-gpu bench-gpu sanitize-gpu test-programs test-pythons fuzz soak asan tsan sanitized bench bench-bridge bench-dask bench-dask-nodes bench-ray dask-suites bench-bridge-run bench-programs bench-run demo demo-run demo-gpu-deps \
        docs lint install deb deb-made wheel clean fuzzers
.DEFAULT_GOAL := all
