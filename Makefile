# cedar: one Makefile. `make help` lists the targets.
#
# Objects live in build/<configuration>/; the flags are part of the configuration's stamp, so that a change of flags
# rebuilds. Header dependencies come from the compiler (-MMD -MP).

CC      ?= gcc
CONFIG  ?= release
BUILD   := build/$(CONFIG)-$(notdir $(firstword $(CC)))

WARN    := -Wall -Wextra -Werror -Wshadow -Wconversion -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith
# -ffp-contract=off: a fused multiply-add rounds once instead of twice, and the compiler's choice of where to use one
# would become part of the results. No -ffast-math anywhere.
BASEFLAGS := -std=gnu11 -ffp-contract=off -fno-math-errno -I. $(WARN) -MMD -MP -D_GNU_SOURCE

OPT_release := -O3 -g
OPT_debug   := -O1 -g
OPT_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DCEDAR_SANITIZED
OPT_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer -DCEDAR_SANITIZED
OPT         := $(OPT_$(CONFIG))

PKGS    := lua5.4 sqlite3 jansson zlib libmd
PKGCFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDLIBS  := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread

CFLAGS_ALL := $(BASEFLAGS) $(OPT) $(PKGCFLAGS) $(CFLAGS)

# --- sources: every .c file of a folder belongs to the module ------------------------------------------------------
MODULES   := base engine traces sim reports lua
SRC       := $(foreach m,$(MODULES),$(wildcard $(m)/*.c))
MAIN      := sim/main.c
LIBSRC    := $(filter-out $(MAIN),$(SRC))
# The CPU operators are compiled once per arithmetic (engine/cpu/arith.h).
ARITHS    := WIDE F32 BF16
CPUSRC    := $(wildcard engine/cpu/*.c)
OPSRC     := $(wildcard engine/cpu/ops/*.c)
OPOBJ     := $(foreach a,$(ARITHS),$(OPSRC:%.c=$(BUILD)/%.$(a).o))
# Files embedded as they are: SQL, and the style and script of the HTML report.
EMBED     := schema.sql views.sql report.css report.js
EMBEDOBJ  := $(EMBED:%=$(BUILD)/reports/%.o)
LIBOBJ    := $(LIBSRC:%.c=$(BUILD)/%.o) $(CPUSRC:%.c=$(BUILD)/%.o) $(OPOBJ) $(BUILD)/reports/chartjs.o $(EMBEDOBJ)
LIB       := $(BUILD)/libcedar.a
TESTSRC   := $(wildcard tests/test_*.c)
TESTBIN   := $(TESTSRC:tests/%.c=$(BUILD)/tests/%)

COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
DIRTY  := $(shell git status --porcelain 2>/dev/null | head -1)

.PHONY: all help test quickstart clean deps
all: $(BUILD)/cedar cedar

cedar: $(BUILD)/cedar
	@ln -sf $(BUILD)/cedar cedar

$(BUILD)/cedar: $(BUILD)/sim/main.o $(LIB)
	$(CC) $(OPT) -o $@ $^ $(LDLIBS)

$(LIB): $(LIBOBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -c -o $@ $<

define arith_rule
$(BUILD)/engine/cpu/ops/%.$(1).o: engine/cpu/ops/%.c $(BUILD)/flags
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS_ALL) -DCEDAR_ARITH_$(1) -c -o $$@ $$<
endef
$(foreach a,$(ARITHS),$(eval $(call arith_rule,$(a))))

$(BUILD)/tests/%: tests/%.c $(LIB) $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(shell pkg-config --cflags check) -MF $@.d -o $@ $< $(LIB) $(shell pkg-config --libs check) $(LDLIBS)

# Chart.js, embedded in the report: the file as it is packaged by Debian.
CHARTJS := /usr/share/javascript/chart.js/chart.min.js
$(BUILD)/reports/chartjs.o: $(CHARTJS)
	@mkdir -p $(@D)
	cd $(dir $(CHARTJS)) && ld -r -b binary -z noexecstack -o $(abspath $@) chart.min.js

$(EMBEDOBJ): $(BUILD)/reports/%.o: reports/%
	@mkdir -p $(@D)
	cd reports && ld -r -b binary -z noexecstack -o $(abspath $@) $*

# Changed flags rebuild everything of the configuration.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS_ALL)' | cmp -s - $@ || echo '$(CC) $(CFLAGS_ALL)' > $@
.PHONY: FORCE
FORCE:

clean:
	rm -rf build cedar

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
