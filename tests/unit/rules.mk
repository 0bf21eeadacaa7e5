# The program of test_setuid.c once more, with the shared library.
$(BUILD)/tests/unit/ipc/setuid_shared: tests/unit/ipc/setuid_helper.c $(BUILD)/libcableway.so
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -I. $(OPT) $(SANITIZE) -o $@ $< -L$(BUILD) -lcableway -Wl,-rpath,$(abspath $(BUILD))
TEST_BUILT += $(BUILD)/tests/unit/ipc/setuid_shared
$(BUILD)/tests/unit/ipc/test_setuid: | $(BUILD)/tests/unit/ipc/setuid_shared $(BUILD)/tests/unit/ipc/setuid_helper $(FAKECUDA)
