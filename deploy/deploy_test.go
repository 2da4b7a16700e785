package deploy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// manifest is one document of one file.
type manifest struct {
	file string
	obj  runtime.Object
}

// manifests decodes all documents below deploy/. A field that Kubernetes does not define
// is an error.
func manifests(t *testing.T) []manifest {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme,
		policyv1.AddToScheme, rbacv1.AddToScheme, apiextv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var out []manifest
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || d.Name() == "kustomization.yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			doc, err := docs.Read()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			doc, err = yaml.YAMLToJSONStrict(doc) // resolves anchors, rejects duplicate keys
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if string(doc) == "null" {
				continue
			}
			obj, _, err := decoder.Decode(doc, nil, nil)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			out = append(out, manifest{path, obj})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 15 {
		t.Fatalf("found %d manifests, want at least 15", len(out))
	}
	return out
}

// podSpecs calls visit with every pod template.
func podSpecs(t *testing.T, visit func(owner string, spec corev1.PodSpec)) {
	t.Helper()
	seen := 0
	for _, m := range manifests(t) {
		switch o := m.obj.(type) {
		case *appsv1.DaemonSet:
			visit("DaemonSet "+o.Name, o.Spec.Template.Spec)
		case *appsv1.Deployment:
			visit("Deployment "+o.Name, o.Spec.Template.Spec)
		default:
			continue
		}
		seen++
	}
	if seen != 3 {
		t.Fatalf("%d workloads, want the agent, the controller and the admission daemon", seen)
	}
}

func TestRBACRulesGrantNoWildcardsOrEscalation(t *testing.T) {
	for _, m := range manifests(t) {
		var rules []rbacv1.PolicyRule
		switch o := m.obj.(type) {
		case *rbacv1.ClusterRole:
			rules = o.Rules
		case *rbacv1.Role:
			rules = o.Rules
		default:
			continue
		}
		for i, r := range rules {
			if p := problemOf(r); p != "" {
				t.Errorf("%s rule %d: %s", m.file, i, p)
			}
		}
	}
}

// problemOf returns what a rule must not grant, or "".
func problemOf(r rbacv1.PolicyRule) string {
	for what, values := range map[string][]string{"apiGroups": r.APIGroups, "resources": r.Resources, "verbs": r.Verbs} {
		if slices.Contains(values, "*") {
			return what + " has a wildcard"
		}
	}
	for _, verb := range []string{"escalate", "bind", "impersonate", "deletecollection"} {
		if slices.Contains(r.Verbs, verb) {
			return "verb " + verb
		}
	}
	// With create, the token of any account of the namespace could be had; a name restricts the rest.
	if slices.Contains(r.Resources, "secrets") && (len(r.ResourceNames) == 0 || slices.ContainsFunc(r.Verbs, func(verb string) bool { return verb != "get" && verb != "patch" })) {
		return "Secrets other than one by its name"
	}
	for _, resource := range []string{"pods/exec", "serviceaccounts/token", "nodes/proxy"} {
		if slices.Contains(r.Resources, resource) {
			return "resource " + resource
		}
	}
	return ""
}

func TestAnExcessiveRBACRuleIsDetected(t *testing.T) {
	for name, r := range map[string]rbacv1.PolicyRule{
		"all verbs":     {APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"*"}},
		"all resources": {APIGroups: []string{""}, Resources: []string{"*"}, Verbs: []string{"get"}},
		"named secrets": {APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"s"}, Verbs: []string{"get", "create"}},
		"secrets":       {APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}},
		"escalation":    {APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{"clusterroles"}, Verbs: []string{"escalate"}},
	} {
		if problemOf(r) == "" {
			t.Errorf("%s: not detected", name)
		}
	}
}

// When the agent stops, it checks whether its DaemonSet is being deleted; `trunkline forget`
// checks whether it selects a node.
func TestOnlyTheAgentsDaemonSetMayBeRead(t *testing.T) {
	name := ""
	granted := map[string][]string{} // verbs on DaemonSets, by name
	var readers []string
	for _, m := range manifests(t) {
		switch o := m.obj.(type) {
		case *appsv1.DaemonSet:
			name = o.Name
		case *rbacv1.ClusterRole:
			for _, r := range o.Rules {
				if slices.Contains(r.Resources, "daemonsets") {
					t.Errorf("%s: ClusterRole %s grants access to DaemonSets in all namespaces", m.file, o.Name)
				}
			}
		case *rbacv1.Role:
			for _, r := range o.Rules {
				if !slices.Contains(r.Resources, "daemonsets") {
					continue
				}
				if len(r.ResourceNames) == 0 {
					t.Errorf("%s: Role %s grants access to all DaemonSets in its namespace", m.file, o.Name)
				}
				for _, n := range r.ResourceNames {
					granted[n] = append(granted[n], r.Verbs...)
					readers = append(readers, o.Name)
				}
			}
		}
	}
	slices.Sort(readers)
	if len(granted) != 1 || !slices.Equal(granted[name], []string{"get", "get"}) || !slices.Equal(readers, []string{name, "trunkline-forget"}) {
		t.Errorf("permissions on DaemonSets: %v of %q, want get on %q", granted, readers, name)
	}
}

