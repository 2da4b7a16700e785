package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// fleet is a cluster of a size that tests and benchmarks choose.
type fleet struct {
	pods, namespaces, policies, endpoints int
}

func large(policies int) fleet {
	return fleet{pods: 35000, namespaces: 350, policies: policies, endpoints: 110}
}

func (f fleet) namespace(n int) string { return fmt.Sprintf("namespace-%d", n%f.namespaces) }

// pod is the n-th pod; each namespace has ten apps.
func (f fleet) pod(n int) Pod {
	app := fmt.Sprintf("app-%d", n/f.namespaces%10)
	return Pod{
		Namespace: f.namespace(n), Name: fmt.Sprintf("%s-5d9c7b6f4-%05d", app, n), Node: fmt.Sprintf("node-%d", n%320),
		Labels:    labels.Set{"app": app, "app.kubernetes.io/part-of": f.namespace(n), "pod-template-hash": "5d9c7b6f4"},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})},
		Ports:     []NamedPort{{"http", TCP, 8080}, {"metrics", TCP, 9090}},
	}
}

// policy is the n-th policy: an app of a namespace accepts another app, a block and the
// monitoring of all namespaces. Version changes one port.
func (f fleet) policy(n, version int) Policy {
	namespace := f.namespace(n)
	app := func(n int) labels.Selector {
		return labels.SelectorFromSet(labels.Set{"app": fmt.Sprintf("app-%d", n%10)})
	}
	web := Rule{
		Peers: []Peer{{Pods: &PodSet{Namespace: namespace, Pods: app(n/f.namespaces + 1 + version%2)}}},
		Ports: []Port{{Protocol: TCP, Name: "http"}, {Protocol: TCP, First: uint16(8000 + version%1000), Last: uint16(8000 + version%1000)}},
	}
	block := Rule{Peers: []Peer{{Block: &Block{Prefix: netip.MustParsePrefix(fmt.Sprintf("172.16.%d.0/24", n%256))}}}, AnyPort: true}
	monitoring := Rule{
		Peers: []Peer{{Pods: &PodSet{Namespaces: labels.SelectorFromSet(labels.Set{"kind": "monitoring"})}}},
		Ports: []Port{{Protocol: TCP, Name: "metrics"}},
	}
	return Policy{
		Ref: Ref{KindNetworkPolicy, namespace, fmt.Sprintf("policy-%d", n)}, Tier: Namespaced, Subject: PodSet{Namespace: namespace, Pods: app(n / f.namespaces)},
		Isolates: [2]bool{Ingress: true}, Rules: [2][]Rule{Ingress: {web, block, monitoring}},
	}
}

// build returns an engine that has committed everything.
func (f fleet) build(l Limits) (*Engine, Change) {
	e := NewEngine(l)
	for n := range f.namespaces {
		kind := "app"
		if n%50 == 0 {
			kind = "monitoring"
		}
		e.SetNamespace(f.namespace(n), labels.Set{"kind": kind, "kubernetes.io/metadata.name": f.namespace(n)})
	}
	for n := range f.pods {
		e.SetPod(f.pod(n))
	}
	for n := range f.policies {
		e.SetPolicy(f.policy(n, 0))
	}
	for n := range f.endpoints {
		e.SetEndpoint(endpoint.ID(n+1), new(f.pod(n*320)).Ref())
	}
	return e, e.Commit()
}

func BenchmarkBuild(b *testing.B) {
	for _, policies := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			measured(b, func() int {
				before := heap()
				e, change := large(policies).build(DefaultLimits())
				operations := change.Len()
				change = Change{}
				b.ReportMetric(float64(heap()-before)/1e6, "heapMB")
				size := e.Size()
				b.ReportMetric(float64(size.Sets), "sets")
				b.ReportMetric(float64(size.Classes), "classes")
				b.ReportMetric(float64(size.Rows), "rows")
				_ = change
				return operations
			})
		})
	}
}

// measured runs f as a benchmark and reports the CPU time of the process, which other load
// on the machine alters less than the time.
func measured(b *testing.B, f func() (operations int)) {
	operations, before := 0, cpu()
	for b.Loop() {
		operations += f()
	}
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(operations)/float64(b.N), "operations/op")
}

func cpu() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkChangeOfAPolicy changes a policy that selects an endpoint.
func BenchmarkChangeOfAPolicy(b *testing.B) {
	for _, policies := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			f := large(policies)
			e, _ := f.build(DefaultLimits())
			version := 0
			measured(b, func() int {
				version++
				e.SetPolicy(f.policy(0, version))
				return e.Commit().Len()
			})
		})
	}
}

