package trunk

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// clock is the format of printed times.
const clock = "15:04:05"

// String prints the state for people: the trunk, then one line per branch, unowned branch and
// back-off.
func (s State) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", s.Trunk)
	for _, row := range s.sorted() {
		fmt.Fprintf(&b, "%s\n", row)
	}
	for _, vlan := range slices.Sorted(maps.Keys(s.VLANs)) {
		switch v := s.VLANs[vlan]; {
		case !v.Until.IsZero():
			fmt.Fprintf(&b, "VLAN %d: was that of %s, cools down until %s\n", vlan, v.Owner, v.Until.Format(clock))
		case s.Branches[v.Owner].ID == "":
			fmt.Fprintf(&b, "VLAN %d: in use by %s\n", vlan, cmp.Or(string(v.Owner), "a branch that is not known"))
		}
	}
	for _, eni := range slices.Sorted(maps.Keys(s.Unowned)) {
		u := s.Unowned[eni]
		fmt.Fprintf(&b, "unowned: %s, VLAN %d, observed %d times since %s\n", eni, u.Seen.VLAN, u.Passes, u.First.Format(clock))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Backoffs)) {
		p := s.Backoffs[key]
		fmt.Fprintf(&b, "back-off: %s until %s after %d tries: %s\n", key, p.Until.Format(clock), p.Tries, cmp.Or(p.Message, string(p.Reason)))
	}
	return b.String()
}

// String is the trunk in one line.
func (t Trunk) String() string {
	if t.Stage == Absent {
		return "trunk: none"
	}
	return fmt.Sprintf("trunk: %s %s device %d%s", cmp.Or(string(t.ENI), "no interface"), t.Stage, t.Device, t.Intent)
}

// String is the branch in one line.
func (b Branch) String() string {
	out := fmt.Sprintf("%s: %s %s", b.ID, cmp.Or(string(b.ENI), "no interface"), b.Stage)
	if b.VLAN != 0 {
		out += fmt.Sprintf(" VLAN %d", b.VLAN)
	}
	return out + " with " + b.Groups.String() + forPod(b.Pod) + " since " + b.Since.Format(clock) + b.Intent.String()
}

// String is the intent as the end of a line; empty for nil.
func (i *Intent) String() string {
	switch {
	case i == nil:
		return ""
	case i.Lost:
		return fmt.Sprintf("; outcome not known after %d tries: %s", i.Tries, i.Action)
	}
	return fmt.Sprintf("; in flight: %s", i.Action)
}

// String prints the decision for people.
func (d Decision) String() string {
	var b strings.Builder
	n := d.Numbers
	fmt.Fprintf(&b, "%d of %d branches: %d bound, %d reserved, %d warm, %d cooling, %d incoming, %d leaving; %d VLANs free\n",
		n.Bound+n.Reserved+n.Warm+n.Cooling+n.Incoming+n.Leaving, n.Limit, n.Bound, n.Reserved, n.Warm, n.Cooling, n.Incoming, n.Leaving, n.VLANs)
	for _, a := range d.Actions {
		fmt.Fprintf(&b, "do: %s\n    because %s\n", a, a.Why)
	}
	if len(d.Actions) == 0 {
		b.WriteString("do: nothing\n")
	}
	for _, p := range d.Problems {
		fmt.Fprintf(&b, "waits: %s: %s\n", cmp.Or(string(p.Pod), "the node"), p.Why)
	}
	for _, pod := range d.Confirm {
		fmt.Fprintf(&b, "confirm: has the pod %s ended?\n", pod)
	}
	if d.Observe != "" {
		fmt.Fprintf(&b, "observe: %s\n", d.Observe)
	}
	if !d.Next.IsZero() {
		fmt.Fprintf(&b, "plan again: %s\n", d.Next.Format(clock))
	}
	return b.String()
}
