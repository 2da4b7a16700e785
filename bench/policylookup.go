package bench

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/test/testns"
)

const (
	lookupClasses = 64      // of peers
	lookupEntries = 1 << 20 // size of the map of peers, for each number of them
	lookupRepeat  = 20_000  // runs of one packet
	lookupPackets = 32      // of different peers, in a sample
)

// policyLookup measures a verdict about a new connection, which is denied for its port, so that
// every run of the same packet is judged again. The kernel runs the program that the rule of
// nftables calls. It has 100 to a million peers.
func policyLookup(r *run, o Options) (results []Result) {
	sizes := []int{100, 10_000, 100_000, 1_000_000}
	beds := make([]*lookups, len(sizes))
	for i, peers := range sizes {
		r.Logf("a pod with %d peers", peers)
		beds[i] = newLookups(r, peers)
	}
	hot, cold := make([][]float64, len(sizes)), make([][]float64, len(sizes))
	for range max(9, o.Rounds) {
		for i, b := range beds {
			hot[i] = append(hot[i], b.sample(lookupRepeat))
			cold[i] = append(cold[i], b.sample(1))
		}
	}
	for i, peers := range sizes {
		name := fmt.Sprintf("policy.lookup_ns.%d", peers)
		result := compared(name, "ns", pairs{hot[i], hot[0]}, budget{limit: 1.15, ofRatio: true})
		if i == 0 {
			result = single(name, "ns", quantile(hot[0], 0.5), budget{}, "")
		}
		result.note = strings.TrimPrefix(fmt.Sprintf("%s; one run of each peer alone %.0f", result.note, quantile(cold[i], 0.5)), "; ")
		results = append(results, result)
	}
	return results
}

// lookups is a datapath of one endpoint with peers.
type lookups struct {
	*run
	forward *ebpf.Program
	random  *rand.Rand
	peers   int
}

func lookupPod() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, 20}) }

func newLookups(r *run, peers int) *lookups {
	dir := r.TempDir()
	r.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	d, _, err := bpf.Open(bpf.Options{
		BPFFS: dir, Dir: "tl-bench", Netns: testns.New(r, "node").Open(r), Log: slog.New(slog.DiscardHandler), Sizes: map[string]uint32{"tl_classes": lookupEntries},
	})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := d.Close(); err != nil {
			r.Errorf("%w", err)
		}
	})
	if err := fill(d, peers); err != nil {
		r.Fatal(err)
	}
	forward, err := ebpf.LoadPinnedProgram(d.ForwardPath(), nil)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := forward.Close(); err != nil {
			r.Errorf("%w", err)
		}
	})
	return &lookups{run: r, forward: forward, random: rand.New(rand.NewPCG(1, uint64(peers))), peers: peers}
}

// fill writes an endpoint that is isolated for ingress, and allows its peers one port.
func fill(d *bpf.Datapath, peers int) error {
	const set, id = bpf.SetFirst, endpoint.ID(1)
	keys, values := make([]bpf.ClassKey, peers), make([]uint32, peers)
	for i := range peers {
		keys[i], values[i] = bpf.ClassKey{Scope: set, Address: bpf.AddressOf(peerAddress(i))}, uint32(1+i%lookupClasses)
	}
	if err := d.Maps.Classes.PutAll(keys, values); err != nil {
		return err
	}
	for class := range lookupClasses {
		if err := d.Maps.Rows.Put(bpf.RowKey{Set: set, Class: uint32(class + 1), Direction: bpf.Ingress}, 1<<1); err != nil {
			return err
		}
	}
	if err := d.Maps.Ports.Put(bpf.PortKey{Ports: set, Protocol: unix.IPPROTO_TCP, Port: 80}, 1); err != nil {
		return err
	}
	if err := d.Maps.Sets.Put(set, bpf.Set{Scope: set, Ports: set, Isolated: 1 << bpf.Ingress}); err != nil {
		return err
	}
	d.State.SetInForce(id, set)
	return d.Maps.Addresses.Put(bpf.AddressOf(lookupPod()), uint32(id))
}

// sample is the median of the nanoseconds of a verdict about packets of different peers, each of
// which is judged a number of times one after the other.
func (l *lookups) sample(repeat int) float64 {
	var all []float64
	for range lookupPackets {
		from := peerAddress(l.random.IntN(l.peers))
		for port, want := range map[uint16]uint32{81: 0, 80: 1} {
			frame := append(append(make([]byte, 12), 8, 0), segment(from, lookupPod(), uint16(1024+l.random.IntN(60000)), port)...)
			runs := repeat
			if want == 1 {
				runs = 1 // only proves that the peer is known
			}
			verdict, each, err := l.forward.Benchmark(frame, runs, nil)
			if err != nil {
				l.Fatal(err)
			}
			if verdict != want {
				l.Fatalf("%s to port %d: verdict %d, want %d", from, port, verdict, want)
			}
			if want == 0 {
				all = append(all, float64(each)/float64(time.Nanosecond))
			}
		}
	}
	return quantile(all, 0.5)
}
