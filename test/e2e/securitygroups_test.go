//go:build lab

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

// TestSecurityGroupsForPods gives pods branches by examples/security-groups. The VPC allows clients to
// reach the database, and no other pod and no node.
func TestSecurityGroupsForPods(t *testing.T) {
	l := lab{name: uniqueName("sg"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/security-groups/lab.yaml")
	l.kubectl(t, "apply", "-f", "examples/security-groups/policies.yaml")
	eventually(t, 2*time.Minute, "pods that a policy selects are admitted with a request", func(t testing.TB) error {
		for _, role := range []string{"client", "database"} {
			r := l.try(t.Context(), "kubectl", "-n", "shop", "run", "asked", "--image", workloadImage, "--labels", "role="+role, "--dry-run=server", "-o", "json")
			if r.err != nil || !strings.Contains(r.String(), "vpc.amazonaws.com/pod-eni") {
				return notYet("role %s: %v\n%s", role, r.err, r)
			}
		}
		return nil
	})
	g := &groups{nodes: l.nodes(t)}
	for _, s := range []step{
		{"selected pods get branches with exactly their groups", g.start},
		{"the VPC admits clients only", g.judged},
		{"groups of running pods are edited", g.edited},
		{"branches of ended pods are deleted", g.ended},
	} {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, l) }) {
			return
		}
	}
}

// Groups of examples/security-groups and of the default lab; lab/spec tests that the ids are theirs.
const (
	groupClients  = "sg-0ec6eddb5b4433d2f"
	groupDatabase = "sg-0e56fbec9866c7e09"
)

// groups is the state that the steps share.
type groups struct {
	nodes    []node
	database string // its address
}

// start starts a database on the second node, a client on each node and a stranger beside the
// database.
func (g *groups) start(t *testing.T, l lab) {
	for _, p := range []struct {
		name, role string
		node       int
	}{{"database", "database", 1}, {"client-a", "client", 0}, {"client-b", "client", 1}, {"stranger-a", "none", 0}, {"stranger-b", "none", 1}} {
		l.kubectl(t, "-n", "shop", "run", p.name, "--image", workloadImage, "--restart=Never", "--labels", "role="+p.role,
			"--overrides", `{"spec":{"nodeName":"`+g.nodes[p.node].KubeName+`","terminationGracePeriodSeconds":1}}`, "--", "serve")
	}
	l.kubectl(t, "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
	g.database = strings.TrimSpace(l.kubectl(t, "-n", "shop", "get", "pod", "database", "-o", "jsonpath={.status.podIP}"))
	for name, want := range map[string]string{"database": groupDatabase, "client-a": groupClients, "client-b": groupClients} {
		if out := g.explain(t, l, name); !strings.Contains(out, "the pod has exactly the groups "+want) {
			t.Errorf("explain pod %s:\n%s", name, out)
		}
	}
	if out := g.explain(t, l, "stranger-a"); !strings.Contains(out, "the pod has no security groups of its own") {
		t.Errorf("explain pod stranger-a:\n%s", out)
	}
	found := 0
	for _, eni := range l.account(t).interfaces(t) {
		for _, group := range eni.Groups {
			if slices.Contains([]string{groupClients, groupDatabase}, *group.GroupId) && eni.InterfaceType == "branch" {
				found++
			}
		}
	}
	if found != 3 {
		t.Errorf("EC2 has %d branches with the groups of the policies, want 3", found)
	}
}

func (g *groups) explain(t testing.TB, l lab, pod string) string {
	t.Helper()
	return product{l}.run(t, time.Minute, "explain", "pod", "shop/"+pod).String()
}

// dial reports whether a pod reaches the database.
func (g *groups) dial(t testing.TB, l lab, from string) bool {
	t.Helper()
	return l.try(t.Context(), "kubectl", "-n", "shop", "exec", from, "--", "/workload", "dial", "http", g.database+":8080", "--timeout=2s").err == nil
}

func (g *groups) judged(t *testing.T, l lab) {
	for from, want := range map[string]bool{"client-a": true, "client-b": true, "stranger-a": false, "stranger-b": false} {
		if got := g.dial(t, l, from); got != want {
			t.Errorf("%s reaches the database: %v, want %v", from, got, want)
		}
	}
	for i, n := range g.nodes {
		if l.try(t.Context(), "exec", n.Name, "--", "timeout", "3", "bash", "-c", "</dev/tcp/"+g.database+"/8080").err == nil {
			t.Errorf("node %d reaches the database", i)
		}
	}
}

// edited takes the group of the clients away from running pods, and gives it back.
func (g *groups) edited(t *testing.T, l lab) {
	for _, c := range []struct {
		group string
		reach bool
	}{{groupDatabase, false}, {groupClients, true}} {
		l.kubectl(t, "-n", "shop", "patch", "securitygrouppolicy", "clients", "--type=merge", "-p", `{"spec":{"securityGroups":{"groupIds":["`+c.group+`"]}}}`)
		eventually(t, time.Minute, "client-a has "+c.group, func(t testing.TB) error {
			if got := g.dial(t, l, "client-a"); got != c.reach {
				return notYet("it reaches the database: %v\n%s", got, g.explain(t, l, "client-a"))
			}
			return nil
		})
	}
}

// ended deletes all pods, and waits until EC2 has no branch any more.
func (g *groups) ended(t *testing.T, l lab) {
	l.kubectl(t, "-n", "shop", "delete", "pod", "--all", "--wait", "--timeout=90s")
	eventually(t, 4*time.Minute, "no branch is left", func(t testing.TB) error {
		left := 0
		for _, eni := range l.account(t).interfaces(t) {
			if eni.InterfaceType == "branch" {
				left++
			}
		}
		var nodes v1alpha1.CNINodeList
		l.get(t, &nodes, "cninodes")
		for _, n := range nodes.Items {
			if n.Status.Trunkline != nil {
				left += len(n.Status.Trunkline.Branches)
			}
		}
		if left > 0 {
			return notYet("%d branches and records\n%s", left, fmt.Sprint(product{l}.run(t, time.Minute, "show", "branches")))
		}
		return nil
	})
}
