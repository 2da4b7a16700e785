//go:build netns

package bpf

import (
	"net/netip"
	"testing"
	"time"
)

// BenchmarkAttach attaches both programs of a pod to a link without filters, as an ADD does.
func BenchmarkAttach(b *testing.B) {
	w, ns, _ := attachable(b)
	links := make([]int, 64)
	for i := range links {
		links[i] = veth(b, ns, "p"+string(rune('A'+i)))
	}
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		link := links[i%len(links)]
		must(b, w.Attach(link))
		b.StopTimer()
		must(b, w.links.QdiscDel(clsact(link)))
		b.StartTimer()
	}
}

// BenchmarkReplace replaces both programs of a pod.
func BenchmarkReplace(b *testing.B) {
	w, ns, _ := attachable(b)
	link := veth(b, ns, "a")
	must(b, w.Attach(link))
	for b.Loop() {
		must(b, w.Attach(link))
	}
}

// BenchmarkAttached lists the filters of 64 pods.
func BenchmarkAttached(b *testing.B) {
	w, ns, _ := attachable(b)
	for i := range 64 {
		must(b, w.Attach(veth(b, ns, "p"+string(rune('A'+i)))))
	}
	for b.Loop() {
		if all, err := w.Attached(); err != nil || len(all) != 64 {
			b.Fatal(len(all), err)
		}
	}
}

// BenchmarkOpen loads the programs.
func BenchmarkOpen(b *testing.B) {
	dir := bpffs(b)
	for b.Loop() {
		d, _, err := Open(options(dir))
		must(b, err)
		b.StopTimer()
		must(b, d.Remove())
		must(b, d.Close())
		b.StartTimer()
	}
}

// BenchmarkForward runs the verdict in the kernel, in ns per packet. The program itself takes what
// it takes more than guard, of which the time is that of a test run.
func BenchmarkForward(b *testing.B) {
	w := newWorld(b)
	a, c, out := addr("10.0.0.1"), addr("10.0.0.2"), addr("192.0.2.1")
	w.set(16, Ingress, Egress)
	must(b, w.Maps.Classes.Put(ClassKey{16, AddressOf(out)}, 1))
	must(b, w.Maps.Prefixes.Put(PrefixKeyOf(16, netip.MustParsePrefix("198.51.100.0/24")), 1))
	must(b, w.Maps.Ports.Put(PortKey{Ports: 16, Protocol: protoTCP, Port: 80}, 1))
	w.row(16, Egress, 1, 1)
	w.endpoint(1, 16, a)
	w.endpoint(2, SetOpen, c)
	const repeat = 20000
	for _, bench := range []struct {
		what    string
		program string
		packet  []byte
	}{
		{"nothing", guard, ip(a, out, tcp(1, 80, ack))},
		{"without policies", forward, ip(c, out, tcp(1, 80, ack))},
		{"connection", forward, ip(a, out, tcp(1, 80, ack))},
		{"known connection", knownOut, ip(a, out, tcp(1, 80, ack))},
		{"deny by class", forward, ip(a, out, tcp(1, 81, syn))},
		{"deny by prefix", forward, ip(a, addr("198.51.100.1"), tcp(1, 81, syn))},
		{"judge a new connection", judge, ip(a, out, tcp(1, 80, syn))},
	} {
		b.Run(bench.what, func(b *testing.B) {
			best := time.Hour
			for b.Loop() {
				_, each, err := w.programs[bench.program].Benchmark(ether(bench.packet), repeat, nil)
				must(b, err)
				best = min(best, each)
			}
			b.ReportMetric(float64(best.Nanoseconds()), "ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}
