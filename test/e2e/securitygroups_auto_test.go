//go:build lab

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// byNode has two nodes with the setting auto: one has a trunk, and the VPC enforces groups at
// branches; the instance type of the other has none, and it enforces groups itself.
func byNode(t *testing.T) {
	l := groupsLab(t, "sga", "mixed.yaml")
	m := &mixed{groups: groups{nodes: l.nodes(t)}}
	m.run(t, l, []step{
		{"each node is chosen its mode", m.chosen},
		{"selected pods start on both nodes", m.start},
		{"the VPC and the node admit clients only", m.judged},
		{"it is explained per pod", m.explained},
		{"a restart of all agents and controllers changes nothing", m.restarted},
		{"the label overrides the mode for new pods", m.labelled},
	})
}

// byAnswer has two nodes with the setting auto, of types that can have a trunk, on an account to which EC2
// refuses the calls: the nodes enforce the groups, and nothing else was configured for that.
func byAnswer(t *testing.T) {
	text, err := os.ReadFile("../../examples/security-groups/without-trunks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	auto := bytes.Replace(text, []byte("securityGroupsForPods: ebpf"), []byte("securityGroupsForPods: auto"), 1)
	if bytes.Equal(auto, text) {
		t.Fatal("the example has another mode")
	}
	path := filepath.Join(t.TempDir(), "lab.yaml")
	if err := os.WriteFile(path, auto, 0o600); err != nil {
		t.Fatal(err)
	}
	l := groupsLabOf(t, "sgo", path)
	m := &mixed{groups: groups{nodes: l.nodes(t), onNodes: true}}
	m.run(t, l, []step{
		{"EC2 refuses the calls, and both nodes enforce groups", func(t *testing.T, l lab) { m.reports(t, l, "ebpf TrunkCallsRefused", "ebpf TrunkCallsRefused") }},
		{"pods that a policy selects are admitted with a request", func(t *testing.T, l lab) { requested(t, l) }},
		{"selected pods start", m.groups.start},
		{"nodes admit clients only", m.groups.judged},
		{"groups of running pods are edited", m.edited},
		{"a policy is created after its pod", m.created},
		{"nothing was made at EC2", func(t *testing.T, l lab) {
			for _, eni := range l.account(t).interfaces(t) {
				if eni.InterfaceType == "trunk" || eni.InterfaceType == "branch" {
					t.Errorf("%s %s", eni.InterfaceType, *eni.NetworkInterfaceId)
				}
			}
		}},
	})
}

// mixed is the state that the steps share. The first node has a trunk, the second has none.
type mixed struct {
	groups
	branch, node string // addresses of the databases of the two nodes
}

// modeOf is the mode that a node reports, with its reason.
func (m *mixed) modeOf(t testing.TB, l lab, node int) string {
	t.Helper()
	return l.kubectl(t, "get", "nodenetwork", m.nodes[node].KubeName, "-o", "jsonpath={.status.podGroups.mode} {.status.podGroups.reason}")
}

func (m *mixed) reports(t *testing.T, l lab, wants ...string) {
	t.Helper()
	eventually(t, 2*time.Minute, "nodes report their modes", func(t testing.TB) error {
		for i, want := range wants {
			if got := m.modeOf(t, l, i); got != want {
				return notYet("node %d reports %q, want %q", i, got, want)
			}
		}
		return nil
	})
}

func (m *mixed) chosen(t *testing.T, l lab) {
	m.reports(t, l, "own TrunkCallsAllowed", "ebpf InstanceTypeWithoutTrunk")
	eventually(t, time.Minute, "both nodes have a capacity for selected pods", func(t testing.TB) error {
		for i, want := range []string{"18", ""} {
			got := l.kubectl(t, "get", "node", m.nodes[i].KubeName, "-o", `jsonpath={.status.capacity.vpc\.amazonaws\.com/pod-eni}`)
			if got == "" || want != "" && got != want {
				return notYet("node %d has %q", i, got)
			}
		}
		return nil
	})
	eventually(t, 2*time.Minute, "pods that a policy selects are admitted with a request", func(t testing.TB) error {
		for _, role := range []string{"client", "database"} {
			r := l.try(t.Context(), "kubectl", "-n", "shop", "run", "asked", "--image", workloadImage, "--labels", "role="+role, "--dry-run=server", "-o", "json")
			if r.err != nil || !strings.Contains(r.String(), "vpc.amazonaws.com/pod-eni") {
				return notYet("role %s: %v\n%s", role, r.err, r)
			}
		}
		return nil
	})
}

func (m *mixed) start(t *testing.T, l lab) {
	for i, suffix := range []string{"-a", "-b"} {
		m.pod(t, l, "database"+suffix, "database", i)
		m.pod(t, l, "client"+suffix, "client", i)
		m.pod(t, l, "stranger"+suffix, "none", i)
	}
	l.kubectl(t, "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
	m.branch, m.node = m.ready(t, l, "database-a"), m.ready(t, l, "database-b")
}

// judged: a client of the second node has the interface of its node in the VPC, which is no client: that
// a branch does not admit it is what security-groups-without-trunks.md says.
func (m *mixed) judged(t *testing.T, l lab) {
	m.expect(t, l, m.branch, map[string]bool{"client-a": true, "client-b": false, "stranger-a": false, "stranger-b": false})
	m.expect(t, l, m.node, map[string]bool{"client-a": true, "client-b": true, "stranger-a": false, "stranger-b": false})
	for i, n := range m.nodes {
		for to, own := range map[string]bool{m.branch: false, m.node: i == 1} { // a node that enforces groups does not judge itself
			reached := l.try(t.Context(), "exec", n.Name, "--", "timeout", "3", "bash", "-c", "</dev/tcp/"+to+"/8080").err == nil
			if reached != own {
				t.Errorf("node %d reaches %s: %v, want %v", i, to, reached, own)
			}
		}
	}
}

func (m *mixed) explained(t *testing.T, l lab) {
	for pod, want := range map[string][]string{
		"database-a": {"the VPC, at a branch: security-groups-for-pods is auto, and own on", "TrunkCallsAllowed", "the pod has exactly the groups " + groupDatabase},
		"database-b": {"the node: security-groups-for-pods is auto, and ebpf on", "InstanceTypeWithoutTrunk", "enforces exactly the groups " + groupDatabase},
		"stranger-b": {"the pod has no security groups of its own"},
	} {
		out := m.explain(t, l, pod)
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("explain pod %s lacks %q:\n%s", pod, text, out)
			}
		}
	}
	status := product{l}.run(t, time.Minute, "status").String()
	for _, text := range []string{"security groups for pods: own (TrunkCallsAllowed)", "security groups for pods: ebpf (InstanceTypeWithoutTrunk)"} {
		if !strings.Contains(status, text) {
			t.Errorf("status lacks %q:\n%s", text, status)
		}
	}
	applied := l.kubectl(t, "-n", "shop", "get", "securitygrouppolicy", "database", "-o", "jsonpath={.status.matchedPods} {.status.appliedPods} {.status.refusedPods}")
	if got := strings.Fields(applied); len(got) < 2 || got[0] != "2" || got[1] != "2" {
		t.Errorf("the policy has counted %q, want two pods, both applied", applied)
	}
}

