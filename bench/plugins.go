package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

const (
	perRound = 10 // pairs of single calls in a round
	parallel = 10 // ADDs at once in cni.add10
	bursts   = 3  // of them in a round
)

// plugin is a CNI plugin, called as container runtimes do: a process in the node's
// namespace with the configuration on stdin.
type plugin struct {
	program string
	conf    []byte
	dir     string // CNI_PATH: directory of its IPAM plugin
	host    *testns.NS
	label   string
	serial  atomic.Int64
	pods    *apiServer // has the pods of ADDs; nil: the node has no API server
}

// container is a network namespace, created before the measurement and used by one
// container after another.
type container struct {
	ns *testns.NS
	id string
}

// fresh gives the namespace to a new container.
func (p *plugin) fresh(c *container) { c.id = fmt.Sprint(p.label, p.serial.Add(1)) }

// call runs the plugin and returns how long it took from exec to exit.
func (p *plugin) call(command string, c *container) (took time.Duration, err error) {
	cmd := exec.Command(p.program)
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.ns.Path, "CNI_IFNAME=eth0", "CNI_PATH=" + p.dir,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + c.id + ";K8S_POD_UID=uid-" + c.id,
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
	var output strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(p.conf), &output, &output
	err = p.host.Run(func() error {
		began := time.Now()
		err := cmd.Start()
		if err == nil {
			err = cmd.Wait()
		}
		took = time.Since(began)
		return err
	})
	if err != nil {
		return took, fmt.Errorf("%s %s of %s: %w: %s", filepath.Base(p.program), command, c.id, err, output.String())
	}
	return took, nil
}

// each calls the plugin for one container after the other and returns the milliseconds of
// each call.
func (p *plugin) each(r *run, command string, containers []*container) []float64 {
	var all []float64
	for _, c := range containers {
		all = append(all, p.one(r, command, c))
	}
	return all
}

func (p *plugin) one(r *run, command string, c *container) float64 {
	if command == "ADD" {
		p.fresh(c)
		if p.pods != nil {
			p.pods.bind(c.id)
		}
	}
	took, err := p.call(command, c)
	if err != nil {
		r.Fatal(err)
	}
	if command == "DEL" && p.pods != nil {
		p.pods.unbind(c.id)
	}
	return milliseconds(took)
}

// burst adds all containers at once and returns ADDs per second.
//
// A goroutine that waits for a plugin in a system call keeps its P until the runtime's
// monitor takes it, up to 10 ms later. With one P per processor, two of ten plugins started,
// and the others 17 ms after them. Calls one after the other do not need more Ps, which cost
// each of them 0.4 ms.
func (p *plugin) burst(r *run, containers []*container) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2 * len(containers)))
	done := make(chan error, len(containers))
	began := time.Now()
	for _, c := range containers {
		p.fresh(c)
		go func() { _, err := p.call("ADD", c); done <- err }()
	}
	var failed error
	for range containers {
		if err := <-done; err != nil {
			failed = err
		}
	}
	if failed != nil {
		r.Fatal(failed)
	}
	return float64(len(containers)) / time.Since(began).Seconds()
}

// plugins measures Trunkline's plugin and the reference in turns.
func plugins(r *run, o Options) []Result {
	n := node.New(r, node.Config{Type: "m5.xlarge"})
	n.StartAgent("warm-ips=56", "log-level=info")
	n.UntilReady()
	t := turns{run: r, sides: [2]*plugin{trunklinePlugin(r, n), referencePlugin(r, n)}}
	t.pods = [2][]*container{containers(r, 2*perRound), containers(r, 2*perRound)}
	var add, del, rate pairs
	for i := range o.Rounds {
		r.Logf("round %d of %d", i+1, o.Rounds)
		rest(n, 2*perRound)
		t.each("ADD", &add)
		t.each("DEL", &del)
		for range bursts {
			rest(n, parallel)
			t.burst(&rate)
		}
	}
	return []Result{
		compared("cni.add.p50_ms", "ms", add, budget{limit: 0.40, ofRatio: true}),
		compared("cni.del.p50_ms", "ms", del, budget{limit: 0.3, ofRatio: true}),
		compared("cni.add10.per_s", "1/s", rate, budget{limit: 2.3, ofRatio: true, least: true}),
	}
}

