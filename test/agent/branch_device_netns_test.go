//go:build netns

package agent

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Variables of a guest.
const (
	pluginEnv = "TRUNKLINE_PLUGIN" // path of the plugin: a guest has no compiler
	deviceEnv = "TRUNKLINE_DEVICE" // the kind of a branch's device
)

// builtPlugin is the path of a plugin that was built before; empty outside of a guest.
func builtPlugin() string {
	path, _ := os.LookupEnv(pluginEnv)
	return path
}

// listed is what ip(8) prints, without owners.
func listed(b *branched, arguments ...string) (lines []string) {
	b.t.Helper()
	for line := range strings.Lines(b.ip(arguments...)) {
		words := strings.Fields(line)
		if i := slices.Index(words, "proto"); i >= 0 {
			words = slices.Delete(words, i, min(i+2, len(words)))
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

// deviceKind is how the node tags the frames of the branch of VLAN 1: by the kernel's device of
// 802.1Q, or by programs at a pair of links.
func deviceKind(b *branched) string {
	b.t.Helper()
	for _, kind := range []string{"vlan", "veth"} {
		if b.ip("-o", "link", "show", "dev", "vlan.eth.1", "type", kind) != "" {
			return kind
		}
	}
	b.t.Fatalf("vlan.eth.1 is of another kind: %s", b.ip("-d", "link", "show", "dev", "vlan.eth.1"))
	return ""
}

// The rules and routes are those of AWS's plugin on a node of EKS (core/hostnet has the same
// listings as values), whichever device tags the frames. The fabric passes on only frames with the
// tag of a branch, so a connection shows the tag.
func TestPodsOnBranchesHaveTheRulesAndRoutesOfAWSsPlugin(t *testing.T) {
	for _, mode := range []endpoint.Mode{endpoint.Strict, endpoint.Standard} {
		t.Run(string(mode), func(t *testing.T) {
			b := newBranched(t, mode)
			b.start()
			b.settled()
			e := b.branch(1, "web", "node")
			web := b.addBranch("web", e)
			kind, gateway := deviceKind(b), vpc.Gateway(e.Subnet4).String()
			if want, ok := os.LookupEnv(deviceEnv); ok && kind != want {
				t.Errorf("vlan.eth.1 is of the kind %s, want %s", kind, want)
			}
			pod := web.Addr.String()
			rules := []string{"0: from all lookup local", "512: from all to " + pod + " lookup main", "1536: from " + pod + " lookup 101"}
			routes := []string{"default via " + gateway + " dev vlan.eth.1", gateway + " dev vlan.eth.1 scope link"}
			if mode == endpoint.Strict {
				link := endpoint.LinkName(endpoint.StrictLinkPrefix, "default", "web")
				rules = []string{"10: from all iif vlan.eth.1 lookup 101", "10: from all iif " + link + " lookup 101", "20: from all lookup local"}
				routes = append(routes, pod+" dev "+link+" scope link")
			}
			got := slices.DeleteFunc(listed(b, "rule"), func(line string) bool {
				return !slices.Contains(rules, line) && !strings.Contains(line, "lookup 101") && !strings.Contains(line, "lookup local")
			})
			slices.Sort(got)
			if slices.Sort(rules); !slices.Equal(got, rules) {
				t.Errorf("rules\n%s\nwant\n%s\nof all\n%s", strings.Join(got, "\n"), strings.Join(rules, "\n"), b.ip("rule"))
			}
			got = listed(b, "route", "show", "table", "101")
			slices.Sort(got)
			if slices.Sort(routes); !slices.Equal(got, routes) {
				t.Errorf("table 101\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(routes, "\n"))
			}
			b.allowed("web to another node", web.NS, b.db, 80)
			b.denied("web to a port that the group of db denies", web.NS, b.db, 81)
			t.Logf("%s by %s", mode, kind)
		})
	}
}
