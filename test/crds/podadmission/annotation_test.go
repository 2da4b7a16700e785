package podadmission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func annotations() *rapid.Generator[map[string]string] {
	return rapid.MapOfN(rapid.SampledFrom([]string{vpc.AnnotationPodENI, "other"}), rapid.SampledFrom([]string{"", "[]", "[{}]"}), 0, 2)
}

func TestTheAnnotationIsGuardedAsCoreDecides(t *testing.T) {
	writers := append(podeni.AWSWriters(), "system:serviceaccount:trunkline:trunkline-controller", `it's "odd" \ é`)
	c := start(t, podadmission.Compile(podadmission.Input{}, podadmission.Config{Writers: writers}), []string{"shop", "kube-system"}, "127.0.0.1:1")
	seen := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		user := rapid.SampledFrom(append([]string{"alice", "", "eks:vpc-resource-controller2", "system:node:n1"}, writers...)).Draw(t, "user")
		namespace := rapid.SampledFrom([]string{"shop", "kube-system"}).Draw(t, "namespace")
		before, after := annotations().Draw(t, "before"), annotations().Draw(t, "after")
		if len(after) == 0 {
			after = nil
		}
		is, was := pod(namespace, "p", nil), pod(namespace, "p", nil)
		is.Annotations, was.Annotations = after, before
		update := request{object: is, before: was, kind: "Pod", resource: "pods", namespace: namespace, user: user, operation: admission.Update}
		update.sub = rapid.SampledFrom([]string{"", "status", "resize", "ephemeralcontainers"}).Draw(t, "sub-resource")
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p", Annotations: after}, Target: corev1.ObjectReference{Name: "n1"}}
		for name, tt := range map[string]struct {
			request
			want error
		}{
			"create":  {request{object: is.DeepCopy(), kind: "Pod", resource: "pods", namespace: namespace, user: user, operation: admission.Create}, podeni.AdmitCreate(after)},
			"bind":    {request{object: binding, kind: "Binding", resource: "pods", sub: "binding", namespace: namespace, user: user, operation: admission.Create}, podeni.AdmitCreate(after)},
			"binding": {request{object: binding, kind: "Binding", resource: "bindings", namespace: namespace, user: user, operation: admission.Create}, podeni.AdmitCreate(after)},
			"update":  {update, podeni.AdmitUpdate(before, after, user, writers)},
		} {
			err := c.admit(t.Context(), tt.request)
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("%s by %q, %v to %v: %v, want %v", name, user, before, after, err, tt.want)
			}
			seen[err == nil]++
		}
	})
	if seen[true] < 20 || seen[false] < 20 {
		t.Errorf("%v: the check is not valid", seen)
	}
}

// A text that the API server evaluates has the value that it was written from.
func FuzzAWriterOfAnyText(f *testing.F) {
	for _, s := range []string{"x", "it's", `\`, "a\nb", `' in [] || true || '`, "é", "\U0001f600", "\x00", "${}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, writer string) {
		c := start(t, podadmission.Compile(podadmission.Input{}, podadmission.Config{Writers: []string{writer}}), []string{"shop"}, "127.0.0.1:1")
		for user, want := range map[string]bool{writer: true, writer + "x": false, "": writer == ""} {
			is := pod("shop", "p", nil)
			is.Annotations = map[string]string{vpc.AnnotationPodENI: "[]"}
			var was runtime.Object = pod("shop", "p", nil)
			err := c.admit(t.Context(), request{object: is, before: was, kind: "Pod", resource: "pods", namespace: "shop", user: user, operation: admission.Update})
			if valid := string([]rune(writer)) == writer; valid && (err == nil) != want {
				t.Errorf("writer %q, user %q: %v", writer, user, err)
			}
		}
	})
}
