# Trunkline. `make help` lists the targets; README.md says where to begin.
SHELL := /bin/bash
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
# Go's caches and the lab's are in it; a service or a container may start without.
ifndef HOME
export HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif

# Debian packages the lab and the tests use, as "program:package". Debian's awscli is
# called by its path: another aws may come first on the PATH.
PROGRAMS := ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack mount:mount nsenter:util-linux \
	pgrep:procps git:git dpkg-deb:dpkg /usr/bin/aws:awscli
# Of one package's tests, of which none takes more than a few minutes on an idle
# machine; CI's is not idle, and Go's own 10 minutes are not many for it.
PATIENCE := 30m

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the Debian packages that are missing (root)
	@GO="$(GO)" ./test/setup $(PROGRAMS)

.PHONY: build
build: ## Build trunkline, trunkline-cni and trunkline-lab into bin/
	$(GO) build $(LDFLAGS) -o bin/ ./cmd/...

.PHONY: check
check: lint test-unit test-touched ## What every commit passes (about 3 minutes)

.PHONY: lint
lint: ## gofumpt, go vet and the linters of .golangci.yml
	$(TOOL) golangci-lint run --timeout 10m $(PACKAGES)
	$(TOOL) golangci-lint fmt --diff lab/kube/... # a module of its own, too large to be type-checked here

.PHONY: fmt
fmt: ## Format every Go file
	$(TOOL) golangci-lint fmt $(PACKAGES) lab/kube/...

.PHONY: generate
generate: ## Regenerate deepcopy functions, CRDs and docs/config.md
	$(GO) generate $(PACKAGES)

.PHONY: test
test: setup test-unit test-netns test-lab ## Everything a fresh machine can run; what CI runs (root)

.PHONY: test-unit
test-unit: ## Tests that need no root
	$(GO) test -timeout $(PATIENCE) $(PACKAGES)

.PHONY: test-netns
test-netns: setup ## Tests in network namespaces of their own (root)
	pkgs="$$(./test/tagged netns)" && $(GO) test -tags netns -p 2 -timeout $(PATIENCE) $$pkgs

.PHONY: test-fault
test-fault: setup ## The agent killed at a sample of its steps; part of test-netns (root)
	$(GO) test -tags netns -count 1 -v ./test/fault

.PHONY: test-touched
test-touched: ## The netns tests of packages changed since the last commit (root)
	@pkgs="$$(./test/tagged netns --touched)"; \
	if [ -z "$$pkgs" ]; then echo "no netns test touched"; \
	elif [ "$$(id -u)" != 0 ]; then echo "not root: netns tests left out: $$pkgs"; \
	else $(GO) test -tags netns -p 2 -timeout $(PATIENCE) $$pkgs; fi

.PHONY: test-lab
test-lab: setup build ## Tests on the lab: a real Kubernetes on an embedded VPC (root)
	pkgs="$$(./test/tagged lab)" && $(GO) test -tags lab -p 1 -count 1 -timeout 60m -v $$pkgs

.PHONY: suites
suites: setup build ## The long suites in full, with reports in test/reports (root)
	TRUNKLINE_SUITES=full $(GO) test -tags "netns lab" -p 1 -count 1 -timeout 4h -v $$({ ./test/tagged lab; ./test/tagged netns; } | sort -u)
	$(GO) test -count 1 -v -run Report ./test/fault

.PHONY: fuzz
fuzz: ## Every fuzz target for 10 s each
	./test/fuzz 10s

.PHONY: bench
bench: setup build ## Benchmarks against baselines of the same run, into bench/latest.jsonl (root)
	$(GO) run ./bench/cmd -out bench/latest.jsonl

.PHONY: demo
demo: setup build ## Three nodes, real pods on VPC addresses, the connectivity test (root)
	./bin/trunkline-lab demo

.PHONY: clean
clean: ## Remove what was built here; the lab's cache stays
	rm -rf bin
