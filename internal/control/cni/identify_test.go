package cni

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

func TestWithoutTheAPIAPodOfTheSnapshotIsIdentified(t *testing.T) {
	h, a := newHarness(t), addOf("known", "u1")
	if err := a.on(h).identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.pod.Labels["app"] != "web" || a.e.Pod.UID != "u1" {
		t.Errorf("pod %+v of endpoint %+v: not what the snapshot holds", a.pod, a.e)
	}
}

func TestWithoutTheAPIAnUnknownPodIsRefusedForNow(t *testing.T) {
	for name, a := range map[string]*addition{
		"a pod of no record":         addOf("stranger", "u7"),
		"a new pod of a known name":  addOf("known", "u2"),
		"a pod without uid, unknown": addOf("stranger", ""),
	} {
		t.Run(name, func(t *testing.T) {
			err := a.on(newHarness(t)).identify(t.Context())
			var refused *cnirpc.Error
			if !errors.As(err, &refused) || refused.Code != cnirpc.CodeTryAgain {
				t.Fatalf("%v, want CNI code %d", err, cnirpc.CodeTryAgain)
			}
			for _, word := range []string{a.e.Name(), "API", "again"} {
				if !strings.Contains(refused.Msg+" "+refused.Details, word) {
					t.Errorf("%q does not say %q", refused.Msg+": "+refused.Details, word)
				}
			}
		})
	}
}

func TestAPodTheAPIDoesNotHaveIsRefusedPermanently(t *testing.T) {
	h := newHarness(t)
	h.server.SetDown(false)
	err := addOf("stranger", "u7").on(h).identify(t.Context())
	var refused *cnirpc.Error
	if !errors.As(err, &refused) || refused.Code != cnirpc.CodeUnknownContainer {
		t.Errorf("%v, want CNI code %d", err, cnirpc.CodeUnknownContainer)
	}
}

func TestAStaticPodIsWiredAsItsMirror(t *testing.T) {
	const hash = "8d2c4d5ef8ea2b9a1f7c3a3f4d1e0b55" // the uid of its runtime
	h := newHarness(t)
	h.server.SetDown(false)
	err := addOf("web-n1", hash).on(h).identify(t.Context())
	var refused *cnirpc.Error
	if !errors.As(err, &refused) || refused.Code != cnirpc.CodeTryAgain || !strings.Contains(refused.Msg, "static pod default/web-n1") {
		t.Errorf("before its mirror is there: %v, want CNI code %d", err, cnirpc.CodeTryAgain)
	}
	h.server.Put("/api/v1/pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "web-n1", UID: "u1", Labels: map[string]string{"app": "web"},
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: hash},
	}})
	a := addOf("web-n1", hash)
	if err := a.on(h).identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.pod.Labels["app"] != "web" || a.e.Pod.UID != "u1" {
		t.Errorf("pod %+v of endpoint %+v: not its mirror", a.pod, a.e)
	}
}
