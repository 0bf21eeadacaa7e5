# The program of test_setuid.c once more, with the shared library.
$(BUILD)/tests/unit/setuid_shared: tests/unit/setuid_helper.c $(BUILD)/libcableway.so
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -I. $(OPT) $(SANITIZE) -o $@ $< -L$(BUILD) -lcableway -Wl,-rpath,$(abspath $(BUILD))
TEST_BUILT += $(BUILD)/tests/unit/setuid_shared
$(BUILD)/tests/unit/test_setuid: | $(BUILD)/tests/unit/setuid_shared $(BUILD)/tests/unit/setuid_helper $(FAKECUDA)
