# The targets that people and CI use; "make" alone lists them.

GO      ?= go
# All targets compile in one way, that of a release, so that what lint has compiled is there for the binaries that
# tests start; but for the race detector, which needs cgo. -trimpath: one checkout uses what another has compiled.
export CGO_ENABLED := 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath
BUILD   := $(GO) build -o bin/
RACE    := CGO_ENABLED=1 $(GO) test -race
# The nested modules are apart so that what they need is no dependency of lowkiq.
NESTED  := $(patsubst %/go.mod,%,$(wildcard bench/peers/go.mod e2e/browser/go.mod deploy/check/go.mod))
MODULES := . $(NESTED)

.DEFAULT_GOAL := help
.PHONY: help build check test race test-all lint-format redis compose release chromium ruby browser cgo lint vuln fuzz demo bench bench-cluster mutations soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/lowkiq-node
	$(BUILD) ./cmd/lowkiq-node

check: lint-format ## check an edit: gofmt, go vet, and the tests that need no cluster
	@$(GO) vet ./...
	@$(GO) test -vet=off -short ./...

# Clusters whose leases last seconds are tested after the others: two cores have enough of them. The timeout is per package.
TEST     := $(GO) test -vet=off -timeout 20m
CLUSTERS := ./node ./cmd/lowkiq-node ./cmd/lowkiq-demo ./e2e
OTHERS   := $$($(GO) list ./... | grep -v -e '/node$$' -e '/cmd/lowkiq-node$$' -e '/cmd/lowkiq-demo$$' -e '/e2e$$' -e '/e2e/compose$$')
test: redis ## run the tests of the product on one real Redis; needs redis-server >= 6.2, installs it as root with apt-get
	@$(TEST) $(OTHERS)
	@$(TEST) -p 1 -parallel 6 $(CLUSTERS)

# The packages whose code starts goroutines or holds locks.
RACED := ./queue/... ./rebalance ./membership ./metrics ./node/... ./web/... ./cmd/lowkiq-node/internal/feed \
	./internal/certs ./internal/connlimit ./internal/pause
race: redis cgo ## run the tests of packages with goroutines and locks under the race detector; needs a C compiler
	@$(RACE) -vet=off -timeout 30m $(RACED)

# The nested modules read files of this module, which go test does not look at when it reuses a result.
test-all: export LOWKIQ_TEST_ALL = 1
test-all: redis chromium ruby cgo ## run the tests that need minutes, a browser, Ruby, containers, or another kind of Redis; installs them as root
	@$(RACE) -vet=off -p 1 -timeout 40m $(CLUSTERS)
	@$(TEST) $(OTHERS)
	@set -e; for module in $(NESTED); do \
		echo "test $$module"; \
		(cd $$module && $(TEST) -count=1 ./...); \
	done
	@$(MAKE) --no-print-directory compose

redis:
	@scripts/redis.sh

ruby:
	@scripts/ruby.sh

# -v: it says when it skips, as there is no Docker engine.
compose: export LOWKIQ_TEST_ALL = 1
compose: redis ## test deploy/compose in containers: scaled, killed, cut off; needs a Docker engine with compose
	$(GO) test -v -count=1 -timeout 15m ./e2e/compose

chromium:
	@scripts/chromium.sh

browser: redis chromium ## test the dashboard in a headless Chromium; screenshots in e2e/browser/artifacts
	cd e2e/browser && $(GO) test -count=1 -timeout 10m .

cgo:
	@command -v "$$($(GO) env CC)" >/dev/null || { \
		echo "make race: the race detector needs a C compiler, and $$($(GO) env CC) is not on PATH: apt-get install gcc libc6-dev" >&2; exit 1; }

lint-format:
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); \
		[ -z "$$unformatted" ] || { echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; }

lint: lint-format ## check gofmt, go vet and staticcheck
	@set -e; for module in $(MODULES); do \
		echo "lint $$module"; \
		(cd $$module && $(GO) vet ./...); \
		(cd $$module && $(GO) tool -modfile=$(CURDIR)/go.mod staticcheck ./...); \
	done

vuln: ## look for known vulnerabilities in what the code calls; passes with a warning where the database is out of reach
	@GO=$(GO) scripts/vuln.sh

# Each target of each package, one after the other. Inputs that go a new way are not made smaller, but those that fail:
# the YAML parser has so many ways that all the time would go there.
FUZZTIME ?= 30s
fuzz: redis ## look for inputs that break parsers, cursors and the API: FUZZTIME=30s for each target
	@set -e; for package in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); do \
		for target in $$(grep -hos '^func Fuzz[A-Za-z]*' $$package/*_test.go | cut -c6-); do \
			$(GO) test $$package -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x; \
		done; \
	done

demo: ## run the main job end to end on an embedded Redis, three nodes, one killed, one added, one drained
	@$(BUILD) ./cmd/lowkiq-demo
	@bin/lowkiq-demo

WORST ?= 60s
bench: redis ## measure speed on a private redis-server, and look for the script that costs Redis most
	@$(BUILD) ./cmd/lowkiq-bench
	@bin/lowkiq-bench
	LOWKIQ_WORST=$(WORST) $(GO) test ./queue ./node ./internal/rubyqueue -run 'TestWorst|TestCrowdsDrain' -v -count=1 -timeout 30m

bench-cluster: redis ## measure how fast a cluster follows kills, drains, joins and restarts
	$(GO) test ./e2e -run '^$$' -bench Cluster -benchtime 1x -timeout 20m
	$(GO) test ./node -run '^$$' -bench Crowd -benchtime 1x

MUTATIONS ?= .
mutations: redis ## break each promise in a copy and see which test notices; MUTATIONS=fence for those with that name
	$(GO) run ./scripts/mutations -run '$(MUTATIONS)'
	LOWKIQ_MUTATIONS=all $(GO) test ./node/internal/runner ./node/internal/claims -run Mutations -v -count=1 -timeout 60m

SOAK ?= 30m
SOAK_CLUSTERS ?= 2
SOAK_TTL ?= 3s
soak: redis ## let random faults meet SOAK_CLUSTERS=2 clusters under load for SOAK=30m, leases of SOAK_TTL=3s, and judge their histories
	LOWKIQ_RECURRING=2m $(RACE) ./e2e -run 'TestRecurring$$' -v -count=1
	LOWKIQ_KILLS=200 $(RACE) ./e2e -run 'TestJournalAgrees$$|TestLimitUnderKills$$' -v -count=1 -timeout 1h
	LOWKIQ_SOAK=$(SOAK) LOWKIQ_SOAK_CLUSTERS=$(SOAK_CLUSTERS) LOWKIQ_SOAK_TTL=$(SOAK_TTL) $(RACE) ./e2e -run TestSoak -v -count=1 -parallel $(SOAK_CLUSTERS) -timeout 24h

release: ## build and pack the binaries of a release into dist/, with checksums
	$(GO) run ./scripts/release

clean: ## remove what the other targets made
	rm -rf bin dist e2e/artifacts e2e/browser/artifacts
