package deploy_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// awsNode is AWS's DaemonSet with the affinity of a file of the overlay.
func awsNode(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	text, err := os.ReadFile("overlays/eks-migration/aws-node-patch.json")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	return &set
}

func nodeWith(labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		n.Labels[key] = value
	}
	return n
}

// One label moves a node in either direction; no label leaves it to AWS's CNI, and no value
// has both serve it.
func TestWhileNodesMoveOneLabelSaysWhichCNIServesANode(t *testing.T) {
	ours := built[appsv1.DaemonSet](t, "eks-migration", "DaemonSet", "trunkline-agent")
	theirs := awsNode(t)
	for name, c := range map[string]struct {
		node         *corev1.Node
		ours, theirs bool
	}{
		"as it is, and one that the autoscaler adds": {nodeWith(), false, true},
		"moved":                    {nodeWith("trunkline.dev/cni=trunkline"), true, false},
		"being returned":           {nodeWith("trunkline.dev/cni=none"), false, false},
		"an unknown value":         {nodeWith("trunkline.dev/cni=aws"), false, false},
		"an empty value":           {nodeWith("trunkline.dev/cni="), false, false},
		"Windows, labelled":        {nodeWith("trunkline.dev/cni=trunkline", "kubernetes.io/os=windows"), false, false},
		"Fargate, labelled":        {nodeWith("trunkline.dev/cni=trunkline", "eks.amazonaws.com/compute-type=fargate"), false, false},
		"a hybrid node":            {nodeWith("eks.amazonaws.com/compute-type=hybrid"), false, false},
		"an EKS Auto Mode node":    {nodeWith("eks.amazonaws.com/compute-type=auto"), false, false},
		"of a managed node group":  {nodeWith("eks.amazonaws.com/nodegroup=a"), false, true},
		"a managed one that moved": {nodeWith("eks.amazonaws.com/nodegroup=a", "trunkline.dev/cni=trunkline"), true, false},
	} {
		if got := kube.Selects(&ours, c.node); got != c.ours {
			t.Errorf("%s: Trunkline serves it: %v, want %v", name, got, c.ours)
		}
		if got := kube.Selects(theirs, c.node); got != c.theirs {
			t.Errorf("%s: AWS's CNI serves it: %v, want %v", name, got, c.theirs)
		}
	}
}

// Before and after a move, without aws-node, no node needs a label.
func TestWithoutAWSsDaemonNoNodeNeedsALabel(t *testing.T) {
	set := built[appsv1.DaemonSet](t, "eks", "DaemonSet", "trunkline-agent")
	for _, n := range []*corev1.Node{nodeWith(), nodeWith("trunkline.dev/cni=trunkline")} {
		if !kube.Selects(&set, n) {
			t.Errorf("a node with the labels %v is not served", n.Labels)
		}
	}
}

// The managed add-on and Helm take the affinity as a value, kubectl as a patch.
func TestBothFilesForAWSsDaemonHaveTheSameAffinity(t *testing.T) {
	text, err := os.ReadFile("overlays/eks-migration/aws-node-values.json")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Affinity *corev1.Affinity `json:"affinity"`
	}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	if values.Affinity == nil || !reflect.DeepEqual(values.Affinity, awsNode(t).Spec.Template.Spec.Affinity) {
		t.Errorf("values %+v", values.Affinity)
	}
}

// A placeholder that was left must not work: a default of another cluster, account or region
// would be used without an error.
func TestAPlaceholderThatWasLeftIsRefused(t *testing.T) {
	var settings corev1.ConfigMap
	for _, r := range build(t, "eks").Resources() {
		if r.GetKind() == "ConfigMap" && strings.HasPrefix(r.GetName(), "trunkline-") {
			text, err := r.MarshalJSON()
			if err == nil {
				err = json.Unmarshal(text, &settings)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, ok := settings.Data["AWS_REGION"]; ok {
		t.Error("the region is a setting of the agent, which knows its own")
	}
	load := func(data map[string]string) error {
		_, err := config.Load(config.Sources{Env: func(name string) (string, bool) { v, ok := data[name]; return v, ok }})
		return err
	}
	if err := load(settings.Data); err == nil || !strings.Contains(err.Error(), "cluster-name") {
		t.Errorf("settings %v: %v, want a refusal of cluster-name", settings.Data, err)
	}
	settings.Data["CLUSTER_NAME"] = "prod_1"
	if err := load(settings.Data); err != nil {
		t.Error(err)
	}
	controller := built[appsv1.Deployment](t, "eks", "Deployment", "trunkline-controller")
	for _, name := range []string{"AWS_REGION", "AWS_ROLE_ARN"} {
		env := controller.Spec.Template.Spec.Containers[0].Env
		i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == name })
		if i < 0 || !strings.HasPrefix(env[i].Value, "<") { // no name of a region or an ARN begins so
			t.Errorf("%s of the controller is set to something that may work: %v", name, env)
		}
	}
}

// The SDK prefers a role by token to the association of EKS Pod Identity, so that the base
// must not set one.
func TestOnlyTheComponentGivesTheControllerARoleByToken(t *testing.T) {
	token := func(spec corev1.PodSpec) bool {
		return slices.ContainsFunc(spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "AWS_WEB_IDENTITY_TOKEN_FILE" }) &&
			len(spec.Volumes) > 0 && len(spec.Containers[0].VolumeMounts) > 0
	}
	if overlay := built[appsv1.Deployment](t, "eks", "Deployment", "trunkline-controller"); !token(overlay.Spec.Template.Spec) {
		t.Error("the overlay with the component irsa has no token")
	}
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		if owner == "Deployment trunkline-controller" && (token(spec) || len(spec.Volumes) > 0) {
			t.Errorf("the base has it: %+v", spec.Containers[0].Env)
		}
	})
}
