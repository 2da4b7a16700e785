package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/app/cli/render"
)

// Marks at the start of a line.
const (
	markGood    = "✓"
	markBad     = "✗"
	markSkipped = "-"
	markWarning = "!"
)

func mark(good bool) string {
	if good {
		return markGood
	}
	return markBad
}

// WriteJSON writes v indented.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// WriteJSONLine writes a value as JSON on one line.
func WriteJSONLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// WriteStatus renders a status for a terminal.
func WriteStatus(w io.Writer, s Status) {
	for _, l := range s.Workloads {
		images := strings.Join(l.Images, ", ")
		if len(l.Images) > 1 {
			images += " (rolling)"
		}
		fmt.Fprintf(w, "%s %-11s %-22s desired %d, ready %d, updated %d   %s\n", mark(l.Ready >= l.Desired && l.Updated >= l.Desired), l.Kind, l.Name, l.Desired, l.Ready, l.Updated, images)
	}
	fmt.Fprintln(w, podsLine(s))
	if n := len(s.NotServed); n > 0 {
		fmt.Fprintf(w, "%s Nodes       %d not served by Trunkline, because its DaemonSet does not select them: %s\n", markSkipped, n, some(s.NotServed))
	}
	for _, b := range s.Brakes {
		on := "every node"
		if len(b.Nodes) > 0 {
			on = strings.Join(b.Nodes, ", ")
		}
		fmt.Fprintf(w, "%s Brake       %s: freeze %s on %s: %s\n", markWarning, b.Name, b.Freeze, on, b.Reason)
	}
	writePolicies(w, s)
	fmt.Fprintln(w)
	rows := [][]string{{"NODE", "READY", "MODE", "TYPE", "ENIS", "FREE", "ASSIGNED", "COOLING", "WAITING", "TOTAL", "LIMIT", "AGENT", "REPORT"}}
	for _, n := range s.Nodes {
		rows = append(rows, nodeRow(n))
	}
	render.Table(w, rows)
	for _, n := range s.Nodes {
		if n.Why != "" {
			fmt.Fprintf(w, "  %s: %s\n", n.Node, n.Why)
		}
	}
	for _, n := range s.Nodes {
		for _, note := range n.Notes {
			fmt.Fprintf(w, "  %s: %s\n", n.Node, note)
		}
	}
	perNodes(w, s.Nodes, withoutEC2Line)
	perNodes(w, s.Nodes, versionsLine)
	perNodes(w, s.Nodes, warningLine)
	if len(s.Errors) == 0 {
		fmt.Fprintf(w, "\n%s no errors\n", markGood)
		return
	}
	fmt.Fprintln(w, "\nErrors")
	for _, g := range s.Errors {
		fmt.Fprintf(w, "  %s\n", g.Object)
		for _, e := range g.Errors {
			fmt.Fprintf(w, "    %s %s\n", markBad, e)
		}
	}
}

