package bench

import (
	"fmt"

	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

// Sizes of a round of amid. The 99th percentile of a hundred samples is the second
// highest. There are more DELs than ADDs because only ADDs that overlap a DEL count.
const (
	sampled = 100 // ADDs alone, and at most as many amid DELs
	deleted = 120 // pods deleted meanwhile
)

// amid measures how much slower an ADD is while pods are deleted: a sequence of ADDs
// alone, and the same beside a sequence of DELs, in turns with the reference. The
// reference's ratio is the cost of two processes at once on this machine.
func amid(r *run, o Options) []Result {
	n := node.New(r, node.Config{Type: "m5.4xlarge"}) // 232 pods
	n.StartAgent(fmt.Sprintf("warm-ips=%d", sampled+deleted), "log-level=info")
	n.UntilReady()
	sides := []*plugin{trunklinePlugin(r, n), referencePlugin(r, n)}
	adds, dels := containers(r, sampled), containers(r, deleted)
	var ratios, alone, during [2][]float64
	for i := range o.Rounds {
		r.Logf("ADD amid DELs, round %d of %d", i+1, o.Rounds)
		for _, side := range []int{i % 2, 1 - i%2} {
			p := sides[side]
			rest(n, sampled+deleted)
			p.each(r, "ADD", dels)
			quiet := p.each(r, "ADD", adds)
			p.each(r, "DEL", adds)
			rest(n, sampled)
			busy, used := p.amid(r, adds, dels)
			p.each(r, "DEL", used)
			ratios[side] = append(ratios[side], quantile(busy, 0.99)/quantile(quiet, 0.99))
			alone[side], during[side] = append(alone[side], quiet...), append(during[side], busy...)
		}
	}
	result := compared("cni.add_during_del.p99_ratio", "×", pairs{ratios[0], ratios[1]}, budget{limit: 1.5})
	result.note += fmt.Sprintf("; p50 and p99 of %d ADDs amid DELs %.3g and %.3g ms, of %d alone %.3g and %.3g ms",
		len(during[0]), quantile(during[0], 0.5), quantile(during[0], 0.99), len(alone[0]), quantile(alone[0], 0.5), quantile(alone[0], 0.99))
	return []Result{result}
}

// amid adds containers one by one while others are deleted, until the last deletion. It
// returns the milliseconds of each ADD and the containers added.
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

// containers creates network namespaces.
func containers(r *run, count int) []*container {
	list := make([]*container, count)
	for i := range list {
		list[i] = &container{ns: testns.New(r, "pod")}
	}
	return list
}
