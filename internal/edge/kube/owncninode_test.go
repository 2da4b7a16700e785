package kube_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const cniNodes = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"

func cniNode(name string, features ...vpcresources.Feature) *vpcresources.CNINode {
	return &vpcresources.CNINode{
		TypeMeta:   metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1alpha1", Kind: "CNINode"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: vpcresources.CNINodeSpec{Features: features},
	}
}

// patches records the bodies of patches.
type patches struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen []string
}

func (p *patches) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		p.seen = append(p.seen, r.Header.Get("Content-Type")+" "+string(body))
		p.mu.Unlock()
		r.Body = io.NopCloser(strings.NewReader(string(body)))
	}
	return p.next.RoundTrip(r)
}

// What AWS's agent writes: a merge patch with the version that was read and the whole list of
// features, in which one without a value is written without it. Source: AddFeatureToCNINode in
// pkg/ipamd/ipamd.go of aws/amazon-vpc-cni-k8s, and MergeFromWithOptimisticLock of
// controller-runtime, which it uses.
func TestAFeatureIsAddedAsAWSsAgentAddsIt(t *testing.T) {
	want := vpcresources.Feature{Name: vpcresources.SecurityGroupsForPods}
	custom := vpcresources.Feature{Name: vpcresources.CustomNetworking, Value: "us-west-2a"}
	auto := cniNode("n1")
	auto.Spec.ManagedBy = vpcresources.ManagedByEKSAutoMode
	for name, tt := range map[string]struct {
		object *vpcresources.CNINode
		body   string // after the version; empty: none is sent
	}{
		"no feature":           {cniNode("n1"), `[{"name":"SecurityGroupsForPods"}]`},
		"another feature":      {cniNode("n1", custom), `[{"name":"CustomNetworking","value":"us-west-2a"},{"name":"SecurityGroupsForPods"}]`},
		"with another value":   {cniNode("n1", vpcresources.Feature{Name: want.Name, Value: "x"}, custom), `[{"name":"CustomNetworking","value":"us-west-2a"},{"name":"SecurityGroupsForPods"}]`},
		"it is there":          {cniNode("n1", want), ""},
		"a node of Auto Mode":  {auto, ""},
		"there, with anything": {cniNode("n1", want, custom), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubetest.New(t)
			s.Put(cniNodes, tt.object)
			sent := &patches{}
			access := s.REST()
			access.Wrap(func(rt http.RoundTripper) http.RoundTripper { sent.next = rt; return sent })
			own := ownCNINode(t, access, "")
			if err := own.AddFeature(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			var before []string
			if tt.body != "" {
				before = []string{`application/merge-patch+json {"metadata":{"resourceVersion":"1"},"spec":{"features":` + tt.body + `}}`}
			}
			if d := cmp.Diff(before, sent.seen); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAFeatureIsNotAddedToAnObjectThatWasChangedMeanwhile(t *testing.T) {
	s := kubetest.New(t)
	s.Put(cniNodes, cniNode("n1"))
	access := s.REST()
	access.Wrap(func(rt http.RoundTripper) http.RoundTripper { return changing{rt, s} })
	err := ownCNINode(t, access, "").AddFeature(t.Context(), vpcresources.Feature{Name: vpcresources.SecurityGroupsForPods})
	var now vpcresources.CNINode
	s.Get(cniNodes, "n1", &now)
	if !apierrors.IsConflict(err) || len(now.Spec.Features) != 1 || now.Spec.Features[0].Name != vpcresources.CustomNetworking {
		t.Errorf("%v, and the features are %v", err, now.Spec.Features)
	}
}

// changing has another program change the CNINode between the read and the patch.
type changing struct {
	next http.RoundTripper
	s    *kubetest.Server
}

func (c changing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch {
		c.s.Put(cniNodes, cniNode("n1", vpcresources.Feature{Name: vpcresources.CustomNetworking}))
	}
	return c.next.RoundTrip(r)
}

func ownCNINode(t *testing.T, access *rest.Config, snapshot string) *kube.OwnCNINode {
	t.Helper()
	client, err := kube.FromREST(access)
	if err != nil {
		t.Fatal(err)
	}
	if snapshot == "" {
		snapshot = filepath.Join(t.TempDir(), "cninode.json")
	}
	return kube.NewOwnCNINode(kube.OwnCNINodeOptions{Client: client, NodeName: "n1", SnapshotPath: snapshot, Log: quiet()})
}

// An agent that starts during an outage of the API server compares annotations with the record of
// before, and knows that there is none only from the API server.
func TestTheCNINodeSurvivesARestartWithoutTheAPIServer(t *testing.T) {
	s := kubetest.New(t)
	s.Put(cniNodes, cniNode("n1"))
	s.Put(cniNodes, cniNode("n2"))
	path := filepath.Join(t.TempDir(), "cninode.json")
	run := func() (*kube.OwnCNINode, func()) {
		own := ownCNINode(t, s.REST(), path)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = own.Run(ctx) })
		return own, func() { stop(); wg.Wait() }
	}
	name := func(own *kube.OwnCNINode) string {
		object, known := own.Object()
		switch {
		case !known:
			return "not known"
		case object == nil:
			return "none"
		}
		return object.Name
	}
	if got := name(ownCNINode(t, s.REST(), path)); got != "not known" {
		t.Errorf("before it was read: %s", got)
	}
	own, stop := run()
	(&world{}).until(t, "the object", func() bool { return name(own) == "n1" })
	saved := func() string {
		var n vpcresources.CNINode
		if text, err := os.ReadFile(path); err != nil || json.Unmarshal(text, &n) != nil {
			return ""
		}
		return n.Name
	}
	(&world{}).until(t, "its file", func() bool { return saved() == "n1" })
	stop()
	s.SetDown(true)
	own, stop = run()
	if got := name(own); got != "n1" {
		t.Errorf("after a restart without the API server: %s", got)
	}
	stop()
	s.SetDown(false)
	s.Delete(cniNodes, "n1")
	own, stop = run()
	(&world{}).until(t, "that it is gone", func() bool { return name(own) == "none" })
	(&world{}).until(t, "that its file is gone", func() bool { return saved() == "" })
	stop()
}
