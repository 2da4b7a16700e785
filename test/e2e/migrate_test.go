//go:build lab

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// TestMigration takes two nodes of three over from AWS's daemon by the steps of docs/migrate.md: one
// with secondary addresses and no CNI plugins in its image, one with delegated prefixes. The first
// goes back, and is taken over again. The third has another product's network. Each of the two
// has two pods that AWS's plugin wired, on different interfaces, and TCP connections between the nodes run all the time.
func TestMigration(t *testing.T) {
	l := lab{name: uniqueName("before"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/aws-node.yaml")
	all := l.nodes(t)
	m := &migration{nodes: all[:2], other: all[2]}
	if !t.Run("AWS's daemon serves the nodes", func(t *testing.T) { m.awsServes(t, l) }) {
		return
	}
	for _, s := range []struct{ from, to string }{{"one-a", "two-b"}, {"one-b", "two-a"}, {"two-a", "one-a"}, {"two-b", "one-b"}} {
		m.streams = append(m.streams, startStream(t, l, "tcp", s.from, m.foreign[s.to].String()+":8081"))
	}
	for _, s := range []step{
		{"Trunkline takes the nodes over", m.takeOver},
		{"pods of both networks reach each other", m.reach},
		{"pods of a node with another network reach both, and are reached", m.otherReaches},
		{"new pods get other addresses", m.newPods},
		{"the check of connections detects a lost route", m.breakIsDetected},
		{"a node goes back to AWS's daemon with its pods", m.goBack},
		{"what no pod needs any more is removed from it", m.uninstall},
		{"Trunkline takes it over again", m.takeOverAgain},
		{"what AWS's daemon left goes with its last pod", m.lastPodEnds},
	} {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, l) }) {
			return
		}
	}
}

// migration is the state that its steps share.
type migration struct {
	nodes   []node
	other   node                  // of another network
	foreign map[string]netip.Addr // pods that AWS's plugin wired
	held    map[string]bool       // interfaces that are attached to the nodes at the start
	streams []stream
}

// pod names: those of the first node end with -a, those of the second with -b.
func podOn(node int, name string) string { return name + "-" + string(rune('a'+node)) }

func (m *migration) awsServes(t *testing.T, l lab) {
	m.foreign, m.held = map[string]netip.Addr{}, map[string]bool{}
	for i, n := range m.nodes {
		for _, name := range []string{"one", "two"} {
			m.foreign[podOn(i, name)] = n.keepPod(t, podOn(i, name), "app=foreign")
		}
	}
	l.kubectl(t, "expose", "pod", "one-b", "--name=foreign", "--port=8080")
	interfaces, prefixes := map[string]int{}, 0
	for _, eni := range l.account(t).interfaces(t) {
		if eni.Attachment == nil || aws.ToString(eni.Attachment.InstanceId) == "" {
			continue
		}
		id := aws.ToString(eni.NetworkInterfaceId)
		m.held[id] = true
		for _, addr := range m.foreign {
			for _, a := range eni.PrivateIpAddresses {
				if aws.ToString(a.PrivateIpAddress) == addr.String() {
					interfaces[id]++
				}
			}
			for _, p := range eni.Ipv4Prefixes {
				if netip.MustParsePrefix(aws.ToString(p.Ipv4Prefix)).Contains(addr) {
					interfaces[id]++
					prefixes++
				}
			}
		}
	}
	if len(m.held) != 5 || prefixes != 2 || len(interfaces) < 3 {
		t.Errorf("%d interfaces, %d pods on addresses of prefixes, pods by interface %v", len(m.held), prefixes, interfaces)
	}
	for _, pod := range []string{"one-a", "one-b"} {
		l.kubectl(t, "exec", pod, "--", "/workload", "dial", "imds", "--timeout=5s")
	}
}

// keepPod starts a pod on the node that outlives the test's step, and returns its address.
func (n node) keepPod(t testing.TB, name, labels string) netip.Addr {
	t.Helper()
	n.l.kubectl(t, "run", name, "--image", workloadImage, "--restart=Never", "--labels", labels,
		"--overrides", `{"spec":{"nodeName":"`+n.KubeName+`","terminationGracePeriodSeconds":1}}`, "--", "serve")
	n.l.kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=90s")
	return n.l.podAddress(t, name)
}

func (l lab) podAddress(t testing.TB, name string) netip.Addr {
	t.Helper()
	return netip.MustParseAddr(strings.TrimSpace(l.kubectl(t, "get", "pod", name, "-o", "jsonpath={.status.podIP}")))
}

