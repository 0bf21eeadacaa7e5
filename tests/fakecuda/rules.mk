# The test double of the CUDA driver. Tests that use it name it by CABLEWAY_CUDA_DRIVER.
FAKECUDA     := $(BUILD)/tests/fakecuda/libcuda-double.so
FAKECUDA_SRC := $(filter-out tests/fakecuda/tests/% tests/fakecuda/nvml/% tests/fakecuda/test_%.c,$(call c_of,tests/fakecuda))

# Every call of ipc/cuda/calls.h is in it, or it does not link (symbols.c, -z defs). It stays loaded: its threads do.
$(FAKECUDA): $(call obj,$(FAKECUDA_SRC))
	$(CC) -shared -o $@ $^ $(LDFLAGS) -Wl,-soname,libcuda-double.so -Wl,-Bsymbolic -Wl,-z,nodelete $(if $(SANITIZE),,-Wl,-z,defs) -lm

# Its own tests link it like a library.
FAKECUDA_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fakecuda/tests/*.c tests/fakecuda/test_*.c))
TEST_PROGRAMS  += $(addprefix unit:,$(FAKECUDA_TESTS))
$(FAKECUDA_TESTS): $(BUILD)/%: $(BUILD)/%.o $(FAKECUDA)
	$(CC) -o $@ $< $(LDFLAGS) -lcmocka $(abspath $(FAKECUDA)) -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/..'
# Everything that may load the double by its path finds it built.
# NVML, for `cableway top`.
FAKENVML := $(BUILD)/tests/fakecuda/libnvml-double.so
$(FAKENVML): $(BUILD)/tests/fakecuda/nvml/nvml.o
	$(CC) -shared -o $@ $^ $(LDFLAGS)
test-programs: $(FAKECUDA) $(FAKENVML)
