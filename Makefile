# Flash-MoE. CMake does the work (see CMakePresets.json); these targets are shortcuts.
# `make help` lists them. Works with GNU make 3.81 and later.

PREFIX  ?= /usr/local
DESTDIR ?=
SECONDS ?= 600
JOBS    ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
MODEL   ?= models/nano.fmoe
PROMPT  ?= Write a story about a robot who loves music.

export JOBS

all: build/build.ninja
	@cmake --build --preset release --parallel $(JOBS)

# The first configuration leaves the tests out, so that `make` needs no test packages;
# tools/check.sh switches them on.
build/build.ninja: CMakePresets.json | deps
	@if [ -f build/CMakeCache.txt ]; then cmake --preset release; \
	else cmake --preset release -DFLASHMOE_TESTS=OFF; fi

deps:
	@sh tools/deps.sh build

test-deps:
	@sh tools/deps.sh test

test-all-deps:
	@sh tools/deps.sh test-all

run: all
	build/flashmoe run $(MODEL) -p "$(PROMPT)"

# The tests of the second tier have a label (tests/CMakeLists.txt).
test: test-deps
	@sh tools/check.sh release -LE second-tier $(ARGS)

test-all: test-all-deps
	@sh tools/check.sh release $(ARGS)

debug asan tsan: test-all-deps
	@sh tools/check.sh $@ $(ARGS)

# Real coding agents (1.5 GB from npm), and many clients for SECONDS: each takes minutes.
agents: test-all-deps all
	python3 tests/agents/replay_test.py build/flashmoe
	python3 tests/agents/agents_test.py build/flashmoe --cache build-agents

load: test-deps all
	python3 tests/load/load_test.py build/flashmoe models/nano.fmoe --seconds $(SECONDS)

fuzz: test-deps
	tests/fuzz/run.sh $(SECONDS)

# Plants the faults of tests/mutate/faults.py: each must fail its tests. Before a release.
mutate: test-all-deps
	@python3 tests/mutate/mutate.py

lint: test-deps
	@python3 tools/lint.py

install: all
	DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"
	@cp build/install_manifest.txt build/installed.txt

# Removes the files that the last `make install` wrote.
uninstall:
	@[ -f build/installed.txt ] || { echo "nothing was installed from this tree"; exit 1; }
	@while read -r file || [ -n "$$file" ]; do rm -fv "$(DESTDIR)$$file"; done < build/installed.txt

# The files of a release, in build-release (docs/INSTALL.md).
packages:
	@sh tools/deps.sh package
	@packaging/release.sh

clean:
	rm -rf build-release build build-debug build-asan build-tsan build-fuzz build-mutate

help:
	@echo "make             build/flashmoe and the libraries, optimised"
	@echo "make run         build, then let the nano model tell a story: MODEL=PATH PROMPT='...'"
	@echo "make test        build, then run the first tier of tests: ARGS='-R NAME' selects some"
	@echo "make test-all    both tiers: also browser, client libraries, QEMU, load, full sweeps;"
	@echo "                 ARGS='-L second-tier' leaves out what make test runs"
	@echo "make debug       all tests without optimisation; ARGS='-LE second-tier' is the first tier"
	@echo "make asan        all tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan        all tests under ThreadSanitizer"
	@echo "make fuzz        fuzz every parser (needs clang), SECONDS=600 each"
	@echo "make agents      conversations of coding agents from npm with the server"
	@echo "make load        200 clients for SECONDS=600, some of them rude"
	@echo "make mutate      plant faults in the code one by one; the tests must notice each"
	@echo "make lint        the house rules only"
	@echo "make install     PREFIX=/usr/local DESTDIR="
	@echo "make uninstall   remove what make install wrote"
	@echo "make packages    the files of a release: .deb, .rpm, static program, sources, checksums"
	@echo "make clean       remove the build folders"
	@echo "make, make run and the tests first install the packages that are missing (tools/deps.sh)."

.PHONY: all deps test-deps test-all-deps run test test-all debug asan tsan agents load fuzz mutate lint install uninstall packages clean help
