# Tests of GPU memory in C. A file with a main() is a program; without CABLEWAY_TEST_GPU=1 it runs on the test double. bench_*.c
# are benchmarks that look inside the library, as tools/ must not; `make bench-gpu` runs them.
GPU_MAIN  := $(call with_main,$(wildcard tests/gpu/*.c))
GPU_HELP  := $(call obj,$(filter-out $(GPU_MAIN),$(wildcard tests/gpu/*.c)))
GPU_TESTS := $(patsubst %.c,$(BUILD)/%,$(GPU_MAIN))
TEST_PROGRAMS += $(addprefix gpu:,$(filter-out $(BUILD)/tests/gpu/bench_%,$(GPU_TESTS)))
$(GPU_TESTS): $(BUILD)/%: $(BUILD)/%.o $(GPU_HELP) $(BUILD)/libcwipc.a | $(FAKECUDA) $(BUILD)/cablewayd
	$(CC) -o $@ $^ $(LDFLAGS) -ldl
gpu-programs: $(GPU_TESTS)
