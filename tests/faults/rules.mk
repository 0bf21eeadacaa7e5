# Calls that fail: a library that is loaded before libc (shim.c), a walk over cableway.h, and faults.py, which makes each call
# of each site fail once. The walk has the shared library, so that what is ours stands in a module of its own.
FAULTS_SHIM := $(BUILD)/tests/faults/libfaults.so
FAULTS_WALK := $(BUILD)/tests/faults/walk
$(FAULTS_SHIM): $(call obj,tests/faults/shim.c tests/faults/sites.c)
	$(CC) -shared -o $@ $^ $(LDFLAGS)
$(FAULTS_WALK): $(call obj,$(wildcard tests/faults/walk*.c)) $(BUILD)/libcableway.so
	$(CC) -o $@ $(filter %.o,$^) $(LDFLAGS) -L$(BUILD) -lcableway -Wl,-rpath,'$$ORIGIN/../..'
faults-programs: $(FAULTS_SHIM) $(FAULTS_WALK) $(FAKECUDA) all
# What is built with a sanitizer has allocations of its own.
ifeq ($(SANITIZE),)
test-programs: $(FAULTS_SHIM) $(FAULTS_WALK)
endif
