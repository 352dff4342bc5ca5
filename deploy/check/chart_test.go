package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// render renders the chart as helm template does, with values that a user gives over its own. Helm's library would add
// most of client-go to the build; the chart uses only include and toYaml besides the functions of sprig.
func render(t *testing.T, release, given string) (map[string]string, error) {
	t.Helper()
	chart := os.DirFS("../helm/lowkiq")
	values, over := map[string]any{}, map[string]any{}
	if err := yaml.Unmarshal([]byte(deployed(t, "helm", "lowkiq", "values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(given), &over); err != nil {
		t.Fatal(err)
	}
	overlay(values, over)
	if err := valuesSchema(t).Validate(values); err != nil {
		return nil, err
	}
	all := template.New("").Funcs(sprig.TxtFuncMap()).Option("missingkey=zero")
	all.Funcs(template.FuncMap{
		"toYaml": func(v any) (string, error) {
			text, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(text), "\n"), err
		},
		"include": func(name string, data any) (string, error) {
			var text strings.Builder
			err := all.ExecuteTemplate(&text, name, data)
			return text.String(), err
		},
	})
	const base = "lowkiq/templates"
	files, err := fs.Glob(chart, "templates/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("got the templates %q, %v", files, err)
	}
	for _, file := range files {
		text := deployed(t, "helm", "lowkiq", file)
		if _, err := all.New(path.Join(base, path.Base(file))).Parse(text); err != nil {
			t.Fatal(err)
		}
	}
	rendered := map[string]string{}
	for _, file := range files {
		var text bytes.Buffer
		name := path.Join(base, path.Base(file))
		data := map[string]any{
			"Values": values, "Release": map[string]any{"Name": release, "Namespace": "lowkiq"},
			"Template": map[string]any{"Name": name, "BasePath": base},
		}
		if err := all.ExecuteTemplate(&text, name, data); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(text.String()) != "" {
			rendered[path.Base(file)] = text.String()
		}
	}
	return rendered, nil
}

// overlay writes values over others, key by key.
func overlay(values, over map[string]any) {
	for key, value := range over {
		below, isMap := value.(map[string]any)
		if own, ok := values[key].(map[string]any); ok && isMap {
			overlay(own, below)
			continue
		}
		values[key] = value
	}
}

func valuesSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(deployed(t, "helm", "lowkiq", "values.schema.json")))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("values.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// charted returns the objects of the chart by "apiVersion kind".
func charted(t *testing.T, release, given string) map[string]any {
	t.Helper()
	files, err := render(t, release, given)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]any{}
	for file, text := range files {
		if file == "NOTES.txt" {
			continue
		}
		decoded, err := decodeAll(text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, text)
		}
		for name, object := range decoded {
			objects[name] = object
		}
	}
	return objects
}

const everything = "{podMonitor: {enabled: true}, keda: {enabled: true}}"

// The chart renders the manifests with its own values, and nothing else.
func TestChartEqualsManifests(t *testing.T) {
	want := manifests(t)
	if got := charted(t, "lowkiq", ""); len(got) != len(want)-2 {
		t.Errorf("got %d objects, want %d: the PodMonitor and the ScaledObject must be off", len(got), len(want)-2)
	} else if replicas := got["apps/v1 Deployment"].(*appsv1.Deployment).Spec.Replicas; replicas == nil || *replicas != 3 {
		t.Errorf("got %v replicas, want 3", replicas)
	}
	got := charted(t, "lowkiq", everything)
	d := got["apps/v1 Deployment"].(*appsv1.Deployment)
	if d.Spec.Replicas != nil {
		t.Errorf("got %d replicas beside KEDA, want none", *d.Spec.Replicas)
	}
	d.Spec.Replicas = want["apps/v1 Deployment"].(*appsv1.Deployment).Spec.Replicas
	if sum := d.Spec.Template.Annotations["checksum/config"]; len(sum) != 64 {
		t.Errorf("got the checksum %q of the configuration, want one of SHA-256", sum)
	}
	d.Spec.Template.Annotations = nil
	for name, object := range want {
		if fault := differ(got[name], object); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d objects, want %d", len(got), len(want))
	}
	d.Spec.Template.Spec.Containers[0].Args = nil
	if differ(d, want["apps/v1 Deployment"]) == "" {
		t.Error("another Deployment counts as equal")
	}
}

// differ shows two objects that differ.
func differ(got, want any) string {
	g, w := meaning(got), meaning(want)
	if reflect.DeepEqual(g, w) {
		return ""
	}
	a, _ := json.MarshalIndent(g, "", " ")
	b, _ := json.MarshalIndent(w, "", " ")
	return fmt.Sprintf("got\n%s\nwant\n%s", a, b)
}

// meaning is an object as JSON has it, with the configuration in a ConfigMap parsed.
func meaning(object any) (parsed map[string]any) {
	text, err := json.Marshal(object)
	if err != nil || json.Unmarshal(text, &parsed) != nil {
		return nil
	}
	if data, ok := parsed["data"].(map[string]any); ok {
		var config map[string]any
		if text, ok := data["node.yaml"].(string); ok && yaml.Unmarshal([]byte(text), &config) == nil {
			data["node.yaml"] = config
		}
	}
	return parsed
}