func (m *mixed) restarted(t *testing.T, l lab) {
	for _, d := range []string{"daemonset/trunkline-agent", "deployment/trunkline-controller", "deployment/trunkline-admission"} {
		l.kubectl(t, "-n", "kube-system", "rollout", "restart", d)
	}
	for _, d := range []string{"daemonset/trunkline-agent", "deployment/trunkline-controller", "deployment/trunkline-admission"} {
		l.kubectl(t, "-n", "kube-system", "rollout", "status", d, "--timeout=180s")
	}
	m.judged(t, l)
	m.reports(t, l, "own TrunkCallsAllowed", "ebpf InstanceTypeWithoutTrunk")
	m.pod(t, l, "client-c", "client", 1)
	m.pod(t, l, "client-d", "client", 0)
	m.ready(t, l, "client-c")
	m.ready(t, l, "client-d")
	m.expect(t, l, m.node, map[string]bool{"client-c": true, "client-d": true})
}

// labelled has the first node enforce groups itself: pods with branches keep them. A wrong label is named, and
// changes nothing.
func (m *mixed) labelled(t *testing.T, l lab) {
	const label = "trunkline.dev/security-groups-for-pods"
	l.kubectl(t, "label", "node", m.nodes[0].KubeName, label+"=ebpf")
	m.reports(t, l, "ebpf Label")
	m.pod(t, l, "database-c", "database", 0)
	third := m.ready(t, l, "database-c")
	m.expect(t, l, third, map[string]bool{"client-a": true, "client-b": true, "stranger-a": false, "stranger-b": false})
	m.expect(t, l, m.branch, map[string]bool{"client-a": true, "stranger-a": false, "stranger-b": false})
	for pod, want := range map[string]string{"database-c": "the node: security-groups-for-pods is auto, and ebpf on", "database-a": "the pod got its branch before"} {
		if out := m.explain(t, l, pod); !strings.Contains(out, want) {
			t.Errorf("explain pod %s lacks %q:\n%s", pod, want, out)
		}
	}
	l.kubectl(t, "label", "--overwrite", "node", m.nodes[0].KubeName, label+"=trunk")
	m.reports(t, l, "ebpf InvalidLabel")
	l.kubectl(t, "label", "node", m.nodes[0].KubeName, label+"-")
	m.reports(t, l, "own TrunkCallsAllowed")
	m.expect(t, l, third, map[string]bool{"client-a": true, "stranger-a": false, "stranger-b": false}) // its node still enforces its groups
}
