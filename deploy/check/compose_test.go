package check

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

type service struct {
	Image, Restart string
	Volumes, Ports []string
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

// closedFaults says which ports of the sample cluster are open: its nodes' ports, what is published
// beyond this host, and secrets in the hands of who needs others.
func closedFaults(compose, node, scrape string) (found []string) {
	var file struct{ Services map[string]service }
	var cfg nodeAccess
	var prometheus struct {
		ScrapeConfigs []struct {
			Scheme        string
			Authorization struct {
				File string `json:"credentials_file"`
			}
			TLS struct {
				CA       string `json:"ca_file"`
				Name     string `json:"server_name"`
				Insecure bool   `json:"insecure_skip_verify"`
			} `json:"tls_config"`
		} `json:"scrape_configs"`
	}
	if err := errors.Join(yaml.Unmarshal([]byte(compose), &file), yaml.Unmarshal([]byte(node), &cfg), yaml.Unmarshal([]byte(scrape), &prometheus)); err != nil {
		return []string{err.Error()}
	}
	if err := cfg.faults(); err != nil {
		found = append(found, err.Error())
	}
	for name, s := range file.Services {
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				found = append(found, name+" is published to other hosts: "+port)
			}
		}
		for _, volume := range s.Volumes {
			if part := map[string]string{"node": "}/node:", "prometheus": "}/scrape:"}[name]; strings.Contains(volume, "LOWKIQ_SECRETS") && (part == "" || !strings.Contains(volume, part)) {
				found = append(found, name+" gets secrets of others: "+volume)
			}
		}
	}
	for _, s := range prometheus.ScrapeConfigs {
		if s.Scheme != "https" || s.Authorization.File != "/etc/lowkiq/scrape/read-token" || s.TLS.CA == "" || s.TLS.Name != cfg.Node.TLS.PeerName || s.TLS.Insecure {
			found = append(found, fmt.Sprintf("Prometheus does not show the read token to a node it knows: %+v", s))
		}
	}
	return found
}

func TestComposeIsClosed(t *testing.T) {
	compose, node, scrape := deployed(t, "compose", "compose.yml"), deployed(t, "compose", "node.yaml"), deployed(t, "prometheus", "prometheus.yml")
	for _, fault := range closedFaults(compose, node, scrape) {
		t.Error(fault)
	}
	for _, c := range [][2]string{
		{"token_file: /", "xtoken_file: /"}, {"gossip_key_file", "xgossip_key_file"}, {"ca_file: /etc/lowkiq/secret", "xca_file: /"}, {"    peer_name", "    xpeer_name"},
		{"bind: ", "insecure: true\n  bind: "}, {`["127.0.0.1:7948-7987`, `["7948-7987`}, {`"127.0.0.1:9090`, `"9090`},
		{"}/scrape:", "}/node:"}, {"}/node:", "}:"}, {"scheme: https", "scheme: http"}, {"server_name: ", "insecure_skip_verify: true, server_name: "},
	} {
		spoilt := func(text string) string { return strings.Replace(text, c[0], c[1], 1) }
		if spoilt(compose+node+scrape) == compose+node+scrape || closedFaults(spoilt(compose), spoilt(node), spoilt(scrape)) == nil {
			t.Errorf("%s for %s counts as closed", c[1], c[0])
		}
	}
}

// The secrets are what node.yaml names, closed to other users, and stay as they are when the script
// runs again.
func TestSecrets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	run := func() map[string]string {
		t.Helper()
		if out, err := exec.Command(filepath.Join("..", "compose", "secrets.sh"), dir).CombinedOutput(); err != nil {
			t.Fatalf("secrets.sh: %v\n%s", err, out)
		}
		all := map[string]string{}
		for _, part := range []string{"node", "scrape"} {
			files, err := os.ReadDir(filepath.Join(dir, part))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				all[part+"/"+file.Name()] = read(t, dir, part, file.Name())
			}
		}
		return all
	}
	made := run()
	want := []string{"node/ca.crt", "node/gossip-key", "node/read-token", "node/tls.crt", "node/tls.key", "node/token", "scrape/ca.crt", "scrape/read-token"}
	if got := slices.Sorted(maps.Keys(made)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, name := range regexp.MustCompile(`/etc/lowkiq/secret/(\S+)`).FindAllStringSubmatch(deployed(t, "compose", "node.yaml"), -1) {
		if made["node/"+name[1]] == "" {
			t.Errorf("node.yaml names %s, which is not made", name[1])
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got the directory %v, %v, want it closed to others", info.Mode(), err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(made["node/gossip-key"]))
	if err != nil || len(key) != 32 || len(made["node/token"]) != 65 || made["node/token"] == made["node/read-token"] || made["scrape/read-token"] != made["node/read-token"] {
		t.Errorf("got a key of %d bytes, %v, tokens of %d, want 32, and two of 64", len(key), err, len(made["node/token"]))
	}
	pair, err := tls.X509KeyPair([]byte(made["node/tls.crt"]), []byte(made["node/tls.key"]))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(made["node/ca.crt"]))
	for _, name := range []string{"lowkiq-node.internal", "localhost", "127.0.0.1"} {
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("the certificate for %s: %v", name, err)
			}
		}
	}
	if again := run(); !maps.Equal(again, made) {
		t.Error("secrets that were there were replaced")
	}
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