func TestChartValues(t *testing.T) {
	objects := charted(t, "jobs", `
image: {repository: registry.example.com/node, digest: "sha256:`+strings.Repeat("ab", 32)+`"}
imagePullSecrets: [{name: pull}]
replicas: 5
secret: keys
tlsSecret: certificates
redis: {secret: {name: redis, key: address}}
ttl: 12s
config: {cluster: shop, node: {concurrency: 16}}
env: [{name: TZ, value: UTC}]
resources: {limits: {memory: 1Gi}}
nodeSelector: {disk: fast}
tolerations: [{key: jobs, operator: Exists}]
podDisruptionBudget: {enabled: false}
networkPolicy: {namespaces: [ingress-nginx, monitoring]}
ingress: {enabled: true, className: nginx, host: jobs.example.com, tlsSecret: web, annotations: {nginx.ingress.kubernetes.io/backend-protocol: HTTPS}}
podMonitor: {enabled: true}
`)
	d := objects["apps/v1 Deployment"].(*appsv1.Deployment)
	if err := deploymentFaults(d, shutdownTimeout); err != nil {
		t.Error(err)
	}
	pod, c := d.Spec.Template.Spec, d.Spec.Template.Spec.Containers[0]
	variables := map[string]corev1.EnvVar{}
	for _, v := range c.Env {
		variables[v.Name] = v
	}
	var config struct {
		Cluster, Redis string
		Node           struct {
			TTL         string
			Concurrency int
			TokenFile   string `json:"token_file"`
		}
	}
	text := objects["v1 ConfigMap"].(*corev1.ConfigMap).Data["node.yaml"]
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	ingress := objects["networking.k8s.io/v1 Ingress"].(*networkingv1.Ingress)
	redis := variables["LOWKIQ_REDIS"].ValueFrom
	for _, check := range [][2]any{
		{c.Image, "registry.example.com/node@sha256:" + strings.Repeat("ab", 32)},
		{*d.Spec.Replicas, int32(5)},
		{pod.ImagePullSecrets[0].Name, "pull"},
		{pod.NodeSelector["disk"], "fast"},
		{pod.Tolerations[0].Key, "jobs"},
		{pod.Volumes[1].Secret.SecretName, "keys"},
		{pod.Volumes[2].Secret.SecretName, "certificates"},
		{c.Resources.Limits.Memory().String(), "1Gi"},
		{variables["GOMEMLIMIT"].Value, "921MiB"},
		{variables["TZ"].Value, "UTC"},
		{redis != nil && redis.SecretKeyRef.Name == "redis" && redis.SecretKeyRef.Key == "address", true},
		{config.Redis, ""},
		{config.Node.TTL, "12s"},
		{config.Node.Concurrency, 16},
		{config.Node.TokenFile, "/etc/lowkiq/secret/token"},
		{config.Cluster, "shop"},
		{objects["policy/v1 PodDisruptionBudget"], nil},
		{len(objects["networking.k8s.io/v1 NetworkPolicy"].(*networkingv1.NetworkPolicy).Spec.Ingress[1].From), 3},
		{*ingress.Spec.IngressClassName, "nginx"},
		{ingress.Spec.Rules[0].Host, "jobs.example.com"},
		{ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name, "jobs"},
		{ingress.Spec.TLS[0].SecretName, "web"},
		{ingress.Annotations["nginx.ingress.kubernetes.io/backend-protocol"], "HTTPS"},
		{objects["monitoring.coreos.com/v1 PodMonitor"].(*podMonitor).Spec.Endpoints[0].Relabelings[1].Replacement, "shop"},
	} {
		if check[0] != check[1] {
			t.Errorf("got %v, want %v", check[0], check[1])
		}
	}
	if d.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != "jobs" {
		t.Errorf("got the selector %v, want that of the release", d.Spec.Selector.MatchLabels)
	}
}

// A change of the configuration restarts the pods, and a change of anything else does not.
func TestChartRestartsPods(t *testing.T) {
	sum := func(given string) string {
		return charted(t, "lowkiq", given)["apps/v1 Deployment"].(*appsv1.Deployment).Spec.Template.Annotations["checksum/config"]
	}
	if sum("") != sum("replicas: 4") || sum("") == sum("ttl: 20s") {
		t.Error("the checksum must follow the configuration alone")
	}
}

func TestChartRefusesValues(t *testing.T) {
	for _, given := range []string{
		"replica: 4",
		"replicas: 0",
		"replicas: three",
		"image: {repository: ''}",
		"image: {digest: latest}",
		"redis: {url: 'http://redis:6379'}",
		"redis: {secret: {name: Not A Name}}",
		"ttl: 6",
		"ttl: six",
		"config: {redis: 'redis://redis:6379/0'}",
		"config: {node: {ttl: 6s}}",
		"config: {node: {bind: '0.0.0.0:7946'}}",
		"config: {queues: {orders: {shards: 0}}}",
		"resources: {limits: {memory: 256M}}",
		"resources: {limit: {memory: 256Mi}}",
		"terminationGracePeriodSeconds: 30",
		"podDisruptionBudget: {maxUnavailable: 0}",
		"networkPolicy: {namespaces: monitoring}",
		"ingress: {enabled: true}",
		"ingress: {enabled: 'yes'}",
		"podMonitor: {interval: 15s}",
		"keda: {maxReplicas: 0}",
		"secret: ''",
	} {
		if _, err := render(t, "lowkiq", given); err == nil {
			t.Errorf("%s: got no error", given)
		}
	}
}
