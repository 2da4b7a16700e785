package kube_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

const (
	benchPods        = 35_000
	benchReplicaSets = 5_000
)

// benchPod is a pod as Deployments make them: ten labels, and a spec, managed fields and a
// status of the usual size.
func benchPod(i int) *corev1.Pod {
	set := i % benchReplicaSets
	app := fmt.Sprintf("service-%d", set/5)
	hash := fmt.Sprintf("%010x", uint64(set)*2654435761)
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("team-%d", set%200), Name: fmt.Sprintf("%s-%s-%05d", app, hash, i),
			UID: types.UID(fmt.Sprintf("%08x-1c2d-4e5f-8a9b-%012x", i, i)), ResourceVersion: fmt.Sprint(i + 1),
			CreationTimestamp: metav1.Unix(1_700_000_000+int64(i), 0),
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-prod", "app.kubernetes.io/version": "v1.2.3",
				"app.kubernetes.io/component": "api", "app.kubernetes.io/part-of": "shop", "app.kubernetes.io/managed-by": "Helm",
				"helm.sh/chart": app + "-1.2.3", "environment": "production", "team": fmt.Sprintf("team-%d", set%200), "pod-template-hash": hash,
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":"` + strings.Repeat("x", 1500) + `"}`)}},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("ip-10-0-%d-%d.us-west-2.compute.internal", i%1000/250, i%1000%250)},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: time.Unix(1_700_000_000+int64(i), 0)},
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)}},
		},
	}
	container := corev1.Container{
		Name: app, Image: "registry.example.com/shop/" + app + ":v1.2.3",
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
	}
	for n := range 20 {
		container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", n), Value: "some value of the usual length"})
	}
	p.Spec.Containers = []corev1.Container{container}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
	}
	return p
}

// recorded answers each request with a file by its path, in protobuf as the API server does,
// and keeps watches open. The files keep the server's objects out of the heap.
type recorded struct {
	dir    string
	stream bool
}

func (r recorded) file(resource, kind string) string {
	return filepath.Join(r.dir, resource+"."+kind)
}

func (r recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	resource, kind := filepath.Base(req.URL.Path), "list"
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/vnd.kubernetes.protobuf"}}, Request: req}
	if req.URL.Query().Get("watch") != "" {
		kind = "none"
		answer.Header.Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		if req.URL.Query().Get("sendInitialEvents") == "true" {
			kind = "watch"
		}
	}
	if kind == "watch" && resource == "pods" && !r.stream {
		answer.StatusCode, answer.Body = http.StatusUnprocessableEntity, io.NopCloser(strings.NewReader(""))
		return answer, nil
	}
	f, err := os.Open(r.file(resource, kind))
	if err != nil {
		return nil, err
	}
	answer.Body = f
	if kind != "list" {
		answer.Body = &open{File: f, ctx: req.Context()}
	}
	return answer, nil
}

// open is a file that does not end before the context.
type open struct {
	*os.File
	ctx context.Context
}

func (o *open) Read(b []byte) (int, error) {
	n, err := o.File.Read(b)
	if err == io.EOF {
		<-o.ctx.Done()
	}
	return n, err
}

func record(b *testing.B, r recorded, resource string, list kuberuntime.Object, n int, item func(int) kuberuntime.Object, last kuberuntime.Object) {
	b.Helper()
	codec := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	frame := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme) // of a stream: without an envelope
	raw := func(codec kuberuntime.Encoder, o kuberuntime.Object) []byte {
		var text bytes.Buffer
		if err := codec.Encode(o, &text); err != nil {
			b.Fatal(err)
		}
		return text.Bytes()
	}
	var events bytes.Buffer
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(&events)
	event := func(kind string, o kuberuntime.Object) {
		if _, err := frames.Write(raw(frame, &metav1.WatchEvent{Type: kind, Object: kuberuntime.RawExtension{Raw: raw(codec, o)}})); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n {
		event("ADDED", item(i))
	}
	event("BOOKMARK", last)
	for name, text := range map[string][]byte{"watch": events.Bytes(), "none": nil, "list": raw(codec, list)} {
		if err := os.WriteFile(r.file(resource, name), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

// recording makes the files of a cluster with one policy.
func recording(b *testing.B) recorded {
	b.Helper()
	r := recorded{dir: b.TempDir()}
	end := metav1.ObjectMeta{ResourceVersion: "100000", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "100000"}}
	for i := range benchPods {
		list.Items = append(list.Items, *benchPod(i))
	}
	pod := metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	record(b, r, "pods", list, benchPods, func(i int) kuberuntime.Object { return benchPod(i) }, &corev1.Pod{TypeMeta: pod, ObjectMeta: end})
	np := networkPolicy("a")
	np.UID, np.ResourceVersion = "uid-a", "1"
	last := networkPolicy("")
	last.ObjectMeta = end
	record(b, r, "networkpolicies", np, 1, func(int) kuberuntime.Object { return np }, last)
	ns := metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
	record(b, r, "namespaces", np, 200, func(i int) kuberuntime.Object {
		return &metav1.PartialObjectMetadata{TypeMeta: ns, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team-%d", i), Labels: map[string]string{"team": fmt.Sprint(i)}}}
	}, &metav1.PartialObjectMetadata{TypeMeta: ns, ObjectMeta: end})
	return r
}

func heapAfterGC() float64 {
	runtime.GC()
	runtime.GC() // cleanups and weak pointers of the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkFirstList measures the first list of 35,000 pods: its time, the heap at most during
// it and after it, and the size of the snapshot.
func BenchmarkFirstList(b *testing.B) {
	r := recording(b)
	for name, stream := range map[string]bool{"streamed": true, "one answer": false} {
		b.Run(name, func(b *testing.B) {
			r := r
			r.stream = stream
			for b.Loop() {
				firstList(b, r)
			}
		})
	}
}

func firstList(b *testing.B, r recorded) {
	b.StopTimer()
	client, err := kube.FromREST(&rest.Config{Host: "http://api.test", Transport: r})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "policy.json")
	changed := make(chan struct{}, 1)
	before, most := heapAfterGC(), 0.0
	b.StartTimer()
	o := kube.NewPolicyObjects(kube.PolicyOptions{Client: client, SnapshotPath: path, Log: quiet(), Changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	sample := time.NewTicker(5 * time.Millisecond)
	defer sample.Stop()
	for !o.Synced() || !o.Any() {
		select {
		case <-changed:
		case <-sample.C:
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, float64(m.HeapAlloc))
		}
	}
	b.StopTimer()
	taken := o.Take()
	if len(taken.Pods) != benchPods {
		b.Fatalf("%d pods", len(taken.Pods))
	}
	taken = kube.PolicyChanges{}
	var size int64
	for size == 0 {
		if f, err := os.Stat(path + ".peers"); err == nil {
			size = f.Size()
		}
		<-sample.C
	}
	b.ReportMetric((heapAfterGC()-before)/benchPods, "heap-B/pod")
	b.ReportMetric((most-before)/1e6, "peak-MB")
	b.ReportMetric(float64(size)/1e6, "snapshot-MB")
	stop()
	<-done
	began := time.Now()
	if again := kube.NewPolicyObjects(kube.PolicyOptions{Client: client, SnapshotPath: path, Log: quiet()}); len(again.Take().Pods) != benchPods {
		b.Fatal("the snapshot has other pods")
	}
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "load-ms")
	b.StartTimer()
}
