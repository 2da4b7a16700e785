package kube_test

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func TestWithoutServerAndSnapshotNoPoliciesAreKnown(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.SetDown(true) })
	w.start(t)
	w.until(t, "a request", func() bool { return slices.Contains(w.Requests(), "GET "+networkPolicies) })
	if w.objects.Known() || w.objects.Synced() || w.objects.Any() {
		t.Errorf("known %v, synced %v, any %v", w.objects.Known(), w.objects.Synced(), w.objects.Any())
	}
	w.SetDown(false)
	w.until(t, "sync", func() bool { return w.objects.Synced() && len(w.Policies) == 1 })
}

// saved waits until both files of the snapshot are there.
func (w *policyWorld) saved(t *testing.T) {
	t.Helper()
	w.until(t, "the snapshot", func() bool {
		_, err := os.Stat(w.path + ".peers")
		text, _ := os.ReadFile(w.path)
		return err == nil && strings.Contains(string(text), `"name":"a"`) && strings.Contains(string(text), `"default":{`)
	})
}

func TestTheSnapshotIsUsedAndThenComparedWithTheList(t *testing.T) {
	web := startedAt(peerPod("web", "10.0.0.7"), 1)
	web.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) {
		s.Put(namespaces, namespace("gone", nil))
		s.Put(pods, web)
		s.Put(pods, peerPod("old", "10.0.0.8"))
	})
	stop := w.start(t)
	w.untilPeers(t, "old:10.0.0.8 web:10.0.0.7")
	before := w.Policies[npRef("a")]
	w.saved(t)
	stop()
	w.SetDown(true)
	w.start(t)
	first := w.take()
	if !w.objects.Known() || w.objects.Synced() || !w.objects.Any() {
		t.Errorf("known %v, synced %v, any %v", w.objects.Known(), w.objects.Synced(), w.objects.Any())
	}
	if w.peers() != "old:10.0.0.8 web:10.0.0.7" || len(first.Namespaces) != 2 || first.Namespaces["default"] == nil {
		t.Errorf("from the snapshot: pods %s, namespaces %v", w.peers(), first.Namespaces)
	}
	p := w.Pods[podRef("web")]
	if p.Node != "n2" || p.Labels["app"] != "web" || len(p.Ports) != 1 || p.Ports[0].Name != "http" || p.Ports[0].Port != 80 {
		t.Errorf("pod from the snapshot: %+v", p)
	}
	after := w.Policies[npRef("a")]
	if after.UID != before.UID || !after.Created.Equal(before.Created) || after.Policy.Subject.Key() != before.Policy.Subject.Key() {
		t.Errorf("policy from the snapshot %+v, was %+v", after, before)
	}
	w.Delete(networkPolicies, "default/a")
	w.Put(networkPolicies, networkPolicy("b"))
	w.Delete(namespaces, "gone")
	w.Delete(pods, "default/old")
	w.SetDown(false)
	deleted, deadline := false, time.After(time.Minute)
	replaced := func() bool { return w.Policies[npRef("a")] == nil && w.Policies[npRef("b")] != nil }
	for !w.objects.Synced() || !deleted || w.peers() != "web:10.0.0.7" || !replaced() {
		if l, changed := w.take().Namespaces["gone"]; changed && l == nil {
			deleted = true
		}
		select {
		case <-deadline:
			t.Fatalf("synced %v, namespace deleted %v, pods %s, policies %v", w.objects.Synced(), deleted, w.peers(), w.Policies)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestACorruptPolicySnapshotIsSetAside(t *testing.T) {
	for name, text := range map[string]string{
		"torn": `{"version":1,"policies":[{"na`, "of a newer version": `{"version":99}`, "empty": "",
		"with an odd spec": `{"version":1,"policies":[{"namespace":"a","name":"b","spec":{"podSelector":7}}]}`,
		"without a spec":   `{"version":1,"policies":[{"namespace":"a","name":"b"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.SetDown(true) })
			if err := os.WriteFile(w.path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			w.start(t)
			if c := w.take(); w.objects.Known() || w.objects.Any() || len(c.Policies) > 0 {
				t.Errorf("known %v, any %v, %v", w.objects.Known(), w.objects.Any(), c.Policies)
			}
			if aside, err := os.ReadFile(w.path + ".corrupt"); err != nil || string(aside) != text {
				t.Errorf("set aside: %q, %v", aside, err)
			}
			w.SetDown(false)
			w.until(t, "a new snapshot", func() bool { _, err := os.Stat(w.path); return err == nil })
		})
	}
}

// Without pods, policies isolate and allow only addresses.
func TestOfACorruptFileOfPodsThePoliciesAreUsed(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(pods, peerPod("web", "10.0.0.7")) })
	stop := w.start(t)
	w.untilPeers(t, "web:10.0.0.7")
	w.saved(t)
	stop()
	w.SetDown(true)
	whole, err := os.ReadFile(w.path + ".peers")
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(whole)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	for name, text := range map[string][]byte{"torn": whole[:len(whole)-9], "flipped": flipped, "empty": nil} {
		if err := os.WriteFile(w.path+".peers", text, 0o600); err != nil {
			t.Fatal(err)
		}
		stop := w.start(t)
		if w.take(); !w.objects.Known() || w.objects.Copied() || len(w.Policies) != 1 || len(w.Pods) != 0 {
			t.Errorf("%s: known %v, copied %v, policies %v, pods %s", name, w.objects.Known(), w.objects.Copied(), w.Policies, w.peers())
		}
		if aside, err := os.ReadFile(w.path + ".peers.corrupt"); err != nil || !slices.Equal(aside, text) {
			t.Errorf("%s: set aside %d bytes, %v", name, len(aside), err)
		}
		stop()
	}
	if err := os.Remove(w.path + ".peers"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	w.start(t)
	if !w.objects.Known() || w.objects.Copied() {
		t.Errorf("without the file of pods: known %v, copied %v", w.objects.Known(), w.objects.Copied())
	}
}

// The next agent begins with what is saved, and pods are saved every 10 s at most.
func TestWhatChangedLastIsSavedWhenTheAgentEnds(t *testing.T) {
	w := newPolicyWorld(t, withPolicy, func(s *kubetest.Server) { s.Put(pods, peerPod("web", "10.0.0.7")) })
	stop := w.start(t)
	w.untilPeers(t, "web:10.0.0.7")
	w.saved(t)
	w.Put(pods, peerPod("last", "10.0.0.8"))
	w.untilPeers(t, "last:10.0.0.8 web:10.0.0.7")
	w.Put(namespaces, namespace("last", nil))
	w.until(t, "the namespace", func() bool { return w.taken["last"] == 2 })
	stop()
	w.SetDown(true)
	w.start(t)
	if first := w.take(); !w.objects.Copied() || w.peers() != "last:10.0.0.8 web:10.0.0.7" || first.Namespaces["last"] == nil {
		t.Errorf("copied %v, pods %s, namespaces %v", w.objects.Copied(), w.peers(), first.Namespaces)
	}
}
