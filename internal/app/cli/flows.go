package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
)

// FlowQuery selects records of the flow log.
type FlowQuery struct {
	Follow bool
	Sample uint   // also one of so many accepted connections, from 2; 0: none
	Pod    string // only flows of which it is an end, as NAMESPACE/NAME; empty: all
	// Notice is called, with Follow, when an agent ends and when it answers again. May be nil.
	Notice func(text string)
}

func (q FlowQuery) path() string {
	path := introspection.FlowsPath + "?"
	if q.Follow {
		path += "follow=true&"
	}
	if q.Sample > 0 {
		path += fmt.Sprintf("sample=%d", q.Sample)
	}
	return strings.TrimRight(path, "?&")
}

func (q FlowQuery) wants(f introspection.Flow) bool {
	return q.Pod == "" || f.Source.Pod == q.Pod || f.Destination.Pod == q.Pod
}

// ReadFlows calls f with records of agents, one at a time: of each agent the denies that it has
// kept, oldest first, and with Follow what comes, until ctx ends, from agents that restart too.
// Without Follow it returns an error that wraps that of ctx if that ends before all have answered.
func ReadFlows(ctx context.Context, agents []Agent, q FlowQuery, f func(introspection.Flow) error) error {
	var mu sync.Mutex
	each := func(flow introspection.Flow) error {
		mu.Lock()
		defer mu.Unlock()
		return f(flow)
	}
	notice := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if q.Notice != nil {
			q.Notice(text)
		}
	}
	if !q.Follow {
		errs := eachAgent(agents, func(_ int, a Agent) error {
			one := follower{agent: a, query: q, each: each, notice: notice}
			return one.read(ctx)
		})
		if err := ctx.Err(); err != nil {
			errs = append(errs, fmt.Errorf("interrupted before all agents have answered: %w", err))
		}
		return errors.Join(errs...)
	}
	// All at once, because none ends.
	errs := make([]error, len(agents))
	var wg sync.WaitGroup
	for i, a := range agents {
		one := follower{agent: a, query: q, each: each, notice: notice}
		wg.Go(func() { errs[i] = one.run(ctx, len(agents) == 1) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// decodeFlows reads one record from each line. An empty line only shows that the agent answers;
// answered is called for it, and before each record.
func decodeFlows(in io.Reader, answered func(), f func(introspection.Flow) error) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answered()
		if len(lines.Bytes()) == 0 {
			continue
		}
		var flow introspection.Flow
		if err := json.Unmarshal(lines.Bytes(), &flow); err != nil {
			return fmt.Errorf("read a record of the flow log: %w", err)
		}
		if err := f(flow); err != nil {
			return err
		}
	}
	return lines.Err()
}

// WriteFlow prints a record as a line.
func WriteFlow(w io.Writer, f introspection.Flow) error {
	mark := markGood
	if !f.Allowed {
		mark = markBad
	}
	lost := ""
	if f.Lost > 0 {
		lost = fmt.Sprintf("  (%d records before it were lost)", f.Lost)
	}
	_, err := fmt.Fprintf(w, "%s %s %s → %s %s  %s%s\n", f.Time.Local().Format("15:04:05.000"), mark, end(f.Source), end(f.Destination), protocolOf(f), decision(f), lost)
	return err
}

// end is an end of a flow.
func end(e introspection.FlowEnd) string {
	text := cmp.Or(e.Pod, e.Address.String())
	if e.Port != 0 {
		text += fmt.Sprintf(":%d", e.Port)
	}
	return text
}

func protocolOf(f introspection.Flow) string {
	if f.Type != 0 || f.Code != 0 {
		return fmt.Sprintf("%s type %d code %d", f.Protocol, f.Type, f.Code)
	}
	return f.Protocol
}

func decision(f introspection.Flow) string {
	if f.Pod == "" {
		return f.Why
	}
	return fmt.Sprintf("%s of %s: %s", f.Direction, f.Pod, f.Why)
}

// Denial is a kind of packets of or to a pod that were denied, with the last of them.
type Denial struct {
	Packets int                `json:"packets"`
	Last    introspection.Flow `json:"last"`
}

// Denials groups denied packets by their ends, without the source's port, and what decided; the
// last one first.
func Denials(flows []introspection.Flow) []Denial {
	type kind struct{ source, destination, protocol, why string }
	groups := map[kind]*Denial{}
	for _, f := range flows {
		source := f.Source
		source.Port = 0
		k := kind{end(source), end(f.Destination), protocolOf(f), decision(f)}
		if groups[k] == nil {
			groups[k] = &Denial{}
		}
		d := groups[k]
		d.Packets++
		if !f.Time.Before(d.Last.Time) {
			d.Last = f
		}
	}
	list := make([]Denial, 0, len(groups))
	for _, d := range groups {
		list = append(list, *d)
	}
	slices.SortFunc(list, func(a, b Denial) int { return b.Last.Time.Compare(a.Last.Time) })
	return list
}

// WriteDenials says what was denied to and from a pod.
func WriteDenials(w io.Writer, pod string, list []Denial, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintf(w, "no agent has a denied packet of or to %s among its last ones\n", pod)
		return
	}
	for _, d := range list {
		source := d.Last.Source
		source.Port = 0
		fmt.Fprintf(w, "%s %s → %s %s: %d packets, the last %s ago\n", markBad, end(source), end(d.Last.Destination), protocolOf(d.Last), d.Packets, now.Sub(d.Last.Time).Round(time.Second))
		fmt.Fprintf(w, "    %s\n", decision(d.Last))
	}
}