// BenchmarkChangeOfAnUnusedPolicy changes a policy that selects no endpoint of the node.
func BenchmarkChangeOfAnUnusedPolicy(b *testing.B) {
	f := large(10000)
	e, _ := f.build(DefaultLimits())
	version := 0
	measured(b, func() int {
		version++
		e.SetPolicy(f.policy(1, version))
		return e.Commit().Len()
	})
}

// BenchmarkNewPeer adds and deletes a pod of another node that is a peer of an endpoint.
func BenchmarkNewPeer(b *testing.B) {
	for _, policies := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			f := large(policies)
			e, _ := f.build(DefaultLimits())
			p := f.pod(f.pods)
			p.Namespace, p.Labels = f.namespace(0), f.pod(f.namespaces).Labels
			measured(b, func() int {
				e.SetPod(p)
				operations := e.Commit().Len()
				e.DeletePod(p.Ref())
				return operations + e.Commit().Len()
			})
		})
	}
}

// overlapping is a cluster of which every pod satisfies any of 16 selectors of a policy at
// random: 2^16 classes are possible.
func overlapping(pods int, l Limits) (*Engine, Change) {
	e := NewEngine(l)
	e.SetNamespace("n", nil)
	key := func(n int) string { return fmt.Sprintf("b%d", n) }
	for n := range pods {
		p := Pod{Namespace: "n", Name: fmt.Sprint(n), Labels: labels.Set{}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})}}
		for bit := range 16 {
			if n*40503>>bit&1 == 1 {
				p.Labels[key(bit)] = "1"
			}
		}
		e.SetPod(p)
	}
	p := Policy{Ref: Ref{KindNetworkPolicy, "n", "p"}, Tier: Namespaced, Subject: PodSet{Namespace: "n"}, Isolates: [2]bool{Ingress: true}}
	for bit := range 16 {
		p.Rules[Ingress] = append(p.Rules[Ingress], Rule{
			Peers: []Peer{{Pods: &PodSet{Namespace: "n", Pods: labels.SelectorFromSet(labels.Set{key(bit): "1"})}}},
			Ports: []Port{{Protocol: TCP, First: 80, Last: 80}},
		})
	}
	e.SetPolicy(p)
	small := p
	small.Ref.Name, small.Subject = "small", PodSet{Namespace: "n", Pods: labels.SelectorFromSet(labels.Set{key(0): "1"})}
	small.Rules = [2][]Rule{Ingress: {{AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 443, Last: 443}}}}}
	e.SetPolicy(small)
	e.SetEndpoint(1, PodRef{"n", "0"})
	e.SetEndpoint(2, PodRef{"n", "1"})
	return e, e.Commit()
}

func TestOverlappingSelectorsAreBounded(t *testing.T) {
	pods := 35000
	if testing.Short() {
		pods = 3500
	}
	limits := Limits{Classes: pods / 4, Rows: pods}
	e, change := overlapping(pods, limits)
	tables := NewTables()
	tables.Apply(change.All()...)
	size := e.Size()
	t.Logf("%+v; %d entries, %d rows, %d operations", size, len(tables.Classes), len(tables.Rows), change.Len())
	if size.Classes > limits.Classes || size.Rows > limits.Rows || len(tables.Rows) > limits.Rows {
		t.Errorf("%+v is past %+v", size, limits)
	}
	if len(tables.Classes) > size.Scopes*pods {
		t.Errorf("%d entries of %d scopes", len(tables.Classes), size.Scopes)
	}
	for n := range pods {
		a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		if got, _, _ := tables.Judge(1, Ingress, a, TCP, 80); got != (n*40503&0xffff != 0) {
			t.Fatalf("%s: %v", a, got)
		}
	}
	e.DeletePod(PodRef{"n", "7"})
	if change := e.Commit(); change.Len() != size.Scopes {
		t.Errorf("the end of a peer:\n%s", change)
	}
}

func BenchmarkOverlappingSelectors(b *testing.B) {
	for name, limits := range map[string]Limits{"bounded": DefaultLimits(), "unbounded": unlimited()} {
		b.Run(name, func(b *testing.B) {
			measured(b, func() int {
				before := heap()
				e, change := overlapping(35000, limits)
				operations := change.Len()
				change = Change{}
				b.ReportMetric(float64(heap()-before)/1e6, "heapMB")
				b.ReportMetric(float64(e.Size().Classes), "classes")
				b.ReportMetric(float64(e.Size().Scopes), "scopes")
				_ = change
				return operations
			})
		})
	}
}
