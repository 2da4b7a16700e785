package branches

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

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
		rows = append(rows, []string{t.Node, dash(t.ENI), fmt.Sprint(t.Device), t.State, t.Manager})
	}
	table(w, rows)
	for _, t := range l.Trunks {
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
		rows = append(rows, []string{b.Node, vlan, dash(b.ENI), b.State, age(b.Since, now), dash(b.Pod), dash(strings.Join(b.Addresses, ",")), dash(strings.Join(b.Groups, ",")), dash(b.Call)})
	}
	table(w, rows)
}

// WriteExplanation renders an explanation.
func WriteExplanation(w io.Writer, e Explanation, now time.Time) {
	rows := [][]string{
		{"pod", e.Pod + ", " + e.Phase},
		{"node", cmp.Or(e.Node, "none yet")},
		{"service account", dash(e.Account)},
		{"groups", groupsLine(e)},
		{"requests", fmt.Sprintf("%d branches", e.Requests)},
		{"annotation", cmp.Or(e.Annotation, "none")},
	}
	for _, b := range e.Branches {
		rows = append(rows, []string{"branch", branchLine(b, now)})
	}
	table(w, rows)
	if len(e.Policies) > 0 {
		fmt.Fprintln(w)
		rows = [][]string{{"", "POLICY", "GROUPS", "WHY"}}
		for _, p := range e.Policies {
			mark := "-"
			if p.Selected {
				mark = "✓"
			}
			rows = append(rows, []string{mark, p.Name, dash(strings.Join(p.Groups, ",")), p.Why})
		}
		table(w, rows)
	}
	fmt.Fprintln(w)
	switch {
	case len(e.Missing) > 0:
		for _, m := range e.Missing {
			fmt.Fprintf(w, "✗ %s\n", m)
		}
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

func branchLine(b Branch, now time.Time) string {
	parts := []string{cmp.Or(b.ENI, "no interface yet"), b.State}
	if !b.Since.IsZero() {
		parts[1] += " for " + age(b.Since, now)
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

func age(since, now time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return max(0, now.Sub(since)).Round(time.Second).String()
}

func dash(text string) string { return cmp.Or(text, "-") }

// table writes rows in aligned columns.
func table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(r, "\t"), "\t "))
	}
	_ = tw.Flush() // errors of w are reported at the end of the command
}
