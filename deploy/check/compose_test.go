package check

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

type service struct {
	Image, Restart string
	Grace          string `json:"stop_grace_period"`
	Healthcheck    struct{ Test []string }
}

// composeFaults says what a compose file lacks, and with which Prometheus it disagrees.
func composeFaults(text, version string) (found []string) {
	var file struct{ Services map[string]service }
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		return []string{err.Error()}
	}
	for name, s := range file.Services {
		if s.Restart == "" || s.Restart == "no" {
			found = append(found, name+" does not come back")
		}
	}
	grace, err := time.ParseDuration(file.Services["node"].Grace)
	if err != nil || grace < (shutdownTimeout+10)*time.Second {
		found = append(found, fmt.Sprintf("stop_grace_period of node: got %s, want at least %d s", grace, shutdownTimeout+10))
	}
	if !slices.Contains(file.Services["redis"].Healthcheck.Test, "-e") {
		found = append(found, "redis-cli without -e takes LOADING for healthy")
	}
	if got := file.Services["prometheus"].Image; !strings.HasSuffix(got, ":"+version) {
		found = append(found, fmt.Sprintf("got the Prometheus %s, want %s, whose code takes the files here", got, version))
	}
	return found
}

// prometheusVersion is the release of the module that the tests use: v0.315.0 is v3.15.0.
func prometheusVersion(t *testing.T) string {
	t.Helper()
	v := regexp.MustCompile(`prometheus/prometheus v0\.(\d)(\d\d)\.(\d+)`).FindStringSubmatch(read(t, "go.mod"))
	if v == nil {
		t.Fatal("go.mod names no Prometheus v0.")
	}
	return fmt.Sprintf("v%s.%s.%s", v[1], strings.TrimPrefix(v[2], "0"), v[3])
}

func TestCompose(t *testing.T) {
	text, version := deployed(t, "compose", "compose.yml"), prometheusVersion(t)
	for _, fault := range composeFaults(text, version) {
		t.Error(fault)
	}
	for _, c := range [][2]string{
		{"restart: unless-stopped", `restart: "no"`},
		{"stop_grace_period: 40s", "stop_grace_period: 20s"},
		{"redis-cli, -e, ping", "redis-cli, ping"},
		{version, "v3.5.0"},
	} {
		if spoilt := strings.Replace(text, c[0], c[1], 1); spoilt == text || len(composeFaults(spoilt, version)) == 0 {
			t.Errorf("%s for %s counts as good", c[1], c[0])
		}
	}
}
