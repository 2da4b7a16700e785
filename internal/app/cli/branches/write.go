package branches

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/app/cli/render"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// WriteList renders trunks and branches.
func WriteList(w io.Writer, l List, now time.Time) {
	if len(l.Trunks) == 0 && len(l.Branches) == 0 {
		fmt.Fprintln(w, "no node has a trunk")
		return
	}
	rows := [][]string{{"NODE", "TRUNK", "DEVICE", "STATE", "MANAGED BY"}}
	for _, t := range l.Trunks {
		rows = append(rows, []string{t.Node, render.Dash(t.ENI), fmt.Sprint(t.Device), t.State, t.Manager})
	}
	render.Table(w, rows)
	for _, t := range l.Trunks {
		if t.Refusal != "" {
			fmt.Fprintf(w, "! %s: no branch is created: %s\n", t.Node, t.Refusal)
		}
		for _, d := range t.Delays {
			fmt.Fprintf(w, "! %s: %s\n", t.Node, d)
		}
	}
	fmt.Fprintln(w)
	rows = [][]string{{"NODE", "VLAN", "BRANCH", "STATE", "FOR", "POD", "ADDRESSES", "GROUPS", "CALL"}}
	for _, b := range l.Branches {
		vlan := "-"
		if b.VLAN != 0 {
			vlan = fmt.Sprint(b.VLAN)
		}
		rows = append(rows, []string{b.Node, vlan, render.Dash(b.ENI), b.State, render.Since(b.Since, now), render.Dash(b.Pod), render.Dash(strings.Join(b.Addresses, ",")), render.Dash(strings.Join(b.Groups, ",")), render.Dash(b.Call)})
	}
	render.Table(w, rows)
}

// WriteExplanation renders an explanation.
func WriteExplanation(w io.Writer, e Explanation, now time.Time) {
	rows := [][]string{
		{"pod", e.Pod + ", " + e.Phase},
		{"node", cmp.Or(e.Node, "none yet")},
		{"service account", render.Dash(e.Account)},
		{"groups", groupsLine(e)},
		{"enforced by", enforcedLine(e)},
	}
	for _, g := range e.NodeGroups {
		knows := "is known"
		if !g.Known {
			knows = "is not known"
		}
		rows = append(rows, []string{"on the node", g.ID + " " + knows + ": " + g.Why})
	}
	if e.EnforcedBy != ByNode || e.Requests > 0 {
		rows = append(rows, []string{"requests", requestsLine(e)}, []string{"annotation", cmp.Or(e.Annotation, "none")})
	}
	for _, b := range e.Branches {
		rows = append(rows, []string{"branch", branchLine(b, now)})
	}
	render.Table(w, rows)
	if len(e.Policies) > 0 {
		fmt.Fprintln(w)
		rows = [][]string{{"", "POLICY", "GROUPS", "WHY"}}
		for _, p := range e.Policies {
			mark := "-"
			if p.Selected {
				mark = "✓"
			}
			rows = append(rows, []string{mark, p.Name, render.Dash(strings.Join(p.Groups, ",")), p.Why})
		}
		render.Table(w, rows)
	}
	fmt.Fprintln(w)
	switch {
	case len(e.Missing) > 0:
		for _, m := range e.Missing {
			fmt.Fprintf(w, "✗ %s\n", m)
		}
	case e.EnforcedBy == ByNode:
		fmt.Fprintf(w, "✓ node %s enforces exactly the groups %s of the pod\n", e.Node, strings.Join(e.Groups, ", "))
	case len(e.Groups) > 0:
		fmt.Fprintf(w, "✓ the pod has exactly the groups %s\n", strings.Join(e.Groups, ", "))
	default:
		fmt.Fprintln(w, "✓ the pod has no security groups of its own")
	}
}

// groupsLine says why in one sentence; that of a refusal has the cause only.
func groupsLine(e Explanation) string {
	if e.Verdict == securitygroup.Refused.String() {
		return e.Verdict + ": " + e.Why
	}
	return e.Why
}

// enforcedLine is who enforces the groups, and why.
func enforcedLine(e Explanation) string {
	switch e.EnforcedBy {
	case ByVPC:
		return "the VPC, at a branch: " + e.EnforcedWhy
	case ByNode:
		return "the node: " + e.EnforcedWhy
	case ByNone:
		return "none: " + e.EnforcedWhy
	}
	if e.EnforcedWhy != "" {
		return "not known: " + e.EnforcedWhy
	}
	return "-"
}

// requestsLine is what the scheduler counts for the pod.
func requestsLine(e Explanation) string {
	if e.Requests == 1 {
		return "1 branch"
	}
	return fmt.Sprintf("%d branches", e.Requests)
}

func branchLine(b Branch, now time.Time) string {
	parts := []string{cmp.Or(b.ENI, "no interface yet"), b.State}
	if !b.Since.IsZero() {
		parts[1] += " for " + render.Since(b.Since, now)
	}
	if b.VLAN != 0 {
		parts = append(parts, fmt.Sprintf("VLAN %d", b.VLAN))
	}
	for _, text := range []string{strings.Join(b.Addresses, ", "), b.MAC, b.Association, strings.Join(b.Groups, ", "), b.Call} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ", ")
}
