package agent

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// restarted is an agent that starts while the API server is away, on a node whose
// record has one pod, default/known with uid u1.
func restarted(t *testing.T) (*Agent, *kubetest.Server) {
	t.Helper()
	server := kubetest.New(t)
	server.SetDown(true)
	client, err := kube.FromREST(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cluster.json")
	known := kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: "known"}, UID: "u1", Labels: map[string]string{"app": "web"}}
	if err := kube.SaveSnapshot(path, kube.Snapshot{Pods: []kube.Pod{known}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	return &Agent{
		log:     log,
		cluster: kube.NewCluster(kube.Options{Client: client, NodeName: "n1", SnapshotPath: path, Log: log}),
	}, server
}

func addOf(name, uid string) *addition {
	return &addition{req: &cnirpc.Request{
		ContainerID: "c1", IfName: "eth0",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name + ";K8S_POD_UID=" + uid,
	}}
}

func TestWithoutTheAPIAPodOfTheSnapshotIsIdentified(t *testing.T) {
	a, _ := restarted(t)
	add := addOf("known", "u1")
	if err := a.identify(t.Context(), add); err != nil {
		t.Fatal(err)
	}
	if add.pod.Labels["app"] != "web" || add.owner.PodUID != "u1" {
		t.Errorf("pod %+v of owner %+v: not what the snapshot holds", add.pod, add.owner)
	}
}

func TestWithoutTheAPIAPodNobodyKnowsIsRefusedForNow(t *testing.T) {
	for name, add := range map[string]*addition{
		"a pod of no record":         addOf("stranger", "u7"),
		"a new pod of a known name":  addOf("known", "u2"),
		"a pod without uid, unknown": addOf("stranger", ""),
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := restarted(t)
			err := a.identify(t.Context(), add)
			var refused *cnirpc.Error
			if !errors.As(err, &refused) || refused.Code != cnirpc.CodeTryAgain {
				t.Fatalf("%v, want CNI code %d", err, cnirpc.CodeTryAgain)
			}
			for _, word := range []string{"default/" + add.owner.Name, "API", "again"} {
				if !strings.Contains(refused.Msg+" "+refused.Details, word) {
					t.Errorf("%q does not say %q", refused.Msg+": "+refused.Details, word)
				}
			}
		})
	}
}

func TestAPodTheAPIDeniesIsNotAskedForAgain(t *testing.T) {
	a, server := restarted(t)
	server.SetDown(false)
	err := a.identify(t.Context(), addOf("stranger", "u7"))
	var refused *cnirpc.Error
	if !errors.As(err, &refused) || refused.Code != cnirpc.CodeUnknownContainer {
		t.Errorf("%v, want CNI code %d", err, cnirpc.CodeUnknownContainer)
	}
}

func TestAStaticPodIsWiredAsItsMirror(t *testing.T) {
	const hash = "8d2c4d5ef8ea2b9a1f7c3a3f4d1e0b55" // the uid of its runtime
	a, server := restarted(t)
	server.SetDown(false)
	err := a.identify(t.Context(), addOf("web-n1", hash))
	var refused *cnirpc.Error
	if !errors.As(err, &refused) || refused.Code != cnirpc.CodeTryAgain || !strings.Contains(refused.Msg, "static pod default/web-n1") {
		t.Errorf("before its mirror is there: %v, want CNI code %d", err, cnirpc.CodeTryAgain)
	}
	server.Put("/api/v1/pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web-n1", UID: "u1", Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: hash},
	}})
	add := addOf("web-n1", hash)
	if err := a.identify(t.Context(), add); err != nil {
		t.Fatal(err)
	}
	if add.pod.Labels["app"] != "web" || add.owner.PodUID != "u1" {
		t.Errorf("pod %+v of owner %+v: not its mirror", add.pod, add.owner)
	}
}
