# causeway: see README.md
BUILD   ?= build
CC      ?= gcc
OPT     ?= -O2 -g
CFLAGS  += -std=gnu11 $(OPT) -fPIC -pthread -fvisibility=hidden -Wall -Wextra -Wshadow -Wpointer-arith \
           -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wwrite-strings -Werror $(SANITIZE)
CPPFLAGS += -D_GNU_SOURCE -I.
LDFLAGS += -pthread $(SANITIZE)

SHM_SRC    := $(wildcard shm/*.c)
IPC_SRC    := $(wildcard ipc/*.c)
BROKER_SRC := $(wildcard broker/*.c)
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))

all: $(BUILD)/libcauseway.so $(BUILD)/causewayd $(BUILD)/causeway

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libcwshm.a: $(call obj,$(SHM_SRC))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/libcauseway.so: $(call obj,$(IPC_SRC)) $(BUILD)/libcwshm.a
	$(CC) -shared -Wl,-soname,libcauseway.so -o $@ $^ $(LDFLAGS)
$(BUILD)/libcauseway.a: $(call obj,$(IPC_SRC) $(SHM_SRC))
	rm -f $@ && ar rcs $@ $^
$(BUILD)/causewayd: $(call obj,$(BROKER_SRC)) $(BUILD)/libcwshm.a
	$(CC) -o $@ $^ $(LDFLAGS) -l:libinih.a

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all
