package kube_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// hash is the uid that the runtime has for a static pod.
const hash = "8d2c4d5ef8ea2b9a1f7c3a3f4d1e0b55"

func mirror(name, uid, of string) *corev1.Pod {
	p := pod("a", name, "n1", uid)
	p.Annotations["kubernetes.io/config.mirror"], p.Annotations["kubernetes.io/config.hash"] = of, of
	return p
}

func TestAStaticPodIsFoundByTheHashOfItsMirror(t *testing.T) {
	w := newWorld(t, func(s *kubetest.Server) { s.Put(pods, mirror("web-n1", "u1", hash)) })
	w.until(t, "sync", func() bool { return w.cluster.Synced() && len(w.cluster.Pods()) == 1 })
	ref := kube.PodRef{Namespace: "a", Name: "web-n1"}
	for _, uid := range []string{hash, "u1", ""} {
		if p, err := w.cluster.Pod(t.Context(), ref, uid); err != nil || p.UID != "u1" {
			t.Errorf("asked for uid %q: %+v, %v", uid, p, err)
		}
	}
	w.until(t, "the snapshot holds the mirror", func() bool {
		s, err := kube.LoadSnapshot(w.path)
		return err == nil && len(s.Pods) == 1
	})
	w.SetDown(true)
	w.start(t)
	if p, err := w.cluster.Pod(t.Context(), ref, hash); err != nil || p.UID != "u1" {
		t.Errorf("after a restart without the API: %+v, %v", p, err)
	}
}

func TestAStaticPodWithoutItsMirrorIsNotAnUnknownPod(t *testing.T) {
	w := newWorld(t)
	w.until(t, "sync", w.cluster.Synced)
	ref := kube.PodRef{Namespace: "a", Name: "web-n1"}
	if _, err := w.cluster.Pod(t.Context(), ref, hash); !errors.Is(err, kube.ErrNoMirror) {
		t.Errorf("no mirror: %v, want ErrNoMirror", err)
	}
	w.Put(pods, mirror("web-n1", "u1", "0123456789abcdef0123456789abcdef"))
	if _, err := w.cluster.Pod(t.Context(), ref, hash); !errors.Is(err, kube.ErrNoMirror) {
		t.Errorf("the mirror of an older manifest: %v, want ErrNoMirror", err)
	}
	if _, err := w.cluster.Pod(t.Context(), ref, "2f0a1a4e-7f5a-4c1d-9d0e-3d7a4a4b5c6d"); !errors.Is(err, kube.ErrNoPod) {
		t.Errorf("an ordinary pod's uid: %v, want ErrNoPod", err)
	}
	w.Delete(pods, "a/web-n1")
	w.Put(pods, mirror("web-n1", "u2", hash))
	if p, err := w.cluster.Pod(t.Context(), ref, hash); err != nil || p.UID != "u2" {
		t.Errorf("with the mirror: uid %s, %v", p.UID, err)
	}
}