func TestOnlyTheInitContainerIsPrivilegedAndRootFileSystemsAreReadOnly(t *testing.T) {
	allowed := []corev1.Capability{"NET_ADMIN", "SYS_ADMIN"}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		for _, c := range spec.InitContainers {
			if !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%s: init container %s has a writable root file system", owner, c.Name)
			}
		}
		for _, c := range spec.Containers {
			s := c.SecurityContext
			if s == nil || s.Privileged != nil && *s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
				t.Errorf("%s: container %s is privileged or allows privilege escalation", owner, c.Name)
				continue
			}
			if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: container %s has a writable root file system", owner, c.Name)
			}
			if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: container %s does not drop ALL capabilities", owner, c.Name)
			}
			for _, have := range s.Capabilities.Add {
				if !slices.Contains(allowed, have) {
					t.Errorf("%s: container %s adds %s", owner, c.Name, have)
				}
			}
		}
	})
}

// What each container writes on the node: a directory that it only reads is mounted so.
func TestContainersWriteOnlyWhereTheyMust(t *testing.T) {
	want := map[string][]string{
		"DaemonSet trunkline-agent, init":  {"/bpf", "/opt/cni/bin"},
		"DaemonSet trunkline-agent, agent": {"/bpf", "/etc/cni/net.d", "/run/trunkline", "/var/lib/trunkline"},
	}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		onHost := map[string]bool{}
		for _, v := range spec.Volumes {
			onHost[v.Name] = v.HostPath != nil
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			var writes []string
			for _, m := range c.VolumeMounts {
				if onHost[m.Name] && !m.ReadOnly {
					writes = append(writes, m.MountPath)
				}
			}
			slices.Sort(writes)
			if name := owner + ", " + c.Name; !slices.Equal(writes, want[name]) {
				t.Errorf("%s may write %v of the node, want %v", name, writes, want[name])
			}
		}
	})
}

func TestContainersHaveRequestsAMemoryLimitAndProbes(t *testing.T) {
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: container %s has no requests or no memory limit", owner, c.Name)
			}
			if c.ImagePullPolicy != corev1.PullIfNotPresent {
				t.Errorf("%s: container %s has image pull policy %q", owner, c.Name, c.ImagePullPolicy)
			}
		}
		for _, c := range spec.Containers {
			if c.LivenessProbe == nil || c.ReadinessProbe == nil {
				t.Errorf("%s: container %s has no liveness or readiness probe", owner, c.Name)
			}
		}
	})
}

func TestTheAgentToleratesAllTaintsAndIsUpdatedOnFewNodesAtATime(t *testing.T) {
	for _, m := range manifests(t) {
		ds, ok := m.obj.(*appsv1.DaemonSet)
		if !ok {
			continue
		}
		spec := ds.Spec.Template.Spec
		all := slices.ContainsFunc(spec.Tolerations, func(o corev1.Toleration) bool {
			return o.Operator == corev1.TolerationOpExists && o.Key == "" && o.Effect == ""
		})
		if !all || !spec.HostNetwork || spec.PriorityClassName != "system-node-critical" {
			t.Errorf("agent: tolerates all taints %v, host network %v, priority %q", all, spec.HostNetwork, spec.PriorityClassName)
		}
		if got := ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != "10%" {
			t.Errorf("maxUnavailable %s, want 10%%", got)
		}
		for _, v := range spec.Volumes {
			allowed := []string{"/run/trunkline", "/var/lib/trunkline", "/opt/cni/bin", "/etc/cni/net.d", "/sys/fs/bpf"}
			if v.HostPath == nil || !slices.Contains(allowed, v.HostPath.Path) {
				t.Errorf("agent mounts %s: not one of %v", v.Name, allowed)
			}
		}
	}
}

// kustomization is the part of a kustomization.yaml that the tests check.
type kustomization struct {
	Resources []string `json:"resources"`
	Images    []struct {
		Name   string `json:"name"`
		NewTag string `json:"newTag"`
	} `json:"images"`
}

func TestOverlaysSetTheImageTagAndAllManifestsAreInstalled(t *testing.T) {
	for _, dir := range []string{"base", "overlays/lab", "overlays/eks", "overlays/no-cloud"} {
		text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var k kustomization
		if err := yaml.Unmarshal(text, &k); err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if len(k.Images) != 1 || k.Images[0].NewTag == "" || k.Images[0].NewTag == "latest" {
			t.Errorf("%s: images %+v: want one with a tag that is not latest", dir, k.Images)
		}
	}
	for _, dir := range []string{"base", "crds"} {
		text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if name := filepath.Base(f); name != "kustomization.yaml" && !strings.Contains(string(text), "- "+name+"\n") {
				t.Errorf("%s is not a resource of the kustomization", f)
			}
		}
	}
}

