package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// patched is the part of a kustomization.yaml with patches of the agent's DaemonSet.
type patched struct {
	Components []string `json:"components"`
	Patches    []struct {
		Target struct {
			Kind, Name string
		} `json:"target"`
		Patch string `json:"patch"`
	} `json:"patches"`
}

// operation is one operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// ofTheAgent returns the operations of a kustomization on the agent's DaemonSet, by path.
func ofTheAgent(t *testing.T, dir string) (k patched, operations map[string][]operation) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &map[string]any{}); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	operations = map[string][]operation{}
	for _, p := range k.Patches {
		if p.Target.Kind != "DaemonSet" || p.Target.Name != "trunkline-agent" {
			continue
		}
		var list []operation
		if err := yaml.Unmarshal([]byte(p.Patch), &list); err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			operations[o.Path] = append(operations[o.Path], o)
		}
	}
	return k, operations
}

// into converts a decoded value to a type of Kubernetes, and refuses unknown fields.
func into[T any](t *testing.T, value any) (out T) {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// aws-node has the same affinity: where it does not run, another network serves the node.
func TestOnEKSTheAgentRunsWhereAWSsDaemonDoes(t *testing.T) {
	_, operations := ofTheAgent(t, "components/eks-nodes")
	affinity := into[corev1.Affinity](t, operations["/spec/template/spec/affinity"][0].Value)
	if affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		t.Fatalf("%+v", affinity)
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 {
		t.Fatalf("%d terms: a node that matches any of them is selected", len(terms))
	}
	want := map[string]corev1.NodeSelectorRequirement{
		"kubernetes.io/os":               {Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}},
		"kubernetes.io/arch":             {Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64", "arm64"}},
		"eks.amazonaws.com/compute-type": {Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate", "hybrid", "auto"}},
	}
	for _, r := range terms[0].MatchExpressions {
		if w := want[r.Key]; r.Operator != w.Operator || !slices.Equal(r.Values, w.Values) {
			t.Errorf("%s %s %v, want %s %v", r.Key, r.Operator, r.Values, w.Operator, w.Values)
		}
		delete(want, r.Key)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// The agent writes the checkpoint of AWS's daemon where that daemon may have been or come, and
// holds the lock of iptables there to remove that daemon's rules: nothing else below /var/run.
func TestTheDirectoryOfAWSsDaemonIsMountedOnEC2Only(t *testing.T) {
	const component = "../../components/aws-node"
	for overlay, want := range map[string]bool{"eks": true, "lab": true, "no-cloud": false} {
		k, _ := ofTheAgent(t, filepath.Join("overlays", overlay))
		if got := slices.Contains(k.Components, component); got != want {
			t.Errorf("overlay %s has the component: %v, want %v", overlay, got, want)
		}
	}
	_, operations := ofTheAgent(t, "components/aws-node")
	volumes, mounts := operations["/spec/template/spec/volumes/-"], operations["/spec/template/spec/containers/0/volumeMounts/-"]
	want := []string{"/var/run/aws-node", "/run/xtables.lock"}
	if len(operations) != 2 || len(volumes) != len(want) || len(mounts) != len(want) {
		t.Fatalf("%+v", operations)
	}
	for i, path := range want {
		volume, mount := into[corev1.Volume](t, volumes[i].Value), into[corev1.VolumeMount](t, mounts[i].Value)
		if volume.HostPath == nil || volume.HostPath.Path != path || mount.Name != volume.Name || mount.MountPath != path {
			t.Errorf("%+v, %+v", volume, mount)
		}
	}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		for i, c := range spec.Containers {
			if strings.HasSuffix(owner, "trunkline-agent") && (i != 0 || c.Name != "agent") {
				t.Errorf("container %d of %s is %s: the component patches container 0", i, owner, c.Name)
			}
		}
	})
}

func TestTheComponentForOldKernelsAddsOneCapability(t *testing.T) {
	_, operations := ofTheAgent(t, "components/locked-memory")
	o := operations["/spec/template/spec/containers/0/securityContext/capabilities/add/-"][0]
	if len(operations) != 1 || o.Op != "add" || o.Value != "SYS_RESOURCE" {
		t.Errorf("operations %v, want SYS_RESOURCE added", operations)
	}
}
