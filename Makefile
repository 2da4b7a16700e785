# Trunkline. `make help` lists the targets; README.md and CONTRIBUTING.md say where to begin.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GO      ?= go
LDFLAGS := -ldflags "-s -w -X main.version=$(VERSION)"
# One set of flags for builds and tests: a package compiled once serves both.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false
TOOL    := $(GO) tool -modfile=tools/go.mod
PACKAGES := ./...
# go test, and what prints its output and lists the skipped tests: "$(TEST) … | $(PRINT)".
TEST    := $(GO) test -json
PRINT   := $(GO) run ./test/skips -to "$$TRUNKLINE_SKIPS"
# Go's caches and the lab's are below it; services and containers may start without it.
ifndef HOME
export HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif

# Debian packages that the lab and the tests use, as "program:package[,package]".
# Debian's awscli is named by its path: another aws may come first on the PATH.
PROGRAMS := ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack mount:mount nsenter:util-linux \
	pgrep:procps git:git dpkg-deb:dpkg /usr/bin/aws:awscli openssl:openssl update-ca-certificates:ca-certificates
# What compiles the programs of bpf/; what they compile to is committed.
BPF_COMPILER := clang-19:clang-19 llvm-strip-19:llvm-19
# What the race detector needs beyond them.
C_COMPILER := gcc:gcc,libc6-dev
# What the vm tier needs beyond them; its tests are skipped where this cannot be installed.
EMULATOR := qemu-system-x86_64:qemu-system-x86
# Time limit for the tests of one package. They take a few minutes at most on an idle
# machine; a busy one, such as CI's, can need more than go test's own 10 minutes.
TEST_TIMEOUT := 30m
# How many tests of a package run beside each other, of those that call t.Parallel: tests of
# whole agents wait most of the time.
PARALLEL := 8
# Draws the packages of race-sample: another quarter for each commit.
RACE_SEED ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || date +%F)
# Draws two of the long steps and two of the tests in labs of their own, in test-lab; empty: all run.
LAB_SEED ?= $(RACE_SEED)
# Draws the mutants of mutants-sample, and how long it runs them.
MUTANTS_SEED ?= $(RACE_SEED)
MUTANTS_TIME ?= 90s

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the Debian packages that are missing (root)
	@GO="$(GO)" ./test/setup $(PROGRAMS)

.PHONY: build
build: ## Build trunkline, trunkline-cni and trunkline-lab into bin/
	$(GO) build $(LDFLAGS) -o bin/ ./cmd/...

.PHONY: image
image: ## Build the image for linux/amd64 and linux/arm64 into bin/image.tar; IMAGE is its reference
	$(GO) run ./lab/image/release/cmd -go "$(GO)" -version "$(VERSION)" -ref "$(IMAGE)" -out bin

.PHONY: check
check: lint test-unit test-touched ## What every commit must pass (about 3 minutes)

.PHONY: lint
lint: ## gofumpt, go vet and the linters of .golangci.yml
	$(TOOL) golangci-lint run --timeout 10m $(PACKAGES)
	$(TOOL) golangci-lint fmt --diff lab/kube/... test/conformance/... test/crds/... test/cyclonus/... # modules of their own, too large to type-check here

.PHONY: fmt
fmt: ## Format every Go file
	$(TOOL) golangci-lint fmt $(PACKAGES) lab/kube/... test/conformance/... test/crds/... test/cyclonus/...

.PHONY: generate
generate: setup-generate ## Regenerate deepcopy functions, CRDs, docs/config.md and the compiled bpf/
	$(GO) generate $(PACKAGES)

.PHONY: test
test: ## Everything a fresh machine can run; exactly what CI runs (root)
	@MAKE="$(MAKE)" ./test/tiers setup test-unit test-crds test-conformance test-netns test-cyclonus test-vm race-sample mutants-sample test-lab

.PHONY: test-unit
test-unit: ## Tests that need no root
	$(TEST) -timeout $(TEST_TIMEOUT) $(PACKAGES) | $(PRINT)

.PHONY: test-crds
test-crds: ## Definitions in deploy/, and admission of selected pods, by the API server's own code, a module of its own; its first build takes two minutes
	$(GO) test -C test/crds -json -count 1 -timeout $(TEST_TIMEOUT) $(PACKAGES) | $(PRINT)

.PHONY: test-conformance
test-conformance: ## Network policies against cyclonus's model and the kernel, a module of its own; its first build takes a minute (root)
	$(GO) test -C test/conformance -json -tags netns -count 1 -timeout $(TEST_TIMEOUT) $(PACKAGES) | $(PRINT) -v

