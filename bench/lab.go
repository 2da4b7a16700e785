package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/workload"
	"github.com/trunkline/trunkline/sim/faults"
)

const (
	crowd  = 100 // pods
	settle = 15 * time.Second
	idle   = 30 * time.Second
)

// bed is a lab driven by bin/trunkline-lab.
type bed struct {
	*run
	source string
	name   string // of the lab; no user has one of this name
}

// lab measures a lab of three nodes: its start, and 100 pods on it.
func lab(r *run, o Options) []Result {
	b := bed{r, o.Source, fmt.Sprintf("bench-%08x", rand.Uint32())}
	b.must(nil, "build")
	b.Cleanup(func() { b.down() })
	r.Logf("start lab %s", b.name)
	began := time.Now()
	b.must(nil, "up")
	up := time.Since(began)
	b.must([]byte(workload.Crowd), "kubectl", "apply", "-f", "-")
	seen := len(b.calls())
	r.Logf("0 to %d pods", crowd)
	began = time.Now()
	b.must(nil, "kubectl", "scale", "deployment/crowd", "--replicas="+strconv.Itoa(crowd))
	b.must(nil, "kubectl", "wait", "deployment/crowd", "--for=jsonpath={.status.readyReplicas}="+strconv.Itoa(crowd), "--timeout=5m")
	ready := time.Since(began)
	calls := b.calls()[seen:]
	r.Logf("idle for %s", settle+idle)
	b.wait(settle)
	before, start := b.agents(), time.Now()
	b.wait(idle)
	after, span := b.agents(), time.Since(start)
	var rss, cpu float64
	for pid, p := range after {
		rss = max(rss, float64(p.rss)/(1<<20))
		cpu = max(cpu, 100*(p.cpu-before[pid].cpu).Seconds()/span.Seconds())
	}
	perNode := fmt.Sprintf("highest of %d nodes", len(after))
	return []Result{
		single("pods100.ready_s", "s", ready.Seconds(), budget{}, "from scale to 100 ready on 3 nodes"),
		single("pods100.ec2_calls", "calls", float64(len(calls)), budget{}, byKind(calls)),
		single("agent.rss_mib", "MiB", rss, budget{limit: 60}, perNode),
		single("agent.idle_cpu_pct", "%", cpu, budget{limit: 0.5}, perNode+fmt.Sprintf(", over %s", idle)),
		single("lab.up_s", "s", up.Seconds(), budget{limit: 20}, "binaries built"),
	}
}

// byKind counts describing and changing calls.
func byKind(calls []faults.Record) string {
	describes := 0
	for _, c := range calls {
		if strings.HasPrefix(c.Action, "Describe") {
			describes++
		}
	}
	return fmt.Sprintf("%d changing, %d describing, until ready", len(calls)-describes, describes)
}

// lab runs trunkline-lab, and returns what it prints.
func (b bed) lab(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.source, "bin", "trunkline-lab"), args...)
	cmd.Dir = b.source
	cmd.Env = append(os.Environ(), "TRUNKLINE_LAB="+b.name)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("trunkline-lab %s: %w\n%s%s", strings.Join(args, " "), err, out, &problems)
	}
	return out, nil
}

// output is what a command prints that has to succeed.
func (b bed) output(args ...string) []byte {
	out, err := b.lab(b.ctx, nil, args...)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// must is lab for commands that have to succeed.
func (b bed) must(stdin []byte, args ...string) {
	if _, err := b.lab(b.ctx, stdin, args...); err != nil {
		b.Fatal(err)
	}
}

// down removes the lab, also after an interrupt.
func (b bed) down() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), 3*time.Minute)
	defer cancel()
	if _, err := b.lab(ctx, nil, "down"); err != nil {
		b.Errorf("%w", err)
	}
}

func (b bed) status() daemon.Status {
	s, err := daemon.NewClient(daemon.StateDir(b.name)).Status(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// calls returns the EC2 calls from the log of the embedded VPC.
func (b bed) calls() (calls []faults.Record) {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(b.status().Endpoints.Admin + "/calls")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	var all []faults.Record
	if err := json.Unmarshal(raw, &all); err != nil {
		b.Fatalf("decode the call log: %w", err)
	}
	for _, c := range all {
		if c.Service == "ec2" {
			calls = append(calls, c)
		}
	}
	return calls
}

// process is an agent's resource usage from /proc.
type process struct {
	rss int64 // bytes
	cpu time.Duration
}

// agents returns the agents' processes by their directory in /proc, one for each node.
func (b bed) agents() map[string]process {
	namespaces := map[string]bool{}
	for _, n := range b.status().Nodes {
		link, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(n.PID), "ns/net"))
		if err != nil {
			b.Fatal(err)
		}
		namespaces[link] = true
	}
	found := map[string]process{}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.Fatal(err)
	}
	for _, dir := range dirs {
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // a process may end meanwhile
		link, _ := os.Readlink(filepath.Join(dir, "ns/net"))
		if strings.HasPrefix(string(command), "/trunkline\x00agent") && namespaces[link] {
			p, err := readProcess(dir)
			if err != nil {
				b.Fatal(err)
			}
			found[dir] = p
		}
	}
	if len(found) != len(namespaces) {
		b.Fatalf("%d agents on %d nodes", len(found), len(namespaces))
	}
	return found
}

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, 100 on Linux.
const clockTick = time.Second / 100

// readProcess reads /proc/PID/statm and stat; see proc(5).
func readProcess(dir string) (p process, err error) {
	statm, err := os.ReadFile(filepath.Join(dir, "statm"))
	if err != nil {
		return p, err
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, err
	}
	var pages, user, system int64
	if _, err = fmt.Sscanf(string(statm), "%d %d", new(int64), &pages); err != nil {
		return p, fmt.Errorf("read %s/statm: %w", dir, err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // after the program's name
	fields := strings.Fields(rest)                // from the third field on
	if len(fields) < 13 {
		return p, fmt.Errorf("read %s/stat: %q", dir, stat)
	}
	if _, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return p, fmt.Errorf("read %s/stat: %w", dir, err)
	}
	return process{rss: pages * int64(os.Getpagesize()), cpu: time.Duration(user+system) * clockTick}, nil
}
