package check

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// scaledObject is KEDA's, as far as the manifest needs it: any other key is refused.
type scaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef  struct{ Name, Kind, APIVersion string } `json:"scaleTargetRef"`
		PollingInterval int32                                   `json:"pollingInterval"`
		CooldownPeriod  int32                                   `json:"cooldownPeriod"`
		MinReplicaCount int32                                   `json:"minReplicaCount"`
		MaxReplicaCount int32                                   `json:"maxReplicaCount"`
		Advanced        struct {
			HPA struct {
				Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string                         `json:"type"`
			MetricType autoscalingv2.MetricTargetType `json:"metricType"`
			Metadata   map[string]string              `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// podMonitor is the Prometheus operator's, likewise.
type podMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port, Path, Interval, Scheme string
			TLSConfig                    struct {
				CA struct {
					Secret corev1.SecretKeySelector `json:"secret"`
				} `json:"ca"`
				ServerName string `json:"serverName"`
			} `json:"tlsConfig"`
			Authorization struct {
				Credentials corev1.SecretKeySelector `json:"credentials"`
			} `json:"authorization"`
			Relabelings []struct {
				SourceLabels []string `json:"sourceLabels"`
				TargetLabel  string   `json:"targetLabel"`
				Replacement  string   `json:"replacement"`
			} `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// kinds are the objects that the manifests and the chart may have.
func kinds() map[string]any {
	return map[string]any{
		"apps/v1 Deployment": &appsv1.Deployment{}, "v1 Service": &corev1.Service{}, "v1 ConfigMap": &corev1.ConfigMap{},
		"policy/v1 PodDisruptionBudget": &policyv1.PodDisruptionBudget{}, "networking.k8s.io/v1 NetworkPolicy": &networkingv1.NetworkPolicy{},
		"keda.sh/v1alpha1 ScaledObject": &scaledObject{}, "monitoring.coreos.com/v1 PodMonitor": &podMonitor{},
		"networking.k8s.io/v1 Ingress": &networkingv1.Ingress{},
	}
}

// decodeAll decodes manifests strictly, by "apiVersion kind".
func decodeAll(text string) (map[string]any, error) {
	objects := map[string]any{}
	for _, document := range strings.Split(text, "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			return nil, err
		}
		name := meta.APIVersion + " " + meta.Kind
		into, ok := kinds()[name]
		if !ok {
			return nil, fmt.Errorf("%q is no kind that is known here", name)
		}
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		objects[name] = into
	}
	return objects, nil
}

func manifests(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	files, err := filepath.Glob("../kubernetes/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("got %q, %v, want three manifests", files, err)
	}
	for _, file := range files {
		objects, err := decodeAll(read(t, file))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, object := range objects {
			all[name] = object
		}
	}
	return all
}

// deploymentFaults says what of a Deployment would cut drains short or is not hardened.
func deploymentFaults(d *appsv1.Deployment, shutdown int64) error {
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	var errs []error
	want := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	before := int64(0)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Sleep != nil {
		before = c.Lifecycle.PreStop.Sleep.Seconds
	}
	grace := pod.TerminationGracePeriodSeconds
	want(grace != nil && *grace > before+shutdown+5, "terminationGracePeriodSeconds must exceed preStop %d + shutdown_timeout %d + 5", before, shutdown)
	want(c.ReadinessProbe != nil && c.ReadinessProbe.HTTPGet.Path == "/readyz", "readinessProbe must ask /readyz")
	want(c.LivenessProbe != nil && c.LivenessProbe.HTTPGet.Path == "/healthz", "livenessProbe must ask /healthz")
	secure := c.SecurityContext
	want(secure != nil && secure.ReadOnlyRootFilesystem != nil && *secure.ReadOnlyRootFilesystem, "the root file system must be read-only")
	want(secure != nil && secure.AllowPrivilegeEscalation != nil && !*secure.AllowPrivilegeEscalation, "privileges must not grow")
	want(secure != nil && secure.Capabilities != nil && fmt.Sprint(secure.Capabilities.Drop) == "[ALL]", "all capabilities must be dropped")
	want(pod.SecurityContext != nil && pod.SecurityContext.RunAsNonRoot != nil && *pod.SecurityContext.RunAsNonRoot, "the pod must not run as root")
	want(len(pod.TopologySpreadConstraints) == 2 && len(pod.TopologySpreadConstraints[0].MatchLabelKeys) > 0, "hosts and zones must share the pods of a rollout")
	want(c.Resources.Limits.Cpu().IsZero(), "a CPU limit lets leases run out")
	want(d.Spec.Selector.MatchLabels["app.kubernetes.io/name"] == d.Spec.Template.Labels["app.kubernetes.io/name"], "the selector must match the pods")
	return errors.Join(errs...)
}

// shutdownTimeout is the default of node.shutdown_timeout, in seconds.
const shutdownTimeout = 25

func TestManifests(t *testing.T) {
	all := manifests(t)
	if want := len(kinds()) - 1; len(all) != want { // the Ingress is the chart's alone
		t.Errorf("got %d kinds of objects, want %d", len(all), want)
	}
	d := all["apps/v1 Deployment"].(*appsv1.Deployment)
	if err := deploymentFaults(d, shutdownTimeout); err != nil {
		t.Error(err)
	}
	if service := all["v1 Service"].(*corev1.Service); service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("got cluster IP %q, want None", service.Spec.ClusterIP)
	}
}

// nodeAccess is what a node's configuration says of who may come in.
type nodeAccess struct {
	Node struct {
		Insecure      bool
		TokenFile     string `json:"token_file"`
		GossipKeyFile string `json:"gossip_key_file"`
		TLS           struct {
			CAFile   string `json:"ca_file"`
			PeerName string `json:"peer_name"`
		}
	}
}

