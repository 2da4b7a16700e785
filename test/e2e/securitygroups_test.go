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
	l := groupsLab(t, "sg", "lab.yaml")
	requested(t, l)
	g := &groups{nodes: l.nodes(t), says: "the pod has exactly the groups %s"}
	g.run(t, l, []step{
		{"selected pods get branches with exactly their groups", g.branches},
		{"the VPC admits clients only", g.judged},
		{"groups of running pods are edited", g.edited},
		{"a policy is created after its pod", g.created},
		{"the labels of a running pod are changed", g.labelled},
		{"the cases of the connectivity test", g.connectivity},
		{"pods without a branch are evicted", g.evicted},
		{"branches of ended pods are deleted", g.ended},
	})
}

// groupsLab is a lab of examples/security-groups, with the policies there, until the test ends.
func groupsLab(t *testing.T, prefix, file string) lab {
	t.Helper()
	return groupsLabOf(t, prefix, "examples/security-groups/"+file)
}

func groupsLabOf(t *testing.T, prefix, path string) lab {
	t.Helper()
	l := lab{name: uniqueName(prefix), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", path)
	l.kubectl(t, "apply", "-f", "examples/security-groups/policies.yaml")
	return l
}

// requested waits until pods of the policies are admitted with a request.
func requested(t *testing.T, l lab) {
	t.Helper()
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

// TestSecurityGroupsOfOtherModes has labs with the other modes of security-groups-for-pods than own. A
// sample has one of them.
func TestSecurityGroupsOfOtherModes(t *testing.T) {
	drawn(t)
	modes := []struct {
		name string
		run  func(*testing.T)
	}{{"managed", byAWSsController}, {"ebpf", withoutTrunks}, {"auto", byNode}, {"auto on an ordinary account", byAnswer}}
	if _, rng := seeded(t); !full() {
		modes = modes[rng.IntN(len(modes)):][:1]
	}
	for _, m := range modes {
		t.Run(m.name, m.run)
	}
}

// byAWSsController has AWS's VPC resource controller, a model of it, make the branches,
// on an account that may not use trunks. It does not apply the edit of a policy to running pods.
func byAWSsController(t *testing.T) {
	l := groupsLab(t, "sgm", "managed.yaml")
	requested(t, l)
	g := &groups{nodes: l.nodes(t), says: "%s"}
	g.run(t, l, []step{
		{"selected pods get branches with exactly their groups", g.branches},
		{"the branches are those of AWS's controller", g.ofAWS},
		{"the VPC admits clients only", g.judged},
		{"a policy is created after its pod", g.created},
		{"the labels of a running pod are changed", g.labelled},
		{"the cases of the connectivity test", g.connectivity},
		{"branches of ended pods are deleted", g.ended},
	})
}

// withoutTrunks has the nodes enforce the groups of pods, of an account that may not
// use trunks. Pods are created beside the policies that select them.
func withoutTrunks(t *testing.T) {
	l := groupsLab(t, "sge", "without-trunks.yaml")
	g := &groups{nodes: l.nodes(t), onNodes: true}
	g.run(t, l, []step{
		{"selected pods start once their groups are known", g.start},
		{"nodes admit clients only", g.judged},
		{"groups of running pods are edited", g.edited},
		{"a policy is created after its pod", g.created},
		{"the labels of a running pod are changed", g.labelled},
		{"a pod with a group that EC2 does not have is not started", g.unknown},
		{"the cases of the connectivity test", g.connectivity},
	})
}

// Groups of examples/security-groups and of the default lab; lab/spec tests that the ids are theirs.
const (
	groupClients  = "sg-0ec6eddb5b4433d2f"
	groupDatabase = "sg-0e56fbec9866c7e09"
)

// groups is the state that the steps share.
type groups struct {
	nodes    []node
	onNodes  bool   // the nodes enforce the groups
	says     string // what explain says of a pod with groups
	database string // its address
}

func (g *groups) run(t *testing.T, l lab, steps []step) {
	for _, s := range steps {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, l) }) {
			return
		}
	}
}

// listens is the probe of a container: without one a pod is ready before it listens.
const listens = `"readinessProbe":{"exec":{"command":["/workload","dial","http","127.0.0.1:8080"]},"periodSeconds":1,"timeoutSeconds":5}`