// turns calls two plugins alternately, each with containers of its own. The one that is
// called first changes with each pair.
type turns struct {
	*run
	sides [2]*plugin // ours, the reference
	pods  [2][]*container
	made  int // pairs
}

// pair measures both sides, one directly after the other.
func (t *turns) pair(into *pairs, measure func(side int) float64) {
	first := t.made % 2
	t.made++
	var took [2]float64
	for _, side := range []int{first, 1 - first} {
		took[side] = measure(side)
	}
	into.ours, into.theirs = append(into.ours, took[0]), append(into.theirs, took[1])
}

// each measures single calls, in milliseconds. A turn is two calls, and the second one is
// measured: the first finds the processor's caches filled by the other side, which costs
// Trunkline's plugin 0.6 ms, and the reference too little to be seen.
func (t *turns) each(command string, into *pairs) {
	for i := 0; i < len(t.pods[0]); i += 2 {
		t.pair(into, func(side int) float64 {
			t.sides[side].one(t.run, command, t.pods[side][i])
			return t.sides[side].one(t.run, command, t.pods[side][i+1])
		})
	}
}

// burst adds ten containers of each side at once, in ADDs per second, and deletes them.
func (t *turns) burst(into *pairs) {
	t.pair(into, func(side int) float64 { return t.sides[side].burst(t.run, t.pods[side][:parallel]) })
	for side, p := range t.sides {
		p.each(t.run, "DEL", t.pods[side][:parallel])
	}
}

// rest waits until the links of deleted pods are gone, so that their namespaces can be
// used again, and the pool has free addresses for the next ADDs.
func rest(n *node.Node, free int) {
	n.Until("no quarantined and enough free addresses", func() error {
		b := n.Ledger()
		if left := node.Count(b, "quarantined"); left > 0 || b.Pool.Free < free {
			return fmt.Errorf("%d quarantined, %d free", left, b.Pool.Free)
		}
		return nil
	})
}

// trunklinePlugin is the plugin that the agent installed, with the configuration that
// libcni derives from the agent's conflist.
func trunklinePlugin(r *run, n *node.Node) *plugin {
	_, list := n.CNI()
	conf := map[string]any{}
	if err := json.Unmarshal(list.Plugins[0].Bytes, &conf); err != nil {
		r.Fatal(err)
	}
	conf["name"], conf["cniVersion"] = list.Name, list.CNIVersion
	raw, err := json.Marshal(conf)
	if err != nil {
		r.Fatal(err)
	}
	dir := filepath.Join(n.Dir, "bin")
	return &plugin{program: filepath.Join(dir, list.Plugins[0].Network.Type), conf: raw, dir: dir, host: n.NS, label: "ours"}
}

// referencePlugin is upstream's ptp with host-local, on a node of its own. Both programs are
// copies of what was built, as on nodes, and as the agent installs Trunkline's plugin: a copy
// starts faster than the file that Go's linker wrote, which has its pages one by one in the
// kernel's page cache.
func referencePlugin(r *run, n *node.Node) *plugin {
	dir := r.TempDir()
	for name, pkg := range map[string]string{"ptp": "main/ptp", "host-local": "ipam/host-local"} {
		built, program := filepath.Join(dir, name+".built"), filepath.Join(dir, name)
		n.Build("lab/kube", "github.com/containernetworking/plugins/plugins/"+pkg, built)
		raw, err := os.ReadFile(built)
		if err == nil {
			err = os.WriteFile(program, raw, 0o755)
		}
		if err != nil {
			r.Fatal(err)
		}
	}
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		r.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "reference", "type": "ptp", "mtu": 9001,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": state,
			"ranges": [][]map[string]string{{{"subnet": "10.200.0.0/16"}}}, "routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	})
	if err != nil {
		r.Fatal(err)
	}
	return &plugin{program: filepath.Join(dir, "ptp"), conf: raw, dir: dir, host: testns.New(r, "peer"), label: "theirs"}
}