func (cfg nodeAccess) faults() error {
	n := cfg.Node
	switch {
	case n.Insecure:
		return errors.New("insecure: true takes every host that reaches the ports")
	case n.TokenFile == "" || n.GossipKeyFile == "" || n.TLS.CAFile == "" || n.TLS.PeerName == "":
		return errors.New("a token, a gossip key, an authority and a peer name must be given")
	}
	return nil
}

// As it is shipped no port is open to every host that reaches it: the node's configuration is one that is
// accepted without --insecure, with a token, a gossip key and peers' names, from Secrets that its
// user alone reads.
func configFaults(text string, d *appsv1.Deployment) error {
	var cfg nodeAccess
	if err := yaml.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	var errs []error
	want := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	errs = append(errs, cfg.faults())
	for _, volume := range d.Spec.Template.Spec.Volumes {
		want(volume.Secret == nil || volume.Secret.DefaultMode != nil && *volume.Secret.DefaultMode&0o007 == 0, "everybody reads the Secret of "+volume.Name)
	}
	for _, probe := range []*corev1.Probe{d.Spec.Template.Spec.Containers[0].LivenessProbe, d.Spec.Template.Spec.Containers[0].ReadinessProbe} {
		want(probe.HTTPGet.Scheme == corev1.URISchemeHTTPS, "a probe must speak TLS")
	}
	return errors.Join(errs...)
}

func TestShippedConfigurationIsClosed(t *testing.T) {
	all := manifests(t)
	d, text := all["apps/v1 Deployment"].(*appsv1.Deployment), all["v1 ConfigMap"].(*corev1.ConfigMap).Data["node.yaml"]
	if err := configFaults(text, d); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"token_file: /", "gossip_key_file: /", "ca_file: /", "peer_name: "} {
		if configFaults(strings.Replace(text, key, "x"+key, 1), d) == nil {
			t.Errorf("without %s it counts as closed", key)
		}
	}
	if configFaults(strings.Replace(text, "concurrency: 8", "insecure: true", 1), d) == nil {
		t.Error("insecure counts as closed")
	}
}

func TestDeploymentFaultsAreFound(t *testing.T) {
	for name, spoil := range map[string]func(*corev1.PodSpec){
		"grace":      func(p *corev1.PodSpec) { *p.TerminationGracePeriodSeconds = 30 },
		"ready":      func(p *corev1.PodSpec) { p.Containers[0].ReadinessProbe = nil },
		"alive":      func(p *corev1.PodSpec) { p.Containers[0].LivenessProbe.HTTPGet.Path = "/readyz" },
		"read-only":  func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.ReadOnlyRootFilesystem = nil },
		"root":       func(p *corev1.PodSpec) { p.SecurityContext = nil },
		"spread":     func(p *corev1.PodSpec) { p.TopologySpreadConstraints = nil },
		"capability": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Capabilities = nil },
	} {
		d := manifests(t)["apps/v1 Deployment"].(*appsv1.Deployment)
		spoil(&d.Spec.Template.Spec)
		if deploymentFaults(d, shutdownTimeout) == nil {
			t.Errorf("%s: a bad Deployment counts as good", name)
		}
	}
}

func TestManifestFaultsAreFound(t *testing.T) {
	text := deployed(t, "kubernetes", "lowkiq.yaml")
	for _, c := range [][2]string{
		{"replicas: 3", "replica: 3"},
		{"replicas: 3", "replicas: three"},
		{"readinessProbe:", "readynessProbe:"},
		{"periodSeconds: 10", "periodSecond: 10"},
		{"maxUnavailable: 1\n", "maxUnavailabel: 1\n"},
		{"kind: Service\n", "kind: Services\n"},
		{"memory: 128Mi", "memory: much"},
	} {
		spoilt := strings.Replace(text, c[0], c[1], 1)
		if _, err := decodeAll(spoilt); err == nil || spoilt == text {
			t.Errorf("%s for %s counts as good", c[1], c[0])
		}
	}
	keda := deployed(t, "kubernetes", "keda.yaml")
	if _, err := decodeAll(strings.Replace(keda, "maxReplicaCount", "maxReplicas", 1)); err == nil {
		t.Error("an unknown key of a ScaledObject counts as good")
	}
}

// The ScaledObject's ceiling is the parallelism of the queue in the ConfigMap.
func TestCeiling(t *testing.T) {
	all := manifests(t)
	scaled := all["keda.sh/v1alpha1 ScaledObject"].(*scaledObject).Spec
	var cfg struct {
		Node   struct{ Concurrency int32 }
		Queues map[string]struct{ Shards int32 }
	}
	if err := yaml.Unmarshal([]byte(all["v1 ConfigMap"].(*corev1.ConfigMap).Data["node.yaml"]), &cfg); err != nil {
		t.Fatal(err)
	}
	if want := cfg.Queues["orders"].Shards / cfg.Node.Concurrency; want == 0 || scaled.MaxReplicaCount != want {
		t.Errorf("got at most %d nodes, want %d: shards / concurrency", scaled.MaxReplicaCount, want)
	}
	trigger := scaled.Triggers[0]
	for _, fault := range faults(trigger.Metadata["query"], exported()) {
		t.Error(fault)
	}
	if trigger.Type != "prometheus" || trigger.MetricType != autoscalingv2.AverageValueMetricType || trigger.Metadata["threshold"] != "1" {
		t.Errorf("got a trigger %+v, want prometheus by average value 1, as the query is a number of nodes", trigger)
	}
	if scaled.ScaleTargetRef.Name != all["apps/v1 Deployment"].(*appsv1.Deployment).Name {
		t.Errorf("got the target %s, want the Deployment", scaled.ScaleTargetRef.Name)
	}
}