// some are the first of a list, and how many more there are.
func some(list []string) string {
	const shown = 5
	text := strings.Join(list[:min(shown, len(list))], ", ")
	if more := len(list) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// podsLine counts pods, and explains those without an address in the last reports.
func podsLine(s Status) string {
	without := max(0, s.Pods-s.PodsManaged-s.PodsUnseen-s.PodsLeaving)
	sign := markGood
	if without > 0 {
		sign = markWarning // no error: such a pod may wait for a volume
	}
	line := fmt.Sprintf("%s Pods        managed %d/%d", sign, s.PodsManaged, s.Pods)
	if without > 0 {
		line += fmt.Sprintf(", %d without an address", without)
	}
	if s.PodsUnseen > 0 {
		line += fmt.Sprintf(", %d newer than their node's report", s.PodsUnseen)
	}
	if s.PodsLeaving > 0 {
		line += fmt.Sprintf(", %d being deleted", s.PodsLeaving)
	}
	return line
}

// withoutEC2Line says that a node does not use EC2; empty if it does.
func withoutEC2Line(n NodePool) string {
	if n.WithoutEC2 == "" {
		return ""
	}
	return "EC2 is " + n.WithoutEC2
}

// versionsLine is the versions of what runs on a node; empty if they are not known.
func versionsLine(n NodePool) string {
	if n.Kernel == "" {
		return ""
	}
	return fmt.Sprintf("plugin %s, CNI %s, kernel %s", cmp.Or(n.Plugin, "not used yet"), n.CNI, n.Kernel)
}

// warningLine is what a node does without; empty if there is nothing.
func warningLine(n NodePool) string {
	if len(n.Warnings) == 0 {
		return ""
	}
	return "warning: " + strings.Join(n.Warnings, "; ")
}

// perNodes writes each distinct line of the nodes once, with its nodes.
func perNodes(w io.Writer, nodes []NodePool, of func(NodePool) string) {
	var lines []string
	on := map[string][]string{}
	for _, n := range nodes {
		line := of(n)
		if line == "" {
			continue
		}
		if on[line] == nil {
			lines = append(lines, line)
		}
		on[line] = append(on[line], n.Node)
	}
	for _, line := range lines {
		where := strings.Join(on[line], ", ")
		if len(nodes) > 1 && len(on[line]) == len(nodes) {
			where = "every node"
		}
		fmt.Fprintf(w, "  %s: %s\n", where, line)
	}
}

func nodeRow(n NodePool) []string {
	if !n.Reported {
		return []string{n.Node, "no report"}
	}
	ready := "?"
	for _, c := range n.Conditions {
		if c.Type == "Ready" {
			ready = c.Status
		}
	}
	c := n.Counts
	count := func(v int32) string { return fmt.Sprint(v) }
	interfaces := fmt.Sprintf("%d/%d", c.Interfaces, c.InterfaceLimit)
	if n.WithoutEC2 != "" {
		interfaces = "-"
	}
	return []string{
		n.Node, ready, n.Mode, render.Dash(n.InstanceType), interfaces,
		count(c.Free), count(c.Assigned), count(c.Cooling), count(c.Waiting), count(c.Total), count(c.Limit),
		n.Agent, n.Age.String() + " ago",
	}
}

// TestProgress prints the progress of a connectivity test.
type TestProgress struct {
	W io.Writer
	// Now returns the time; nil is time.Now.
	Now   func() time.Time
	start time.Time
}

func (p *TestProgress) elapsed() time.Duration {
	now := time.Now
	if p.Now != nil {
		now = p.Now
	}
	if p.start.IsZero() {
		p.start = now()
	}
	return now().Sub(p.start)
}

// Step implements connectivity.Progress.
func (p *TestProgress) Step(what string) {
	fmt.Fprintf(p.W, "[%5.1fs] %s\n", p.elapsed().Seconds(), what)
}

// Done implements connectivity.Progress.
func (p *TestProgress) Done(o connectivity.Outcome) {
	sign := map[connectivity.Status]string{connectivity.Passed: markGood, connectivity.Failed: markBad, connectivity.Skipped: markSkipped}[o.Status]
	switch o.Status {
	case connectivity.Passed:
		fmt.Fprintf(p.W, "%s %s (%.0f ms)\n", sign, o.Name, o.Millis)
	case connectivity.Skipped:
		fmt.Fprintf(p.W, "%s %s: skipped: %s\n", sign, o.Name, o.Reason)
	case connectivity.Failed:
		fmt.Fprintf(p.W, "%s %s (%.0f ms): %s\n    %s\n", sign, o.Name, o.Millis, o.Asserts, strings.ReplaceAll(o.Reason, "\n", "\n    "))
	case connectivity.Aborted: // the summary counts them
	}
}

// WriteTestSummary prints the summary of a connectivity test.
func WriteTestSummary(w io.Writer, r connectivity.Report) {
	aborted := ""
	if r.Aborted > 0 {
		aborted = fmt.Sprintf(", %d aborted", r.Aborted)
	}
	fmt.Fprintf(w, "\n%s %d of %d cases passed, %d failed, %d skipped%s, in %.1f s\n",
		mark(r.Succeeded()), r.Passed, len(r.Cases), r.Failed, r.Skipped, aborted, r.Seconds)
	for _, o := range r.Cases {
		if o.Status == connectivity.Failed {
			fmt.Fprintf(w, "  %s %s\n", markBad, o.Name)
		}
	}
	if !r.Tested() {
		fmt.Fprintf(w, "  %s nothing was tested: no selected case could run\n", markBad)
	}
}

// WriteTestList prints cases with their assertions.
func WriteTestList(w io.Writer, cases []connectivity.Case) {
	rows := [][]string{{"CASE", "ASSERTS THAT"}}
	for _, c := range cases {
		rows = append(rows, []string{c.Name, c.Asserts})
	}
	render.Table(w, rows)
}
