package bench

import (
	"fmt"

	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

// A round of amid: a 99th percentile of a hundred is the second highest. There are
// more victims than ADDs, for the ADDs that count end with the DELs.
const (
	sampled = 100 // ADDs alone, and as many amid DELs
	victims = 120 // pods deleted meanwhile
)

// amid measures how much slower an ADD is while pods are deleted: one ADD after the
// other, alone and beside one DEL after the other, in turns on the same node.
func amid(r *run, o Options) []Result {
	n := node.New(r, node.Config{Type: "m5.4xlarge"}) // 232 pods
	n.StartAgent(fmt.Sprintf("warm-ips=%d", sampled+victims), "log-level=info")
	n.UntilReady()
	p := trunklinePlugin(r, n)
	adds, dels := containers(r, sampled), containers(r, victims)
	var ratios, alone, during []float64
	for i := range o.Rounds {
		r.Logf("ADD amid DELs, round %d of %d", i+1, o.Rounds)
		rest(n, sampled+victims)
		p.each(r, "ADD", dels)
		quiet := p.each(r, "ADD", adds)
		p.each(r, "DEL", adds)
		rest(n, sampled)
		busy, used := p.amid(r, adds, dels)
		p.each(r, "DEL", used)
		ratios = append(ratios, quantile(busy, 0.99)/quantile(quiet, 0.99))
		alone, during = append(alone, quiet...), append(during, busy...)
	}
	note := fmt.Sprintf("%d rounds; p50 and p99 of %d ADDs amid DELs %.3g and %.3g ms, of %d alone %.3g and %.3g ms", o.Rounds,
		len(during), quantile(during, 0.5), quantile(during, 0.99), len(alone), quantile(alone, 0.5), quantile(alone, 0.99))
	return []Result{median("cni.add_during_del.p99_ratio", "×", ratios, budget{limit: 1.5}, note)}
}

// amid adds containers one by one while others are deleted, and returns the ADDs'
// milliseconds and whom they were for. It ends with the deletions.
func (p *plugin) amid(r *run, adds, dels []*container) (took []float64, used []*container) {
	done := make(chan error, 1)
	go func() {
		for _, c := range dels {
			if _, err := p.call("DEL", c); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for _, c := range adds {
		select {
		case err := <-done:
			if err != nil {
				r.Fatal(err)
			}
			return took, used
		default:
			took, used = append(took, p.one(r, "ADD", c)), append(used, c)
		}
	}
	if err := <-done; err != nil {
		r.Fatal(err)
	}
	return took, used
}

// containers makes namespaces.
func containers(r *run, count int) []*container {
	list := make([]*container, count)
	for i := range list {
		list[i] = &container{ns: testns.New(r, "pod")}
	}
	return list
}
