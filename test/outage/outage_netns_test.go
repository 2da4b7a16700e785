//go:build netns

package outage

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

func TestMain(m *testing.M) {
	node.ServeAgent()
	os.Exit(m.Run())
}

// spare is how many pods, beside the two of the stream, the API server has before an
// outage begins: one for each ADD that the test makes.
const spare = 3

// rig is a node with a running agent, two pods with a stream, and an API server.
type rig struct {
	*node.Node
	t      *testing.T
	server *server
	flags  []string
	stream *stream
	pods   map[string]*node.Pod // by name: ADD succeeded, DEL not requested
	next   int                  // of the spare pods
}

func newRig(t *testing.T, s service, flags ...string) *rig {
	t.Helper()
	r := &rig{Node: node.New(t, node.Config{}), t: t, pods: map[string]*node.Pod{}}
	if s.from == webIdentity {
		byWebIdentity(t, r.Node)
	}
	r.server = serveAPI(t, r.Node)
	r.server.Put("/api/v1/nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/" + string(r.instance())}})
	for _, name := range append(firstPods(), spares()...) {
		r.bind(name)
	}
	r.server.runsAgent()
	r.flags = []string{node.OwnPodFlag + "=agent", node.APIServerFlag + "=" + r.server.url, node.RootFlag + "=" + r.firmware(), "warm-ips=2", "headroom=0"}
	r.flags = append(r.flags, flags...)
	r.StartAgent(r.flags...)
	r.UntilReady()
	for _, name := range firstPods() {
		r.add(name)
	}
	r.stream = startStream(t, r.pods["a"], r.pods["b"])
	r.Until("the snapshot has every pod, and the pool has grown", func() error {
		raw, err := os.ReadFile(filepath.Join(r.Dir, "state", "cluster.json"))
		ledger := r.Ledger()
		// An interface that is not attached yet has free addresses which no pod can get.
		if err == nil && (strings.Count(string(raw), "uid-") < len(firstPods())+spare || node.Count(ledger, "free") < 2 || len(ledger.Pool.Steps) > 0) {
			err = fmt.Errorf("%d free addresses, steps %v; %s", node.Count(ledger, "free"), ledger.Pool.Steps, raw)
		}
		return err
	})
	return r
}

// bind creates the object of a pod, bound to the node.
func (r *rig) bind(name string) {
	r.server.Put("/api/v1/pods", &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: "node1"},
	})
}

// firstPods are the pods that run before an outage begins: two with the stream, and one to
// delete after the restart and one after the roll.
func firstPods() []string { return []string{"a", "b", "restart", "roll"} }

func spares() (names []string) {
	for i := range spare {
		names = append(names, fmt.Sprint("spare", i))
	}
	return names
}

func (r *rig) instance() vpc.InstanceID { return r.State().InstanceNamed("node1").ID }

// firmware is a root directory with the instance's id where instances of the Nitro system
// have it.
func (r *rig) firmware() string {
	r.t.Helper()
	root := filepath.Join(r.Dir, "root")
	dir := filepath.Join(root, "sys/devices/virtual/dmi/id")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "board_asset_tag"), []byte(r.instance()+"\n"), 0o444)); err != nil {
		r.t.Fatal(err)
	}
	return root
}

func (r *rig) plan(p faults.Plan) {
	r.t.Helper()
	if err := r.Faults().Set(p); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) add(name string) {
	r.t.Helper()
	p := r.NewPod(name)
	if err := r.Add(p); err != nil {
		r.t.Fatalf("ADD %s: %v", name, err)
	}
	for other, o := range r.pods {
		if o.Addr == p.Addr {
			r.t.Fatalf("%s is held twice: by %s and %s", p.Addr, other, name)
		}
	}
	r.pods[name] = p
}

func (r *rig) del(name string) {
	r.t.Helper()
	if err := r.Del(r.pods[name]); err != nil {
		r.t.Fatalf("DEL %s: %v", name, err)
	}
	delete(r.pods, name)
}

// change is a way in which one agent follows another.
type change struct {
	name string
	do   func(r *rig)
}

func changes() []change {
	return []change{
		{"restart", func(r *rig) { r.Kill(); r.StartAgent(r.flags...); r.del("restart") }},
		{"roll", func(r *rig) { r.roll(); r.del("roll") }},
		{"reboot", (*rig).reboot},
	}
}