// documented returns the arguments of the command of kubectl in docs/migrate.md that begins
// with start.
func documented(t testing.TB, start string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?m)(?:`|^)kubectl (" + regexp.QuoteMeta(start) + "[^`\n]*)(?:`|$)").FindSubmatch(text)
	if found == nil {
		t.Fatalf("docs/migrate.md has no command that begins with kubectl %s", start)
	}
	return strings.Fields(string(found[1]))
}

func (m *migration) takeOver(t *testing.T, l lab) {
	l.kubectl(t, documented(t, "-n kube-system patch ds aws-node")...)
	l.kubectl(t, documented(t, "-n kube-system rollout status ds aws-node")...)
	manifests := withPodMetadata(t, filepath.Join(l.status(t).StateDir, "deploy", "trunkline"))
	eventually(t, time.Minute, "the manifests are applied", func(t testing.TB) error {
		if r := l.try(t.Context(), "kubectl", "apply", "-k", manifests); r.err != nil {
			return notYet("%v\n%s", r.err, r) // objects of a CRD are refused until it is served
		}
		return nil
	})
	for _, n := range m.nodes {
		if running := m.agentsOn(t, l, n); running != "pod/aws-node" {
			t.Errorf("on %s, before its label, run %s", n.Name, running)
		}
		m.move(t, l, n, "label node NODE trunkline.dev/cni=trunkline", "pod/trunkline-agent")
	}
	l.kubectl(t, "-n", "kube-system", "rollout", "status", agents, "--timeout=180s")
	for _, n := range m.nodes {
		n.ready(t, time.Minute)
	}
	statusIsClean(t, l)
	m.shown(t, l)
	for _, n := range m.nodes {
		// The agent replaces it once it serves; until then the runtime calls AWS's plugin, which fails.
		eventually(t, time.Minute, n.Name+" calls Trunkline's plugin", func(t testing.TB) error {
			if have := l.run(t, time.Minute, "exec", n.Name, "--", "cat", "/etc/cni/net.d/10-aws.conflist"); !strings.Contains(have, `"trunkline-cni"`) {
				return notYet("10-aws.conflist is\n%s", have)
			}
			return nil
		})
	}
}

// shown requires that `show addresses` names the pods that AWS's plugin wired.
func (m *migration) shown(t *testing.T, l lab) {
	// The first pass may precede the API server's list of pods: the next one names them.
	eventually(t, 2*time.Minute, "show addresses names the pods", func(t testing.TB) error {
		shown := product{l}.run(t, time.Minute, "show", "addresses", "--why").String()
		for name, addr := range m.foreign {
			if !regexp.MustCompile(regexp.QuoteMeta(addr.String()) + ` +assigned +default/` + name).MatchString(shown) {
				return notYet("%s of %s is not among\n%s", addr, name, shown)
			}
		}
		return nil
	})
}

// move labels a node by the command of docs/migrate.md that begins with start, and waits until
// these agents are on it.
func (m *migration) move(t *testing.T, l lab, n node, start, agents string) {
	t.Helper()
	l.kubectl(t, forNode(n, documented(t, start))...)
	eventually(t, 2*time.Minute, n.Name+" has "+agents, func(t testing.TB) error {
		if running := m.agentsOn(t, l, n); running != agents {
			return notYet("run %s", running)
		}
		return nil
	})
}

// agentsOn returns which of the two networks' pods are on a node, without their suffixes.
func (m *migration) agentsOn(t testing.TB, l lab, n node) string {
	t.Helper()
	var on []string
	for name := range strings.FieldsSeq(l.kubectl(t, "-n", "kube-system", "get", "pods", "-o", "name", "--field-selector", "spec.nodeName="+n.KubeName)) {
		for _, network := range []string{"pod/aws-node", "pod/trunkline-agent"} {
			if strings.HasPrefix(name, network+"-") {
				on = append(on, network)
			}
		}
	}
	return strings.Join(on, " ")
}

// statusIsClean requires a status without errors, in which every pod has an address.
func statusIsClean(t testing.TB, l lab) {
	t.Helper()
	eventually(t, 3*time.Minute, "status is clean", func(t testing.TB) error {
		if out := (product{l}).run(t, time.Minute, "status").String(); !strings.Contains(out, "no errors") || !strings.Contains(out, "✓ Pods") {
			return notYet("%s", out)
		}
		return nil
	})
}

// withPodMetadata returns a directory for `kubectl apply -k`: manifests with pod-metadata,
// which the charts on a node with a hop limit of 2 rely on.
func withPodMetadata(t testing.TB, manifests string) string {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Rel(dir, manifests)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`resources: [%s]
configMapGenerator:
- {name: trunkline, namespace: kube-system, behavior: merge, literals: [TRUNKLINE_POD_METADATA=true]}
`, base)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (m *migration) reach(t *testing.T, l lab) {
	service := strings.TrimSpace(l.kubectl(t, "get", "service", "foreign", "-o", "jsonpath={.spec.clusterIP}"))
	for i, n := range m.nodes {
		name := podOn(i, "new")
		at := n.keepPod(t, name, "app=new")
		for pod, addr := range m.foreign {
			l.kubectl(t, "exec", name, "--", "/workload", "dial", "http", addr.String()+":8080", "--timeout=10s")
			l.kubectl(t, "exec", pod, "--", "/workload", "dial", "http", at.String()+":8080", "--timeout=10s")
			n.exec(t, "timeout", "10", "bash", "-c", "</dev/tcp/"+addr.String()+"/8080")
		}
		l.kubectl(t, "exec", name, "--", "/workload", "dial", "http", service+":8080", "--timeout=10s")
	}
	for pod := range m.foreign {
		l.kubectl(t, "exec", pod, "--", "/workload", "dial", "http", service+":8080", "--timeout=10s")
		l.kubectl(t, "exec", pod, "--", "/workload", "dial", "imds", "--timeout=5s")
	}
}

func (m *migration) otherReaches(t *testing.T, l lab) {
	if running := l.kubectl(t, "-n", "kube-system", "get", "pods", "-o", "name", "--field-selector", "spec.nodeName="+m.other.KubeName); strings.Contains(running, "trunkline-agent") || strings.Contains(running, "aws-node") {
		t.Errorf("on the node with another network run:\n%s", running)
	}
	at := m.other.keepPod(t, "elsewhere", "app=other")
	for _, pod := range []string{"one-a", "one-b", podOn(0, "new"), podOn(1, "new")} {
		peer := l.podAddress(t, pod)
		l.kubectl(t, "exec", "elsewhere", "--", "/workload", "dial", "http", peer.String()+":8080", "--timeout=10s")
		l.kubectl(t, "exec", pod, "--", "/workload", "dial", "http", at.String()+":8080", "--timeout=10s")
	}
}

func (m *migration) newPods(t *testing.T, l lab) {
	const count = 24
	l.kubectl(t, "cordon", m.other.KubeName) // it has 13 addresses for pods
	t.Cleanup(func() { m.other.uncordon(t) })
	l.kubectl(t, "create", "deployment", "crowd", "--image", workloadImage, "--replicas", fmt.Sprint(count), "--", "/workload", "serve")
	t.Cleanup(func() { l.remove(t, "deployment/crowd") })
	l.kubectl(t, "rollout", "status", "deployment/crowd", "--timeout=170s")
	taken := m.unique(t)
	if len(taken) < count+len(m.foreign) {
		t.Errorf("%d pods have an address: %v", len(taken), taken)
	}
	attached := map[string]bool{}
	for _, eni := range l.account(t).interfaces(t) {
		if eni.Attachment != nil {
			attached[aws.ToString(eni.NetworkInterfaceId)] = true
		}
	}
	for id := range m.held {
		if !attached[id] {
			t.Errorf("%s, which AWS's daemon made, is not attached any more", id)
		}
	}
	wholeStreams(t, m.streams...)
}

// breakIsDetected is the deliberate break of the connections: the route of a pod that AWS's
// plugin wired is lost, as it would be if Trunkline removed what it did not make.
func (m *migration) breakIsDetected(t *testing.T, l lab) {
	at := m.foreign["two-b"]
	cut := startStream(t, l, "tcp", "one-a", at.String()+":8081")
	n := m.nodes[1]
	link := strings.Fields(l.run(t, time.Minute, "exec", n.Name, "--", "ip", "-o", "route", "show", at.String()))[2]
	n.exec(t, "ip", "route", "del", at.String())
	ctx := t.Context()
	if r := l.try(ctx, "kubectl", "exec", "one-a", "--", "/workload", "dial", "tcp", at.String()+":8081", "--timeout=5s"); r.err == nil {
		t.Errorf("the pod without its route answers: %s", r)
	}
	if _, err := cut.stop(); err == nil {
		t.Error("the connection lost nothing")
	} else {
		t.Log(err)
	}
	n.exec(t, "ip", "route", "add", at.String(), "dev", link, "scope", "link")
}

func (m *migration) lastPodEnds(t *testing.T, l lab) {
	for pod := range m.foreign {
		l.remove(t, "pod/"+pod)
	}
	for _, d := range []string{"deployment/coredns", "deployment/trunkline-controller"} { // AWS's plugin wired their pods too
		l.kubectl(t, "-n", "kube-system", "rollout", "restart", d)
		l.kubectl(t, "-n", "kube-system", "rollout", "status", d, "--timeout=170s")
	}
	for _, n := range m.nodes {
		eventually(t, 3*time.Minute, n.Name+" has nothing of AWS's daemon", func(t testing.TB) error {
			filter := l.run(t, time.Minute, "exec", n.Name, "--", "nft", "list", "ruleset")
			if strings.Contains(filter, "AWS") || strings.Contains(filter, "aws-cni") {
				return notYet("packet filter:\n%s\n%s", filter, product{l}.run(t, time.Minute, "show", "addresses", "--why"))
			}
			for rule := range strings.Lines(l.run(t, time.Minute, "exec", n.Name, "--", "ip", "-d", "rule")) {
				ofPod := strings.HasPrefix(rule, "512:") || strings.HasPrefix(rule, "1536:")
				if ofPod && strings.Contains(rule, "proto unspec") {
					return notYet("rule %s", rule)
				}
			}
			return nil
		})
	}
	l.remove(t, "service/foreign")
	statusIsClean(t, l)
}