// pod creates a pod with a role that serves port 8080.
func (g *groups) pod(t *testing.T, l lab, name, role string, node int) {
	l.kubectl(t, "-n", "shop", "run", name, "--image", workloadImage, "--restart=Never", "--labels", "role="+role,
		"--override-type=strategic", "--overrides", `{"spec":{"nodeName":"`+g.nodes[node].KubeName+`","terminationGracePeriodSeconds":1,"containers":[{"name":"`+name+`",`+listens+`}]}}`, "--", "serve")
}

func (g *groups) ready(t *testing.T, l lab, name string) (address string) {
	l.kubectl(t, "-n", "shop", "wait", "--for=condition=Ready", "pod", name, "--timeout=120s")
	return strings.TrimSpace(l.kubectl(t, "-n", "shop", "get", "pod", name, "-o", "jsonpath={.status.podIP}"))
}

// start starts a database on the second node, and a client and a stranger on each node.
func (g *groups) start(t *testing.T, l lab) {
	g.pod(t, l, "database", "database", 1)
	for i, suffix := range []string{"-a", "-b"} {
		g.pod(t, l, "client"+suffix, "client", i)
		g.pod(t, l, "stranger"+suffix, "none", i)
	}
	l.kubectl(t, "-n", "shop", "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
	g.database = g.ready(t, l, "database")
}

func (g *groups) branches(t *testing.T, l lab) {
	g.start(t, l)
	for name, want := range map[string]string{"database": groupDatabase, "client-a": groupClients, "client-b": groupClients} {
		if out := g.explain(t, l, name); !strings.Contains(out, fmt.Sprintf(g.says, want)) {
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

// ofAWS checks trunks and branches as AWS's controller makes them, and its events.
func (g *groups) ofAWS(t *testing.T, l lab) {
	trunks := 0
	for _, eni := range l.account(t).interfaces(t) {
		tags := map[string]string{}
		for _, tag := range eni.TagSet {
			tags[*tag.Key] = *tag.Value
		}
		if eni.InterfaceType == "trunk" {
			trunks++
		}
		if kind := string(eni.InterfaceType); (kind == "trunk" || kind == "branch") &&
			(*eni.Description != "aws-k8s-"+kind+"-eni" || tags["eks:eni:owner"] != "eks-vpc-resource-controller" || tags["trunkline.dev/managed-by"] != "") {
			t.Errorf("%s %s: %s, %v", kind, *eni.NetworkInterfaceId, *eni.Description, tags)
		}
	}
	if trunks != len(g.nodes) {
		t.Errorf("%d trunks of %d nodes", trunks, len(g.nodes))
	}
	events := l.kubectl(t, "-n", "shop", "get", "events", "--field-selector", "involvedObject.name=database", "-o", `jsonpath={range .items[*]}{.source.component} {.reason}{"\n"}{end}`)
	for _, reason := range []string{"SecurityGroupRequested", "ResourceAllocated"} {
		if !strings.Contains(events, "vpc-resource-controller "+reason) {
			t.Errorf("events of the database lack %s:\n%s", reason, events)
		}
	}
}

func (g *groups) explain(t testing.TB, l lab, pod string) string {
	t.Helper()
	return product{l}.run(t, time.Minute, "explain", "pod", "shop/"+pod).String()
}

// dial reports whether a pod reaches port 8080 of an address, and what the attempt printed.
func (g *groups) dial(t testing.TB, l lab, from, to string) (bool, result) {
	t.Helper()
	r := l.try(t.Context(), "kubectl", "-n", "shop", "exec", from, "--", "/workload", "dial", "http", to+":8080", "--timeout=1s")
	return r.err == nil, r
}

// expect checks which pods reach an address.
func (g *groups) expect(t *testing.T, l lab, to string, wants map[string]bool) {
	t.Helper()
	for from, want := range wants {
		if got, r := g.dial(t, l, from, to); got != want {
			t.Errorf("%s reaches %s: %v, want %v\n%s", from, to, got, want, r)
			g.until(t, l, want, from, to) // says for how long
		}
	}
}

// until waits until a pod reaches an address, or does not.
func (g *groups) until(t *testing.T, l lab, want bool, from, to string) {
	t.Helper()
	began := time.Now()
	eventually(t, time.Minute, fmt.Sprintf("%s reaches %s: %v", from, to, want), func(t testing.TB) error {
		if got, r := g.dial(t, l, from, to); got != want {
			return notYet("%s\n%s", r, g.explain(t, l, from))
		}
		return nil
	})
	t.Logf("%s reaches %s: %v, %s after the change", from, to, want, time.Since(began).Round(time.Millisecond))
}

func (g *groups) judged(t *testing.T, l lab) {
	g.expect(t, l, g.database, map[string]bool{"client-a": true, "client-b": true, "stranger-a": false, "stranger-b": false})
	for i, n := range g.nodes {
		reached := l.try(t.Context(), "exec", n.Name, "--", "timeout", "3", "bash", "-c", "</dev/tcp/"+g.database+"/8080").err == nil
		if own := g.onNodes && i == 1; reached != own { // the pod's own node is not judged there
			t.Errorf("node %d reaches the database: %v, want %v", i, reached, own)
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
		g.until(t, l, c.reach, "client-a", g.database)
	}
}

// policy is the manifest of a policy that gives pods with a role a group.
func policy(role, group string) string {
	return `{"apiVersion":"vpcresources.k8s.aws/v1beta1","kind":"SecurityGroupPolicy","metadata":{"name":"` + role + `","namespace":"shop"},` +
		`"spec":{"podSelector":{"matchLabels":{"role":"` + role + `"}},"securityGroups":{"groupIds":["` + group + `"]}}}`
}

// created creates the policy of a pod that runs, without a change of the pod. Where clients have
// branches, the VPC denies them the interface of the node in any case.
func (g *groups) created(t *testing.T, l lab) {
	g.pod(t, l, "late", "late", 0)
	late := g.ready(t, l, "late")
	g.expect(t, l, late, map[string]bool{"client-b": g.onNodes, "stranger-a": true, "stranger-b": true})
	l.apply(t, policy("late", groupDatabase))
	g.until(t, l, false, "stranger-b", late)
	g.expect(t, l, late, map[string]bool{"client-b": g.onNodes, "stranger-a": false})
}

// labelled changes the labels of a pod that runs: it comes to be a client, if the database's node
// decides who is one, then a database, then neither.
func (g *groups) labelled(t *testing.T, l lab) {
	stranger := g.ready(t, l, "stranger-a")
	label := func(role string) {
		l.kubectl(t, "-n", "shop", "label", "--overwrite", "pod", "stranger-a", "role="+role)
	}
	if g.onNodes {
		label("client")
		g.until(t, l, true, "stranger-a", g.database)
		g.expect(t, l, stranger, map[string]bool{"stranger-b": true, "client-b": false}) // clients admit nodes, of which pods without groups have the groups
	}
	label("database")
	g.until(t, l, false, "stranger-b", stranger)
	g.expect(t, l, stranger, map[string]bool{"client-b": g.onNodes})
	g.expect(t, l, g.database, map[string]bool{"stranger-a": false})
	label("none")
	g.until(t, l, true, "stranger-b", stranger)
	g.expect(t, l, g.database, map[string]bool{"stranger-a": false})
}

// evicted has the controller evict pods that a policy selects and that have no branch: one that was wired
// before its policy, and one that its node refuses, because it was admitted without a request. Their next
// pods have branches.
func (g *groups) evicted(t *testing.T, l lab) {
	f := failures{l, []string{admissions, controllers}}
	l.kubectl(t, "apply", "-f", "deploy/components/late-match-evict/evict-rbac.yaml")
	for _, w := range f.daemons() {
		l.kubectl(t, "-n", "kube-system", "set", "env", w, "TRUNKLINE_POD_SECURITY_GROUP_LATE_MATCH=evict")
	}
	f.ready(t, f.daemons()...)
	g.deployment(t, l, "wired")
	wired, address := g.deployed(t, l, "wired")
	g.expect(t, l, address, map[string]bool{"stranger-b": true})
	l.apply(t, policy("wired", groupDatabase))
	g.replaced(t, l, "wired", wired)

	f.unadmit(t)
	l.apply(t, policy("refused", groupDatabase))
	g.deployment(t, l, "refused")
	refused := ""
	eventually(t, time.Minute, "the node refuses the pod", func(t testing.TB) error {
		refused = strings.TrimSpace(l.kubectl(t, "-n", "shop", "get", "pods", "-l", "role=refused", "-o", "jsonpath={.items[*].metadata.name}"))
		out := l.kubectl(t, "-n", "shop", "get", "events", "--field-selector", "involvedObject.name="+refused+",reason=SGPNotApplied", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "requests no branch interface") {
			return notYet("pod %q, events %q", refused, out)
		}
		return nil
	})
	f.scale(t, 2)
	g.replaced(t, l, "refused", refused)
	l.kubectl(t, "-n", "shop", "delete", "deployment", "wired", "refused", "--cascade=foreground", "--wait", "--timeout=90s")
}

// deployment creates a deployment of one pod, of which the role is its name.
func (g *groups) deployment(t *testing.T, l lab, role string) {
	l.apply(t, fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q,"namespace":"shop"},"spec":{"selector":{"matchLabels":{"role":%[1]q}},`+
		`"template":{"metadata":{"labels":{"role":%[1]q}},"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"c","image":%[2]q,"args":["serve"],`+listens+`}]}}}}`, role, workloadImage))
}

// deployed is the pod of a deployment, once it is ready.
func (g *groups) deployed(t testing.TB, l lab, role string) (pod, address string) {
	t.Helper()
	l.kubectl(t, "-n", "shop", "rollout", "status", "deployment/"+role, "--timeout=120s")
	out := strings.Fields(l.kubectl(t, "-n", "shop", "get", "pods", "-l", "role="+role, "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}`))
	if len(out) != 2 {
		t.Fatalf("pods of %s: %v", role, out)
	}
	return out[0], out[1]
}

// replaced waits until a pod of a deployment is evicted, and checks the next one.
func (g *groups) replaced(t *testing.T, l lab, role, pod string) {
	began := time.Now()
	eventually(t, 3*time.Minute, "pod "+pod+" is evicted", func(t testing.TB) error {
		out := l.kubectl(t, "-n", "shop", "get", "events", "--field-selector", "involvedObject.name="+pod+",reason=SGPLateMatchEvicted", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "which gets a branch") || l.try(t.Context(), "kubectl", "-n", "shop", "get", "pod", pod).err == nil {
			return notYet("events %q\n%s", out, l.kubectl(t, "-n", "shop", "get", "events", "--field-selector", "involvedObject.name="+pod))
		}
		return nil
	})
	next, address := g.deployed(t, l, role)
	t.Logf("%s is replaced by %s, %s after the change", pod, next, time.Since(began).Round(time.Second))
	if out := g.explain(t, l, next); !strings.Contains(out, "the pod has exactly the groups "+groupDatabase) {
		t.Errorf("explain pod %s:\n%s", next, out)
	}
	g.expect(t, l, address, map[string]bool{"stranger-b": false})
}

// connectivity runs the cases of the connectivity test that give pods groups of their own.
func (g *groups) connectivity(t *testing.T, l lab) {
	report, r := product{l}.connectivity(t, "--test", "^security-group/", "--client-group", groupClients, "--server-group", groupDatabase)
	if passed, failed, skipped := report.counts(); passed < 5 || failed > 0 || len(skipped) > 0 {
		t.Errorf("%d passed, %d failed, skipped %q\n%s", passed, failed, skipped, r)
	}
}

// unknown creates a pod with a group that EC2 does not have. It starts once its policy names another.
func (g *groups) unknown(t *testing.T, l lab) {
	l.apply(t, policy("unknown", "sg-0123456789abcdef0"))
	g.pod(t, l, "unknown", "unknown", 0)
	eventually(t, time.Minute, "an event of the pod", func(t testing.TB) error {
		out := l.kubectl(t, "-n", "shop", "get", "events", "--field-selector", "involvedObject.name=unknown,reason=SGPNotApplied", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(out, "sg-0123456789abcdef0") {
			return notYet("events %q", out)
		}
		return nil
	})
	if address := strings.TrimSpace(l.kubectl(t, "-n", "shop", "get", "pod", "unknown", "-o", "jsonpath={.status.podIP}")); address != "" {
		t.Errorf("the pod has the address %s", address)
	}
	l.apply(t, policy("unknown", groupDatabase))
	g.expect(t, l, g.ready(t, l, "unknown"), map[string]bool{"stranger-b": false, "client-b": true})
}

// ended deletes all pods, and waits until EC2 has no branch any more.
func (g *groups) ended(t *testing.T, l lab) {
	l.kubectl(t, "-n", "shop", "delete", "pod", "--all", "--wait", "--timeout=90s")
	l.branchesAreDeleted(t)
}

// branchesAreDeleted waits until no branch is left, in EC2 or in a record, after all pods with
// branches have ended.
func (l lab) branchesAreDeleted(t *testing.T) {
	t.Helper()
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