// roll replaces the agent as a DaemonSet does: the init container runs, and the next agent
// starts while the first one is still stopping.
func (r *rig) roll() {
	r.t.Helper()
	initial := r.Command("init=" + r.PluginPath())
	if err := r.NS.Run(initial.Start); err != nil {
		r.t.Fatal(err)
	}
	if err := initial.Wait(); err != nil {
		r.t.Fatalf("init: %v", err)
	}
	before := r.Agent
	r.StartAgent(r.flags...)
	after := r.Agent
	r.Agent = before
	r.Stop()
	r.Agent = after
	if _, err := os.Stat(r.Checkpoint()); !errors.Is(err, os.ErrNotExist) {
		r.t.Errorf("the agent left the node although its DaemonSet runs on it: checkpoint %v", err)
	}
}

// reboot reboots the machine: the pods' sandboxes are gone, and the runtime makes them again.
// It deletes the sandboxes of the earlier boot with and without the path of their namespace.
func (r *rig) reboot() {
	r.t.Helper()
	if err := r.stream.stop(); err != nil {
		r.t.Errorf("the stream broke before the reboot: %v", err)
	}
	r.Kill()
	r.Reboot()
	r.StartAgent(r.flags...)
	r.pods["a"].RT.NetNS = ""
	for name := range r.pods {
		r.del(name)
	}
}

// serves checks that the node serves now, whatever does not answer, within bound.
func (r *rig) serves(bound time.Duration) {
	r.t.Helper()
	began := time.Now()
	r.Until("STATUS", func() error {
		if took := time.Since(began); took > bound {
			r.t.Fatalf("no agent serves after %s", took)
		}
		cni, list := r.CNI()
		return errors.Join(r.Get("/readyz", nil), cni.GetStatusNetworkList(r.t.Context(), list))
	})
	name := spares()[r.next]
	r.next++
	r.add(name)
	if err := r.pods[name].Ping(netip.MustParseAddr("10.0.0.1")); err != nil {
		r.t.Error(err)
	}
	r.del(name)
}

// says checks that the agent reports a service that does not answer, and since when it
// knows what it knows of the node.
func (r *rig) says(s service, k kind) {
	r.t.Helper()
	if k == slow && s.name != "instance metadata" && s.from != instanceRole {
		return // it answers, late, and clients wait longer than that
	}
	r.Until(s.name+" is reported", func() error {
		ledger := r.Ledger()
		for _, o := range ledger.Outages {
			if o.Service == s.name && o.Prevents != "" && !o.Since.IsZero() {
				return nil
			}
		}
		return fmt.Errorf("outages %v", ledger.Outages)
	})
	if facts := r.Ledger().Facts; len(facts) != 5 || slices.ContainsFunc(facts, func(f introspection.Fact) bool { return f.Read.IsZero() }) {
		r.t.Errorf("facts %v", facts)
	}
}

// converges checks, after the outage, that node, ledger and EC2 agree.
func (r *rig) converges() {
	r.t.Helper()
	began := time.Now()
	r.plan(faults.Plan{})
	r.server.failing.Store(nil)
	r.Until("everything agrees after the outage", func() error {
		ledger := r.Ledger()
		var problems error
		if len(ledger.Outages) > 0 || len(ledger.Pool.Steps) > 0 || node.Count(ledger, "free") < 2 || node.Count(ledger, "assigned") != len(r.pods) {
			problems = fmt.Errorf("outages %v, steps %v, %d free, %d assigned", ledger.Outages, ledger.Pool.Steps, node.Count(ledger, "free"), node.Count(ledger, "assigned"))
		}
		have := map[netip.Addr]bool{}
		for _, e := range ledger.ENIs {
			for _, a := range e.Addresses {
				have[a.Address] = true
			}
		}
		for id, i := range r.State().Interfaces {
			if i.Attachment == nil {
				problems = errors.Join(problems, fmt.Errorf("%s is attached to no instance: it leaked", id))
			}
			for _, a := range i.IPv4.Addresses[1:] {
				if !have[a] {
					problems = errors.Join(problems, fmt.Errorf("%s of %s is not in the ledger", a, id))
				}
				delete(have, a)
			}
		}
		for a := range have {
			problems = errors.Join(problems, fmt.Errorf("%s is in the ledger and not at EC2", a))
		}
		return problems
	})
	r.t.Logf("agrees %s after the outage", time.Since(began).Round(time.Millisecond))
}

// serveWithin bounds the start of an agent that serves from its journal. Learning took as
// long as the outage. The bound is long for machines under load.
const serveWithin = 20 * time.Second

func TestAnOutageOfOneServiceStopsNoPod(t *testing.T) {
	t.Parallel()
	for _, s := range services() {
		for _, k := range s.kinds {
			t.Run(s.title()+"/"+string(k), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, s)
				s.fail(r, k)
				for _, c := range changes() {
					t.Log(c.name)
					c.do(r)
					r.serves(serveWithin)
					r.says(s, k)
				}
				r.converges()
			})
		}
	}
}
