# cedar: one Makefile. `make help` lists the targets.
#
# Objects live in build/<configuration>-<compiler>/, those of nvcc in build/cuda-<architecture>/. The compiler and the
# flags are stamped there, so that a change of either rebuilds. Header dependencies come from the compiler (-MMD -MP).

ifeq ($(origin CC),default)
CC      := gcc
endif
CONFIG  ?= release
BUILD   := build/$(CONFIG)-$(notdir $(firstword $(CC)))
PREFIX  ?= /usr/local
DATADIR := $(PREFIX)/share/cedar
DOCDIR  := $(PREFIX)/share/doc/cedar

WARN    := -Wall -Wextra -Werror -Wshadow -Wconversion -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith
# -ffp-contract=off: a fused multiply-add rounds once instead of twice, and the compiler's choice of where to use one
# would become part of the results. No -ffast-math anywhere.
BASEFLAGS := -std=gnu11 -ffp-contract=off -fno-math-errno -I. $(WARN) -MMD -MP -D_GNU_SOURCE

OPT_release := -O3 -g
OPT_debug   := -O1 -g
OPT_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DCEDAR_SANITIZED
OPT_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer -DCEDAR_SANITIZED
OPT_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
               -DCEDAR_SANITIZED
OPT         := $(OPT_$(CONFIG))
ifeq ($(OPT),)
$(error CONFIG is $(CONFIG); it must be one of release, debug, asan, tsan, fuzz)
endif

PKGS    := lua5.4 sqlite3 jansson zlib libmd libcurl libmicrohttpd
PKGCFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
LDLIBS  := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread

