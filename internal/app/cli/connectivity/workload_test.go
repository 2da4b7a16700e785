package connectivity

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/workload"
)

// local runs the real workload on the loopback device. The product does not link it, but
// Result must decode its output.
type local struct {
	Cluster
	log string
}

func (l *local) Exec(ctx context.Context, _, _ string, argv []string) (Output, error) {
	var out, err bytes.Buffer
	if code := workload.Run(ctx, argv, workload.Process{Stdout: &out, Stderr: &err}); code != 0 {
		return Output{out.String(), err.String()}, fmt.Errorf("status %d: %w", code, ErrExit)
	}
	return Output{out.String(), err.String()}, nil
}

func (l *local) Logs(context.Context, string, string, int64) (string, error) { return l.log, nil }

func (l *local) Pods(context.Context, string) ([]corev1.Pod, error) {
	p := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	p.Name = "stream-tcp-same-node"
	return []corev1.Pod{p}, nil
}

// freePorts returns ports of the loopback device without a listener.
func freePorts(t *testing.T) ports {
	t.Helper()
	var n [3]int
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		n[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports{HTTP: n[0], TCP: n[1], UDP: n[2]}
}

func newLocal(t *testing.T) (*Env, Peer) {
	t.Helper()
	p := freePorts(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
		done <- workload.Run(ctx, []string{"workload", "serve", "--http=" + at(p.HTTP), "--tcp=" + at(p.TCP), "--udp=" + at(p.UDP)},
			workload.Process{Stdout: t.Output(), Stderr: t.Output(), Environ: []string{"POD_NAME=server-1"}})
	}()
	t.Cleanup(func() { cancel(); <-done })
	loopback := netip.MustParseAddr("127.0.0.1")
	e := &Env{namespace: namespace{cluster: &local{}, timeout: 20 * time.Second}}
	server := Peer{Pod: "server-1", Addr: loopback, ports: p}
	e.Client, e.Server = []Peer{{Pod: "client-1", Addr: loopback}}, []Peer{server}
	for range 3000 { // up to a minute, until it listens
		if r, err := e.namespace.dial(t.Context(), e.Client[0], httpArgs(loopback, p.HTTP)...); err == nil && r.OK {
			return e, server
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case code := <-done:
			done <- code
			t.Fatalf("serve ended with %d", code)
		}
	}
	t.Fatal("serve does not answer")
	return nil, Peer{}
}

func TestTheRealWorkloadAcceptsOurArgumentsAndItsAnswersAreDecoded(t *testing.T) {
	e, server := newLocal(t)
	for _, load := range payloads(9001) {
		x := exchange{from: e.Client[0], to: server, what: load.what, args: load.args(server.Addr, server.ports)}
		if err := e.check(t.Context(), x); err != nil {
			t.Errorf("%s: %v", load.name, err)
		}
		x.to.Pod = "another"
		if err := e.check(t.Context(), x); err == nil || !strings.Contains(err.Error(), "want an answer from another") {
			t.Errorf("%s answered by the wrong pod: %v", load.name, err)
		}
	}
	closed := exchange{from: e.Client[0], to: server, what: "1 kB", args: httpArgs(server.Addr, freePorts(t).HTTP)}
	if err := e.check(t.Context(), closed); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port without a listener: %v", err)
	}
}

func TestTheRealWorkloadsStreamReportsAreDecoded(t *testing.T) {
	e, server := newLocal(t)
	for _, proto := range []string{"tcp", "udp"} {
		port := map[string]int{"tcp": server.TCP, "udp": server.UDP}[proto]
		out, err := e.namespace.read(t.Context(), "", "/workload", "dial", "stream", hostport(server.Addr, port),
			"--proto="+proto, "--duration=300ms", "--interval=20ms", "--report=100ms")
		if err != nil {
			t.Fatalf("%s: %v\n%s", proto, err, out)
		}
		lines := slices.Collect(strings.Lines(out))
		e.namespace.cluster.(*local).log = lines[len(lines)-1]
		if err := newStreams(e.namespace, e.Server).kept(t.Context()); err != nil {
			t.Errorf("%s: %v", proto, err)
		}
	}
}

// The texts have the kernel's format: a table of links, and a line of counters per CPU.
func TestDropsAreReadFromTheKernelsCounters(t *testing.T) {
	got := counters{}
	linkDrops("Inter-|   Receive                                                |  Transmit\n"+
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"+
		"  eth0: 1000 10 1 2 0 0 0 0 2000 20 3 4 0 0 0 0\n", got)
	trackDrops("entries  clashres found drop early_drop icmp_error\n00000010 00000000 00000001 00000002 0000000a 00000000\n00000010 00000000 00000001 00000003 00000000 00000000\n", got)
	want := counters{"eth0 rx errors": 1, "eth0 rx drops": 2, "eth0 tx errors": 3, "eth0 tx drops": 4, "conntrack drop": 5, "conntrack early_drop": 10}
	if !maps.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	after := maps.Clone(want)
	after["conntrack early_drop"]++
	after["eth1 rx drops"] = 7 // a link added meanwhile
	if more := grown(want, after); !slices.Equal(more, []string{"conntrack early_drop +1"}) {
		t.Errorf("increased: %v", more)
	}
}

// late is a stream that returns an empty log for the first reads.
type late struct {
	local
	emptyReads int
}

func (l *late) Logs(context.Context, string, string, int64) (string, error) {
	if l.emptyReads--; l.emptyReads >= 0 {
		return "", nil
	}
	return `{"ok":true,"stream":{"sent":5,"received":5}}`, nil
}

// The cases may finish before a stream's first report.
func TestTheFirstReportOfAStreamIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &late{emptyReads: 5}
		s := newStreams(namespace{cluster: l}, []Peer{{Pod: "server-1", Addr: netip.MustParseAddr("10.0.0.1"), ports: podPorts()}})
		if err := s.kept(t.Context()); err != nil {
			t.Error(err)
		}
		l.emptyReads = 1000
		if err := s.kept(t.Context()); err == nil || !strings.Contains(err.Error(), "stream-tcp-same-node has reported nothing for 10s") {
			t.Errorf("a stream that never reported: %v", err)
		}
	})
}