func TestReferencedAccountsAndRolesExist(t *testing.T) {
	accounts := map[string]bool{}
	roles := map[string]bool{}
	for _, m := range manifests(t) {
		switch o := m.obj.(type) {
		case *corev1.ServiceAccount:
			accounts[o.Name] = true
		case *rbacv1.ClusterRole:
			roles["ClusterRole "+o.Name] = true
		case *rbacv1.Role:
			roles["Role "+o.Name] = true
		}
	}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		if !accounts[spec.ServiceAccountName] {
			t.Errorf("%s runs as %q, which does not exist", owner, spec.ServiceAccountName)
		}
	})
	check := func(file string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		if !roles[ref.Kind+" "+ref.Name] {
			t.Errorf("%s binds %s %s, which does not exist", file, ref.Kind, ref.Name)
		}
		for _, s := range subjects {
			if !accounts[s.Name] || s.Namespace != "kube-system" {
				t.Errorf("%s binds %s/%s, which does not exist", file, s.Namespace, s.Name)
			}
		}
	}
	for _, m := range manifests(t) {
		switch o := m.obj.(type) {
		case *rbacv1.ClusterRoleBinding:
			check(m.file, o.RoleRef, o.Subjects)
		case *rbacv1.RoleBinding:
			check(m.file, o.RoleRef, o.Subjects)
		}
	}
}

// policy is an IAM policy document.
func TestTheOverlayWithoutACloudHasNothingOfAWSAndNoController(t *testing.T) {
	text, err := os.ReadFile("overlays/no-cloud/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		ConfigMapGenerator []struct {
			Literals []string `json:"literals"`
		} `json:"configMapGenerator"`
		Patches []struct {
			Target struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"target"`
			Patch string `json:"patch"`
		} `json:"patches"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	if len(k.ConfigMapGenerator) != 1 || !slices.Contains(k.ConfigMapGenerator[0].Literals, "TRUNKLINE_BACKEND=podcidr") {
		t.Fatalf("settings %+v, want the backend podcidr", k.ConfigMapGenerator)
	}
	for _, literal := range k.ConfigMapGenerator[0].Literals {
		if strings.HasPrefix(literal, "AWS_") {
			t.Errorf("sets %s", literal)
		}
	}
	// The target has no kind, so that every object of the controller is deleted.
	if len(k.Patches) != 1 || k.Patches[0].Target.Name != "trunkline-controller" || k.Patches[0].Target.Kind != "" || !strings.Contains(k.Patches[0].Patch, "$patch: delete") {
		t.Errorf("patches %+v", k.Patches)
	}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		if owner == "Deployment trunkline-controller" {
			return
		}
		for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
			for _, e := range c.Env {
				if strings.HasPrefix(e.Name, "AWS_") {
					t.Errorf("%s: container %s sets %s in every overlay", owner, c.Name, e.Name)
				}
			}
		}
	})
}

type policy struct {
	Version   string
	Statement []struct {
		Sid       string
		Effect    string
		Action    any
		Resource  any
		Condition map[string]map[string]any
	}
}

func TestPoliciesHaveNoWildcardActionsAndConditionsOnInterfaces(t *testing.T) {
	for file, changesInterfaces := range map[string]bool{"iam/node-policy.json": true, "iam/controller-policy.json": true, "iam/controller-trunks-policy.json": true, "iam/controller-groups-policy.json": false} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p policy
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&p); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		interfaces := false
		for _, s := range p.Statement {
			for _, r := range list(s.Resource) {
				if r != "*" && !strings.HasPrefix(r, "arn:*:ec2:*:*:") {
					t.Errorf("%s: %s names %s, want the ARN of every partition", file, s.Sid, r)
				}
			}
			for _, a := range list(s.Action) {
				if strings.Contains(a, "*") {
					t.Errorf("%s: %s allows %s", file, s.Sid, a)
				}
				describe := strings.HasPrefix(a, "ec2:Describe")
				onInterface := slices.Contains(list(s.Resource), "arn:*:ec2:*:*:network-interface/*")
				interfaces = interfaces || onInterface
				if slices.Contains(list(s.Resource), "*") && !describe && !withoutResource(a) {
					t.Errorf("%s: %s allows %s on all resources", file, s.Sid, a)
				}
				if onInterface && len(s.Condition) == 0 {
					t.Errorf("%s: %s allows %s on interfaces without a condition", file, s.Sid, a)
				}
			}
		}
		if interfaces != changesInterfaces {
			t.Errorf("%s has a statement on interfaces: %v, want %v", file, interfaces, changesInterfaces)
		}
	}
}

// withoutResource reports whether IAM takes no resource for an action. Source: service
// authorization reference, "Actions, resources, and condition keys for Amazon EC2".
func withoutResource(action string) bool {
	return action == "ec2:AssociateTrunkInterface" || action == "ec2:DisassociateTrunkInterface"
}

func list(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, e := range v {
			out = append(out, fmt.Sprint(e))
		}
		return out
	}
	return nil
}