# CUDA is used when it is there and never needed; CUDA=0 leaves it out. Sanitizers do without.
CUDA      ?= $(if $(filter release debug,$(CONFIG)),1,0)
CUSRC     := $(wildcard engine/cuda/*.cu)
CUDA_HOME ?= /usr/local/cuda
NVCC      := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_ARCH ?= sm_90a
CUDA_FOR  := $(CUDA_ARCH:sm_%=compute_%)
NVCC_CAN  := $(if $(NVCC),$(filter $(CUDA_FOR:%a=%),$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
USE_CUDA  := $(and $(filter-out 0,$(CUDA)),$(NVCC_CAN),$(CUSRC))
# The kernels are the same whatever compiles the C: builds share them.
CUBUILD   := build/cuda-$(CUDA_ARCH)
CUFLAGS   := -O3 -std=c++17 -gencode=arch=$(CUDA_FOR),code=$(CUDA_ARCH) -fmad=false -I. \
             -Werror all-warnings -MMD -MP
ifneq ($(USE_CUDA),)
BASEFLAGS += -DCEDAR_HAVE_CUDA
CUOBJ     := $(CUSRC:%.cu=$(CUBUILD)/%.cu.o)
LDLIBS    += -L$(dir $(NVCC))../lib64 -lcudart_static -lstdc++ -ldl -lrt
endif
ifneq ($(USE_CUDA),)
CUDA_SAYS := nvcc: found $(NVCC); the GPU backend is built for $(CUDA_ARCH)
else ifeq ($(CUDA),0)
CUDA_SAYS := nvcc: not wanted (CUDA=0); the CPU engine is built
else ifeq ($(NVCC),)
CUDA_SAYS := nvcc: not found; the CPU engine is built
else ifeq ($(NVCC_CAN),)
CUDA_SAYS := nvcc: found $(NVCC), which does not know $(CUDA_ARCH); the CPU engine is built
else
CUDA_SAYS := nvcc: found $(NVCC); engine/cuda has no kernels, the CPU engine is built
endif

CFLAGS_ALL := $(BASEFLAGS) $(OPT) $(PKGCFLAGS) $(CFLAGS)

# V=1 shows the commands as they run.
ifeq ($(V),1)
say = @:
else
Q   := @
say = @printf '  %-6s %s\n' '$(1)' '$(2)'
endif

# --- sources: every .c file of a folder belongs to the module --------------------------------------------------------
MODULES   := base engine traces audit http sim reports lua serve
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
LIBOBJ    := $(LIBSRC:%.c=$(BUILD)/%.o) $(CPUSRC:%.c=$(BUILD)/%.o) $(OPOBJ) $(CUOBJ) $(BUILD)/reports/chartjs.o \
             $(EMBEDOBJ)
LIB       := $(BUILD)/libcedar.a
TESTSRC   := $(wildcard tests/test_*.c)
TESTBIN   := $(TESTSRC:tests/%.c=$(BUILD)/tests/%)
FUZZSRC   := $(wildcard tests/fuzz/fuzz_*.c)
FUZZNAMES := $(FUZZSRC:tests/fuzz/fuzz_%.c=%)

.PHONY: all help need setup quickstart test test-slow test-gpu test-report test-clients suites check e2e asan tsan \
        clang fuzz fuzz-build headers includes tidy install clean FORCE
.DELETE_ON_ERROR:

all: need
	@echo '$(CUDA_SAYS)'
	@$(MAKE) --no-print-directory $(BUILD)/cedar
	@ln -sfn $(BUILD)/cedar cedar

help:
	@sed -n 's/^#: //p' Makefile

#: make              build what this machine can build: ./cedar, with the GPU backend when nvcc is there
#: make quickstart   install what is missing, build, play scenarios/quickstart.lua, write its HTML report
#: make test         install what is missing, build, run all tests: one line a suite, then the totals
#: make test-slow    the tests that take minutes: those tagged "slow", and the oracle on random shapes
#: make test-gpu     the CUDA engine on a GPU: operators, golden vectors, same bits, random plans; skipped without one
#: make test-report  reports opened in a headless Chromium against their databases; pictures in build/report
#: make test-clients other people's clients against cedar serve: AIPerf, the openai package; skipped without an index
#: make e2e          the program from outside: run, report, replay, kill, exit codes
#: make asan         tests with AddressSanitizer and UndefinedBehaviorSanitizer
#: make tsan         tests with ThreadSanitizer
#: make clang        build and tests with clang
#: make fuzz         fuzz targets, S seconds each (default 60); T=NAME for one of them
#: make headers      every header compiles alone
#: make includes     no module includes what it may not
#: make tidy         tabs, long lines, leftovers, paths of a machine
#: make install      to PREFIX (default /usr/local), below DESTDIR
#: make setup        only install what is missing (CEDAR_NO_INSTALL=1: only say it)
#: make clean        remove build/ and ./cedar
#: Variables: CC=gcc|clang, CONFIG=release|debug|asan|tsan, CFLAGS, CUDA=0, CUDA_HOME, CUDA_ARCH, V=1 (show commands).
#: GPU_SUITES: some of operators, ranks, same_bits, plans, golden for test-gpu.

# --- set-up: the flags above were read before anything was installed, so each target starts make anew ----------------
need:
	@CC='$(CC)' tools/setup.sh --say build

setup:
	@CC='$(CC)' tools/setup.sh build test

quickstart:
	@CC='$(CC)' tools/setup.sh build
	@$(MAKE) --no-print-directory all
	@tools/quickstart.sh

test:
	@CC='$(CC)' tools/setup.sh build test
	@$(MAKE) --no-print-directory suites

# --- the program and its library -------------------------------------------------------------------------------------
$(BUILD)/cedar: $(BUILD)/sim/main.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(OPT) -o $@ $^ $(LDLIBS)

$(LIB): $(LIBOBJ)
	@rm -f $@
	$(call say,AR,$@)
	$(Q)ar rcs $@ $^

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -c -o $@ $<

define arith_rule
$(BUILD)/engine/cpu/ops/%.$(1).o: engine/cpu/ops/%.c $(BUILD)/flags
	@mkdir -p $$(@D)
	$$(call say,CC,$$@)
	$$(Q)$$(CC) $$(CFLAGS_ALL) -DCEDAR_ARITH_$(1) -c -o $$@ $$<
endef
$(foreach a,$(ARITHS),$(eval $(call arith_rule,$(a))))

$(CUBUILD)/%.cu.o: %.cu $(CUBUILD)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) $(CUFLAGS) -c -o $@ $<

# Commit, compiler and flags are in this one object.
$(BUILD)/base/version.o: $(BUILD)/build_info.h
$(BUILD)/base/version.o: CFLAGS_ALL += -include $(BUILD)/build_info.h

$(BUILD)/build_info.h: FORCE
	@mkdir -p $(@D)
	@tools/build_info.sh $@ '$(CC)' '$(OPT) -ffp-contract=off $(CFLAGS)$(if $(USE_CUDA), nvcc $(CUDA_ARCH))'

# Loops that choose between values without a branch become vectors only where no exception traps (audit/softmax.c);
# no value depends on it. clang's default.
$(BUILD)/audit/softmax.o: CFLAGS_ALL += -fno-trapping-math

# Chart.js, embedded in the report: the file as it is packaged by Debian.
CHARTJS := /usr/share/javascript/chart.js/chart.min.js
$(BUILD)/reports/chartjs.o: $(CHARTJS)
	@mkdir -p $(@D)
	$(call say,EMBED,$@)
	$(Q)cd $(dir $(CHARTJS)) && ld -r -b binary -z noexecstack -o $(abspath $@) chart.min.js

$(EMBEDOBJ): $(BUILD)/reports/%.o: reports/%
	@mkdir -p $(@D)
	$(call say,EMBED,$@)
	$(Q)cd reports && ld -r -b binary -z noexecstack -o $(abspath $@) $*

# Changed flags, or another compiler, rebuild everything of the configuration.
FLAGS_STAMP = $(CC) $(CFLAGS_ALL) $(shell $(CC) -dumpfullversion -dumpversion 2>/dev/null)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS_STAMP)' | cmp -s - $@ || echo '$(FLAGS_STAMP)' > $@
$(CUBUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC) $(CUFLAGS)' | cmp -s - $@ || echo '$(NVCC) $(CUFLAGS)' > $@
FORCE:

# --- tests -----------------------------------------------------------------------------------------------------------
$(BUILD)/tests/%: tests/%.c $(LIB) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(shell pkg-config --cflags check) -MF $@.d -o $@ $< $(LIB) $(shell pkg-config --libs check) \
	    $(LDLIBS)

suites: $(TESTBIN) $(BUILD)/cedar
	@CC='$(CC)' tools/run_tests.sh $(BUILD) $(notdir $(TESTBIN)) train tidy includes headers

# The suites without the checks of the sources, for configurations that only differ in how they are compiled.
# clang: test_ranks takes minutes and has no code of its own that clang could compile otherwise, and gcc runs it three
# times; of what repeats one of a kind (tests/sanitized.h); golden vectors, operators and the rest run whole.
# tsan: suites that start no thread have nothing for it, nor have cases tagged so.
NO_THREADS := agentx base cache calibrate checkpoint claims config cost divergence import ledger lua memplan ops \
              ops_bf16 ops_f32 options plan quant reports score sim swarm tape traces
CHECKED := $(notdir $(TESTBIN))
ifneq ($(filter clang,$(CC)),)
CHECKED := $(filter-out test_ranks,$(CHECKED))
CHECK_HOW := CEDAR_BRIEF=1
endif
ifeq ($(CONFIG),tsan)
CHECKED := $(filter-out $(NO_THREADS:%=test_%),$(CHECKED))
CHECK_HOW := CEDAR_LEAVE_OUT=one_thread
endif
check: $(if $(filter tsan,$(CONFIG)),$(CHECKED:%=$(BUILD)/tests/%),$(TESTBIN)) $(BUILD)/cedar
	@CC='$(CC)' $(CHECK_HOW) tools/run_tests.sh $(BUILD) $(CHECKED)

SLOWPY := $(wildcard tests/slow_*.py)
test-slow: all $(TESTBIN)
	@CC='$(CC)' CEDAR_TESTS=slow tools/run_tests.sh $(BUILD) $(notdir $(TESTBIN)) $(SLOWPY:tests/%.py=%)

# Files of tests/gpu are one program.
GPUTEST   := $(BUILD)/tests/test_gpu
GPUTESTCU := $(patsubst %.cu,$(CUBUILD)/%.cu.o,$(wildcard tests/gpu/*.cu))
$(GPUTEST): $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/gpu/*.c)) $(GPUTESTCU) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(OPT) -o $@ $^ $(shell pkg-config --libs check) $(LDLIBS)

test-gpu:
	@CC='$(CC)' tools/setup.sh --say build test
ifneq ($(USE_CUDA),)
	@$(MAKE) --no-print-directory $(GPUTEST)
	@$(GPUTEST) $(GPU_SUITES)
else
	@echo 'test_gpu: skipped; $(CUDA_SAYS)'
endif

e2e: all
	@tools/setup.sh --say e2e
	@tests/e2e.sh ./cedar

test-report: all
	@tools/setup.sh --say report
	@tests/browser/report.py ./cedar build/report

test-clients: all
	@tests/clients.sh ./cedar

asan tsan:
	@CC='$(CC)' tools/setup.sh --say build test
	@$(MAKE) --no-print-directory check CONFIG=$@

clang:
	@CC=clang tools/setup.sh --say build test
	@$(MAKE) --no-print-directory check CC=clang

headers includes tidy:
	@CC='$(CC)' tools/$@.sh

# --- fuzzing: clang's libFuzzer --------------------------------------------------------------------------------------
S ?= 60
fuzz:
	@CC=clang tools/setup.sh --say build fuzz
	@$(MAKE) --no-print-directory fuzz-build CC=clang CONFIG=fuzz T='$(T)'
	@tools/fuzz.sh build/fuzz-clang $(S) $(or $(T),$(FUZZNAMES))

fuzz-build: $(patsubst %,$(BUILD)/tests/fuzz/fuzz_%,$(or $(T),$(FUZZNAMES)))

$(BUILD)/tests/fuzz/%: tests/fuzz/%.c $(LIB) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -fsanitize=fuzzer -MF $@.d -o $@ $< $(LIB) $(LDLIBS)

# --- installing: the program is linked once more, with the place of its data built in --------------------------------
$(BUILD)/installed/cedar: $(BUILD)/sim/main.o $(LIB) FORCE
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -DCEDAR_DATA_DIR='"$(DATADIR)"' -c -o $(@D)/cli.o sim/cli.c
	$(CC) $(OPT) -o $@ $(BUILD)/sim/main.o $(@D)/cli.o $(LIB) $(LDLIBS)

install: need
	@$(MAKE) --no-print-directory $(BUILD)/installed/cedar
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(DATADIR) $(DESTDIR)$(DOCDIR)
	install -m 755 $(BUILD)/installed/cedar $(DESTDIR)$(PREFIX)/bin/cedar
	tools/install_data.sh '$(DESTDIR)$(DATADIR)' '$(DESTDIR)$(DOCDIR)'

clean:
	rm -rf build cedar

-include $(shell find $(BUILD) $(CUBUILD) -name '*.d' 2>/dev/null)
