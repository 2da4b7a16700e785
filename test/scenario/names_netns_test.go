//go:build netns

package scenario

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/trunkline/trunkline/sim/cloud"
)

// names are what stands in a golden for what differs from run to run.
type names map[string]string

func cutSandbox(id string) (name, sandbox string) {
	name, sandbox, _ = strings.Cut(id, "/")
	return name, sandbox
}

// names returns those of the node's interfaces, addresses, links and MACs as they are now.
func (s *scenario) names() names {
	n := names{}
	for _, i := range cloud.Sorted(s.State().Interfaces) {
		name := "eni-detached"
		if i.Attachment != nil {
			name = fmt.Sprint("eni-", i.Attachment.DeviceIndex)
		}
		n[string(i.ID)], n[i.MAC.String()] = "<"+name+">", "<mac "+name+">"
		for k, a := range i.IPv4.Addresses {
			n[a.String()] = "<warm>"
			if k == 0 {
				n[a.String()] = "<ip " + name + ">"
			}
		}
		n[string(i.Subnet)] = "<subnet>"
	}
	for _, p := range s.added { // the latest holder of an address names it
		n[p.Addr.String()], n[p.mac] = "<"+p.id+">", "<mac "+p.id+">"
		n[p.link()] = "<link " + p.name + ">"
	}
	return n
}

// variable matches what may have a name.
var variable = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}|(?:eni|subnet|tl)-[0-9a-f]{8,}|\b\w+[0-9a-f]{11}\b|\b\d\d:\d\d:\d\d(?:\.\d+)?\b`)

func (n names) replace(text string) string {
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		if len(found) >= 8 && found[2] == ':' && strings.Count(found, ":") == 2 {
			return "<time>"
		}
		if strings.HasPrefix(found, "tl-") {
			return "<action>"
		}
		return cmp.Or(n[found], found)
	})
}

var gaps = regexp.MustCompile(` {2,}`)

// table replaces names in an aligned table, sorts its rows and aligns it again.
func (n names) table(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = gaps.ReplaceAllString(n.replace(strings.TrimSpace(line)), "\t")
	}
	slices.Sort(lines[1:])
	var out strings.Builder
	aligned := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(aligned, strings.Join(lines, "\n"))
	_ = aligned.Flush() // a strings.Builder takes all
	return out.String()
}
