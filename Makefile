# The targets that people and CI use; "make" alone lists them.

GO      ?= go
BINARY  := bin/lowkiq-node
# The nested module is apart so that its rivals are no dependencies of lowkiq.
MODULES := . $(patsubst %/go.mod,%,$(wildcard bench/peers/go.mod))

.DEFAULT_GOAL := help
.PHONY: help build test redis cgo lint demo bench bench-cluster clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/lowkiq-node
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BINARY) ./cmd/lowkiq-node

# The timeout is per package, for two cores that all packages share with their Redis servers.
test: redis cgo ## run all tests with the race detector; needs redis-server >= 6.2, installs it as root with apt-get
	@set -e; for module in $(MODULES); do \
		echo "test $$module"; \
		(cd $$module && CGO_ENABLED=1 $(GO) test -race -timeout 20m $$($(GO) list ./... | grep -v '/e2e$$')); \
	done
	@# Clusters of real processes keep leases of seconds: not beside other packages.
	@CGO_ENABLED=1 $(GO) test -race -timeout 20m ./e2e

redis:
	@scripts/redis.sh

cgo:
	@command -v "$$($(GO) env CC)" >/dev/null || { \
		echo "make test: the race detector needs a C compiler, and $$($(GO) env CC) is not on PATH: apt-get install gcc libc6-dev" >&2; exit 1; }

lint: ## check gofmt, go vet and staticcheck
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
		[ -z "$$unformatted" ] || { echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; }
	@set -e; for module in $(MODULES); do \
		echo "lint $$module"; \
		(cd $$module && $(GO) vet ./...); \
		(cd $$module && $(GO) tool -modfile=$(CURDIR)/go.mod staticcheck ./...); \
	done

demo: build ## run the main job end to end on an embedded Redis, three nodes, one killed, one added, one drained
	@$(BINARY) demo

bench: build ## measure speed on a private redis-server
	@$(BINARY) bench

bench-cluster: redis ## measure how fast a cluster follows kills, drains, joins and restarts
	$(GO) test ./e2e -run '^$$' -bench Cluster -benchtime 1x -timeout 20m

clean: ## remove what the other targets made
	rm -rf bin e2e/artifacts
