package check

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// directives reads a unit: "Section.Name" to its values.
func directives(unit string) map[string][]string {
	found, section := map[string][]string{}, ""
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		} else if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			found[section+"."+name] = append(found[section+"."+name], value)
		}
	}
	return found
}

// required are the directives that a drain, a return after 75 or a crash and the hardening rest on.
func required() map[string]string {
	return map[string]string{
		"Service.KillMode": "mixed", "Service.KillSignal": "SIGTERM", "Service.Restart": "always", "Service.RestartForceExitStatus": "75", "Service.RestartPreventExitStatus": "64",
		"Service.NoNewPrivileges": "yes", "Service.ProtectSystem": "strict", "Service.ProtectHome": "yes", "Service.CapabilityBoundingSet": "",
		"Service.PrivateDevices": "yes", "Service.RestrictNamespaces": "yes", "Service.OOMPolicy": "continue", "Service.DynamicUser": "yes", "Unit.StartLimitIntervalSec": "0",
	}
}

// credential is a file that the unit gives to the node.
var credential = regexp.MustCompile(`%d/(\S+)`)

// unitFaults says what a unit lacks.
func unitFaults(unit string) (found []string) {
	has := directives(unit)
	for name, want := range required() {
		if got := has[name]; len(got) != 1 || got[0] != want {
			found = append(found, fmt.Sprintf("%s: got %q, want %q", name, got, want))
		}
	}
	stop := has["Service.TimeoutStopSec"]
	if seconds, err := strconv.Atoi(strings.Join(stop, "")); err != nil || seconds < shutdownTimeout+10 {
		found = append(found, fmt.Sprintf("TimeoutStopSec: got %q, want at least %d", stop, shutdownTimeout+10))
	}
	if got := has["Service.ExecStart"]; len(got) != 1 || !strings.HasSuffix(got[0], " --config %d/node.yaml") {
		found = append(found, fmt.Sprintf("ExecStart: got %q; the user cannot read a file of mode 0600, so node.yaml must be a credential", got))
	}
	loaded := has["Service.LoadCredential"]
	for _, file := range credential.FindAllStringSubmatch(unit, -1) {
		if want := file[1] + ":/etc/lowkiq/" + file[1]; !slices.Contains(loaded, want) && !strings.Contains(unit, "#LoadCredential="+want) {
			found = append(found, fmt.Sprintf("LoadCredential: got %q, want %s as well", loaded, want))
		}
	}
	if strings.Contains(unit, "0644 node.yaml") {
		found = append(found, "node.yaml: every user may read the password of Redis in it")
	}
	if slices.Contains(strings.Fields(strings.Join(has["Service.SuccessExitStatus"], " ")), "75") {
		found = append(found, "SuccessExitStatus: 75 is a failure that should be seen")
	}
	return found
}

func TestUnit(t *testing.T) {
	for _, fault := range unitFaults(deployed(t, "systemd", "lowkiq-node.service")) {
		t.Error(fault)
	}
}

func TestUnitFaultsAreFound(t *testing.T) {
	unit := deployed(t, "systemd", "lowkiq-node.service")
	for _, c := range [][2]string{
		{"KillMode=mixed", "KillMode=control-group"},
		{"TimeoutStopSec=40", "TimeoutStopSec=20"},
		{"NoNewPrivileges=yes", "#NoNewPrivileges=yes"},
		{"Restart=always", "Restart=on-failure"},
		{"[Service]", "[Servise]"},
		{"%d/node.yaml", "/etc/lowkiq/node.yaml"},
		{"LoadCredential=node.yaml:", "#LoadCredential=:"},
		{"0600 node.yaml", "0644 node.yaml"},
		{"RestartSec=1", "RestartSec=1\nSuccessExitStatus=75"},
	} {
		if spoilt := strings.Replace(unit, c[0], c[1], 1); spoilt == unit || len(unitFaults(spoilt)) == 0 {
			t.Errorf("%s for %s counts as good", c[1], c[0])
		}
	}
}

// verify asks systemd itself, with a program that exists in the place of the node.
func verify(t *testing.T, unit string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lowkiq-node.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/lowkiq-node", "/bin/true")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", file).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s: %v", out, err)
	}
	return string(out)
}

func TestSystemdTakesTheUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("SKIPPED: no systemd-analyze here, so systemd itself was NOT ASKED about the unit")
	}
	unit := deployed(t, "systemd", "lowkiq-node.service")
	if said := verify(t, unit); said != "" {
		t.Errorf("systemd-analyze verify: %s", said)
	}
	for _, c := range [][2]string{{"Restart=always", "Restart=sometimes"}, {"ProtectHome=", "ProtectHomes="}} {
		if said := verify(t, strings.Replace(unit, c[0], c[1], 1)); said == "" {
			t.Errorf("%s: systemd has nothing against it", c[1])
		}
	}
}
