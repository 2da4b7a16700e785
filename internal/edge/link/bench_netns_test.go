//go:build netns

package link

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/test/testns"
)

// quantiles reports the median and the 99th percentile of durations.
func quantiles(b *testing.B, name string, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), name+"-p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), name+"-p99-µs")
}

// BenchmarkPod measures the kernel work of an ADD and then a DEL, in an existing
// namespace; the reaper runs in parallel.
func BenchmarkPod(b *testing.B) {
	h, _ := open(b)
	r := reap(b, h)
	ctx := context.Background()
	podNS := testns.New(b, "pod").Open(b)
	var wires, ups, unwires []time.Duration
	i := 0
	for b.Loop() {
		p := pod(fmt.Sprintf("p%d", i), "10.0.1.7")
		p.Attachment.Table = 3
		t0 := time.Now()
		index, err := h.Wire(ctx, podNS, p)
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if err := h.Up(ctx, p, index); err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		if _, err := h.Unwire(ctx, p); err != nil {
			b.Fatal(err)
		}
		unwires = append(unwires, time.Since(t2))
		wires, ups = append(wires, t1.Sub(t0)), append(ups, t2.Sub(t1))
		i++
		eventually(b, "reaped", func() bool { return r.count() == i })
	}
	quantiles(b, "wire", wires)
	quantiles(b, "up", ups)
	quantiles(b, "unwire", unwires)
}

// BenchmarkAddDuringDel measures an ADD alone, and while 64 links are deleted in groups
// of eight.
func BenchmarkAddDuringDel(b *testing.B) {
	for _, dels := range []int{0, 64} {
		b.Run(fmt.Sprintf("dels=%d", dels), func(b *testing.B) {
			h, _ := open(b)
			r := reap(b, h)
			podNS := testns.New(b, "pod").Open(b)
			ctx := context.Background()
			var took []time.Duration
			total := 0
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				pods := many(b, h, dels)
				for _, p := range pods {
					if _, err := h.Unwire(ctx, p); err != nil {
						b.Fatal(err)
					}
				}
				p := pod(fmt.Sprintf("q%d", i), "10.0.1.7")
				b.StartTimer()
				t0 := time.Now()
				index, err := h.Wire(ctx, podNS, p)
				if err != nil {
					b.Fatal(err)
				}
				if err := h.Up(ctx, p, index); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(t0))
				b.StopTimer()
				_, _ = h.Unwire(ctx, p)
				total += dels + 1
				eventually(b, "reaped", func() bool { return r.count() == total })
				b.StartTimer()
			}
			quantiles(b, "add", took)
		})
	}
}

// BenchmarkReap measures the deletion of 64 pods' links, per link.
func BenchmarkReap(b *testing.B) {
	h, _ := open(b)
	ctx := context.Background()
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		for _, p := range many(b, h, 64) {
			_, _ = h.Unwire(ctx, p)
		}
		b.StartTimer()
		t0 := time.Now()
		if err := h.DeleteDiscarded(ctx, func() int { return 64 }, func(Wired) {}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(t0)/64)
	}
	quantiles(b, "link", took)
}

// BenchmarkApply measures a full pass over a node of 60 pods without differences.
func BenchmarkApply(b *testing.B) {
	h, _ := open(b)
	var states []hostnet.State
	for _, p := range many(b, h, 60) {
		states = append(states, hostnet.ForEndpoint(p))
	}
	want := hostnet.Join(states...)
	want.Links = nil // made without Wire: their other ends have other addresses
	for b.Loop() {
		have, err := h.Read(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		hostnet.Diff(want, have)
	}
}