.PHONY: test-cyclonus
test-cyclonus: setup ## Packets of cyclonus's cases between namespaces, by address and through kube-proxy; builds the lab's Kubernetes (root)
	$(GO) test -C test/cyclonus -json -tags netns -count 1 -timeout $(TEST_TIMEOUT) $(PACKAGES) | $(PRINT) -v

.PHONY: test-netns
test-netns: setup ## Tests in network namespaces that they create (root)
	pkgs="$$(./test/tagged netns)" && $(TEST) -tags netns -p 2 -parallel $(PARALLEL) -timeout $(TEST_TIMEOUT) $$pkgs | $(PRINT)

.PHONY: test-vm
test-vm: setup ## Tests on Debian's kernel in QEMU, which it installs and downloads (root, the first time)
	@GO="$(GO)" ./test/setup $(EMULATOR) || echo "test-vm: without QEMU its tests are skipped"
	pkgs="$$(./test/tagged vm)" && $(TEST) -tags vm -p 1 -count 1 -timeout $(TEST_TIMEOUT) $$pkgs | $(PRINT)

.PHONY: test-fault
test-fault: setup ## The agent is killed at a sample of its steps; part of test-netns (root)
	$(TEST) -tags netns -count 1 ./test/fault | $(PRINT) -v

.PHONY: test-touched
test-touched: ## The netns tests of packages changed since the last commit (root)
	@pkgs="$$(./test/tagged netns --touched)"; \
	if [ -z "$$pkgs" ]; then echo "test-touched: no package with netns tests has changed"; \
	elif [ "$$(id -u)" != 0 ]; then echo "test-touched: not root, netns tests not run: $$pkgs"; \
	else $(TEST) -tags netns -p 2 -parallel $(PARALLEL) -timeout $(TEST_TIMEOUT) $$pkgs | $(PRINT); fi

.PHONY: race
race: setup-race ## Unit and netns tests under the race detector (root)
	GO="$(GO)" TEST_TIMEOUT=$(TEST_TIMEOUT) PARALLEL=$(PARALLEL) ./test/race all

.PHONY: race-sample
race-sample: setup-race ## The same for a quarter of the packages, drawn by RACE_SEED (root)
	GO="$(GO)" TEST_TIMEOUT=$(TEST_TIMEOUT) PARALLEL=$(PARALLEL) ./test/race sample $(RACE_SEED)

.PHONY: setup-generate
setup-generate:
	@GO="$(GO)" ./test/setup $(BPF_COMPILER)

.PHONY: setup-race
setup-race:
	@GO="$(GO)" ./test/setup $(PROGRAMS) $(C_COMPILER)

.PHONY: test-lab
test-lab: setup build ## Tests on the lab: a real Kubernetes on an embedded VPC (root)
	@echo "test-lab: the labs drawn by $(LAB_SEED); the same again: make test-lab LAB_SEED=$(LAB_SEED), all: LAB_SEED="
	pkgs="$$(./test/tagged lab)" && TRUNKLINE_LAB_SEED="$(LAB_SEED)" $(TEST) -tags lab -p 1 -count 1 -timeout 60m $$pkgs | $(PRINT) -v

.PHONY: mutants
mutants: ## Changes of the source that no test notices, into test/reports/mutants.txt
	$(GO) run ./test/mutants/cmd

.PHONY: mutants-sample
mutants-sample: ## The same for as many as MUTANTS_TIME allows, drawn by MUTANTS_SEED
	$(GO) run ./test/mutants/cmd -sample $(MUTANTS_TIME) -seed $(MUTANTS_SEED)

.PHONY: suites
suites: setup build ## The long suites in full, with reports in test/reports (root)
	TRUNKLINE_SUITES=full $(TEST) -tags "netns lab" -p 1 -parallel $(PARALLEL) -count 1 -timeout 4h $$({ ./test/tagged lab; ./test/tagged netns; } | sort -u) | $(PRINT) -v
	TRUNKLINE_SUITES=full $(TEST) -count 1 -timeout 4h -run Churn ./internal/control/trunk | $(PRINT) -v
	$(TEST) -count 1 -run Report ./test/fault | $(PRINT) -v
	TRUNKLINE_SUITES=full $(MAKE) test-conformance test-cyclonus
	$(GO) run ./test/mutants/cmd

.PHONY: fuzz
fuzz: ## Every fuzz target for 10 s each
	./test/fuzz 10s

.PHONY: bench
bench: setup build ## Benchmarks and their baselines in one run, into bench/latest.jsonl (root)
	$(GO) run ./bench/cmd -out bench/latest.jsonl

.PHONY: demo
demo: setup build ## Three nodes, real pods on VPC addresses, the connectivity test (root)
	./bin/trunkline-lab demo

.PHONY: clean
clean: ## Remove bin/; the lab's cache stays
	rm -rf bin
