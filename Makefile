# The targets that people and CI use; "make" alone lists them.

GO      ?= go
# All targets compile like a release, so that the binaries that tests start use what lint has compiled. Only the race
# detector needs cgo. With -trimpath a checkout uses what another checkout has compiled.
export CGO_ENABLED := 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath
BUILD   := $(GO) build -o bin/
RACE    := CGO_ENABLED=1 $(GO) test -race
# The nested modules are separate, so that their dependencies are no dependencies of lowkiq.
NESTED  := $(patsubst %/go.mod,%,$(wildcard lab/bench/peers/go.mod e2e/browser/go.mod deploy/check/go.mod otel/go.mod sqloutbox/go.mod))
MODULES := . $(NESTED)

.DEFAULT_GOAL := help
.PHONY: help build check test race test-all test-others test-nested lint-format redis compose release chromium languages postgres browser cgo lint vuln fuzz demo bench bench-cluster mutations soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/lowkiq-node and bin/lowkiq-migrate
	$(BUILD) ./cmd/...

check: lint-format ## check an edit: gofmt, go vet, and the tests that need no cluster
	@$(GO) vet ./...
	@$(GO) test -vet=off -short ./...

# Clusters with leases of seconds are tested after the other packages, because their processes keep two cores busy. The
# packages that take longest come first. The timeout is per package.
TEST     := $(GO) test -vet=off -timeout 20m
CLUSTERS := ./e2e ./cmd/lowkiq-node ./node ./lab/cmd/lowkiq-demo ./cmd/lowkiq-migrate
OTHERS   := ./queue/protocol $$($(GO) list ./... | grep -v -e '/queue/protocol$$' -e '/node$$' -e '/cmd/lowkiq-node$$' -e '/cmd/lowkiq-migrate$$' -e '/cmd/lowkiq-demo$$' -e '/e2e$$' -e '/e2e/compose$$')
test: redis ## run the tests of the product on one real Redis; needs redis-server >= 6.2, installs it as root with apt-get
	@$(TEST) $(OTHERS)
	@$(TEST) -p 3 -parallel 3 $(CLUSTERS)

# The packages whose code starts goroutines or holds locks. test-all runs clusters under the race detector.
RACED := ./queue/... ./rebalance ./membership ./metrics ./node/handler ./node/internal/... ./node/lowkiqtest ./web/... ./cmd/lowkiq-node/internal/feed \
	./internal/network/certs ./internal/network/connlimit ./internal/process/sleep
race: redis cgo ## run the tests of packages with goroutines and locks under the race detector; needs a C compiler
	@$(RACE) -vet=off -timeout 30m $(RACED)

# The tests of nested modules leave one core idle, and so do the other packages with LOWKIQ_TEST_ALL. They run side by side.
test-all: export LOWKIQ_TEST_ALL = 1
test-all: redis chromium languages postgres cgo ## run the tests that need minutes, a browser, Ruby, Node.js, PostgreSQL, containers, or another kind of Redis; installs them as root
	@$(RACE) -vet=off -p 1 -parallel 3 -timeout 40m $(CLUSTERS)
	@$(MAKE) --no-print-directory -j 2 test-others test-nested
	@$(MAKE) --no-print-directory compose

test-others:
	@$(TEST) -parallel 4 $(OTHERS)

# The nested modules read files of this module. go test does not check these files when it reuses a result.
test-nested:
	@set -e; for module in $(NESTED); do \
		echo "test $$module"; \
		(cd $$module && $(TEST) -count=1 ./...); \
	done

redis:
	@scripts/redis.sh

languages:
	@scripts/languages.sh

postgres:
	@scripts/postgres.sh

# With -v the test says when it skips for lack of a Docker engine.
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

vuln: ## look for calls of code with known vulnerabilities; passes with a warning if the database is out of reach
	@GO=$(GO) scripts/vuln.sh

# Runs the fuzz targets one after another. It minimizes only failing inputs. The YAML parser has so many paths that
# minimizing every new input would take all the time.
FUZZTIME ?= 30s
fuzz: redis ## look for inputs that break parsers, cursors and the API: FUZZTIME=30s for each target
	@set -e; for package in $$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); do \
		for target in $$(grep -hos '^func Fuzz[A-Za-z]*' $$package/*_test.go | cut -c6-); do \
			$(GO) test $$package -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x; \
		done; \
	done

demo: ## run the main job end to end on an embedded Redis, with three nodes; kill a node, add a node, drain a node
	@$(BUILD) ./lab/cmd/lowkiq-demo
	@bin/lowkiq-demo

WORST ?= 60s
bench: redis ## measure speed on a private redis-server, and look for the most expensive script
	@$(BUILD) ./lab/cmd/lowkiq-bench
	@bin/lowkiq-bench
	LOWKIQ_WORST=$(WORST) $(GO) test ./queue/protocol ./node ./migrate/rubyqueue -run 'TestWorst|TestCrowdsDrain' -v -count=1 -timeout 30m

bench-cluster: redis ## measure how fast a cluster follows kills, drains, joins and restarts
	$(GO) test ./e2e -run '^$$' -bench Cluster -benchtime 1x -timeout 20m
	$(GO) test ./node -run '^$$' -bench Crowd -benchtime 1x

MUTATIONS ?= .
mutations: redis ## break each promise in a copy and see which test notices; MUTATIONS=fence selects mutations by name
	$(GO) run ./scripts/mutations -run '$(MUTATIONS)'
	LOWKIQ_MUTATIONS=all $(GO) test ./node/internal/runner ./node/internal/claims -run Mutations -v -count=1 -timeout 60m

SOAK ?= 30m
SOAK_CLUSTERS ?= 2
SOAK_TTL ?= 3s
soak: redis ## cause random faults in SOAK_CLUSTERS=2 clusters under load for SOAK=30m, with leases of SOAK_TTL=3s, and judge them
	LOWKIQ_RECURRING=2m $(RACE) ./e2e -run 'TestRecurring$$' -v -count=1
	LOWKIQ_KILLS=200 $(RACE) ./e2e -run 'TestJournalAgrees$$|TestLimitUnderKills$$' -v -count=1 -timeout 1h
	LOWKIQ_SOAK=$(SOAK) LOWKIQ_SOAK_CLUSTERS=$(SOAK_CLUSTERS) LOWKIQ_SOAK_TTL=$(SOAK_TTL) $(RACE) ./e2e -run TestSoak -v -count=1 -parallel $(SOAK_CLUSTERS) -timeout 24h

release: ## build and pack the binaries of a release into dist/, with checksums
	$(GO) run ./scripts/release

clean: ## remove the output of the other targets
	rm -rf bin dist e2e/artifacts e2e/browser/artifacts
