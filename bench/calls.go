package bench

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/node"
)

const (
	wave    = 40 // pods of ec2.calls_0_40_0
	watched = 5 * time.Minute
	// settling bounds the wait until a node has released what it does not need.
	settling = 15 * time.Minute
)

// ec2Calls counts the calls of one node's agent: while 40 pods come and go, and then while
// nothing happens.
func ec2Calls(r *run, o Options) []Result {
	n := node.New(r, node.Config{Type: "m5.xlarge"})
	n.StartAgent("cool-down=30s", "log-level=info")
	n.UntilReady()
	w := waves{run: r, node: n}
	w.until("the warm pool", func() error { return w.has(1) })
	before := len(w.calls(0))
	w.up(wave)
	w.until("an address for every pod", func() error { return w.has(4) })
	w.down()
	began := time.Now()
	w.until("the release of what is idle", func() error { return w.has(1) })
	took := time.Since(began).Round(time.Second)
	made := w.calls(before)
	r.Logf("idle for %s", watched)
	began = time.Now()
	w.sleep(watched)
	seen := len(w.calls(before)) - len(made)
	hourly := float64(seen) * float64(time.Hour) / float64(time.Since(began))
	day := simulatedDay(r, o)
	return []Result{
		single("ec2.calls_0_40_0", "calls", float64(len(made)), budget{limit: 18}, fmt.Sprintf("%s; settled %s after the last pod", counted(made), took)),
		single("ec2.idle_reads_per_hour", "1/h", max(day, hourly), budget{limit: 6}, fmt.Sprintf("%.3g on a simulated day; %d calls in %s", day, seen, watched)),
	}
}

// waves are pods that come to a node and go.
type waves struct {
	*run
	node *node.Node
	pods []*node.Pod
}

// up binds pods to the node, and adds them one by one.
func (w *waves) up(count int) {
	w.Logf("0 to %d pods on one node", count)
	var names []string
	for i := range count {
		names = append(names, fmt.Sprint("wave", i))
	}
	w.node.Bind(names...)
	for _, name := range names {
		p := w.node.NewPod(name)
		if err := w.node.Add(p); err != nil {
			w.Fatal(err)
		}
		w.pods = append(w.pods, p)
	}
}

func (w *waves) down() {
	w.Logf("%d to 0 pods", len(w.pods))
	w.node.Bind()
	for _, p := range w.pods {
		if err := w.node.Del(p); err != nil {
			w.Fatal(err)
		}
	}
}

// has returns an error unless the node has that many interfaces and no step to take.
func (w *waves) has(interfaces int) error {
	ledger := w.node.Ledger()
	if len(ledger.ENIs) != interfaces || len(ledger.Pool.Steps) > 0 || ledger.Pool.Free == 0 {
		return fmt.Errorf("%d interfaces, steps %v, %d free", len(ledger.ENIs), ledger.Pool.Steps, ledger.Pool.Free)
	}
	return nil
}

func (w *waves) until(what string, ok func() error) {
	for began := time.Now(); ; w.sleep(time.Second) {
		err := ok()
		if err == nil {
			return
		}
		if time.Since(began) > settling {
			w.Fatalf("%s: %v", what, err)
		}
	}
}

func (w *waves) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.ctx.Done():
		w.Fatal(w.ctx.Err())
	}
}

// calls are the EC2 calls after the first of them.
func (w *waves) calls(first int) (calls []faults.Record) {
	for _, c := range w.node.Calls().Since(0, "") {
		if c.Service == "ec2" {
			calls = append(calls, c)
		}
	}
	return calls[min(first, len(calls)):]
}

// counted names the calls, and how many EC2 refused.
func counted(calls []faults.Record) string {
	count, refused := map[string]int{}, 0
	for _, c := range calls {
		count[c.Action]++
		if c.Code != "" {
			refused++
		}
	}
	var out []string
	for _, action := range slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), strings.Compare(a, b))
	}) {
		out = append(out, fmt.Sprintf("%d %s", count[action], action))
	}
	return fmt.Sprintf("%s; %d refused", strings.Join(out, ", "), refused)
}

// dayTest simulates an idle day of the pool on the embedded EC2 and logs the reads of an
// hour. Package testing/synctest has its clock, and only tests can use it.
const dayTest = "TestAnIdleNodeReadsEC2SixTimesAnHourAtMost"

var dayFigure = regexp.MustCompile(`ec2\.idle_reads_per_hour ([0-9.]+)`)

// simulatedDay is the reads of EC2 in an hour of an idle day.
func simulatedDay(r *run, o Options) float64 {
	cmd := exec.CommandContext(r.ctx, "go", "test", "-count=1", "-v", "-run=^"+dayTest+"$", "./internal/control/pool")
	cmd.Dir, cmd.Env = o.Source, append(os.Environ(), "CGO_ENABLED=0")
	output, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("simulate an idle day: %v\n%s", err, output)
	}
	reads, err := readDay(string(output))
	if err != nil {
		r.Fatalf("simulate an idle day: %v\n%s", err, output)
	}
	return reads
}

// readDay finds the figure in the output of dayTest.
func readDay(output string) (float64, error) {
	found := dayFigure.FindStringSubmatch(output)
	if found == nil {
		return 0, errors.New("the test logged no figure")
	}
	return strconv.ParseFloat(found[1], 64)
}
