//go:build lab

package e2e

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// forNode puts the node's name in the place of NODE in a command of docs/migrate.md.
func forNode(n node, args []string) (out []string) {
	for _, a := range args {
		out = append(out, strings.ReplaceAll(a, "NODE", n.KubeName))
	}
	return out
}

// goBack leaves the first node to AWS's daemon. On it run pods that AWS's plugin wired, of which
// AWS's daemon has had a record, and one that Trunkline wired, of which it has none.
func (m *migration) goBack(t *testing.T, l lab) {
	n := m.nodes[0]
	ours := l.podAddress(t, "new-a").String()
	streams := []stream{
		startStream(t, l, "tcp", "new-a", m.foreign["two-b"].String()+":8081"),
		startStream(t, l, "tcp", "new-b", ours+":8081"),
		startStream(t, l, "tcp", "one-b", m.foreign["two-a"].String()+":8081"),
	}
	before := n.podsByAddress(t)
	m.askHandover(t, l, n)
	m.move(t, l, n, "label node NODE trunkline.dev/cni=none", "")
	n.left(t)
	m.move(t, l, n, "label node NODE trunkline.dev/cni-", "pod/aws-node")
	l.kubectl(t, documented(t, "-n kube-system rollout status ds aws-node")...)
	n.ready(t, time.Minute)
	adopted := n.ofAWSsDaemon(t)
	for addr, name := range before {
		if adopted[addr] != name {
			t.Errorf("AWS's daemon has %s for the pod %q, want %q", addr, adopted[addr], name)
		}
	}

	// Without a record of an address in use, AWS's daemon gives it to one of the next pods.
	m.foreign["back-a"] = n.keepPod(t, "back-a", "app=foreign")
	c := startCrowd(t, l, "returned", onlyOn(n.KubeName))
	c.scale(t, 6)
	c.settled(t, 2*time.Minute, 6)
	m.unique(t)
	after, added := n.podsByAddress(t), n.ofAWSsDaemon(t)
	for addr, name := range after {
		if added[addr] != name {
			t.Errorf("AWS's daemon has %s for the pod %q, want %q", addr, added[addr], name)
		}
	}
	for addr, name := range before {
		if after[addr] != name {
			t.Errorf("%s is of the pod %q, was of %q", addr, after[addr], name)
		}
	}
	for _, at := range []string{ours, m.foreign["one-a"].String(), m.foreign["back-a"].String()} {
		l.kubectl(t, "exec", "new-b", "--", "/workload", "dial", "http", at+":8080", "--timeout=10s")
	}
	for _, pod := range []string{"new-a", "one-a", "back-a"} {
		l.kubectl(t, "exec", pod, "--", "/workload", "dial", "http", m.foreign["one-b"].String()+":8080", "--timeout=10s")
	}
	wholeStreams(t, streams...)
}

// askHandover asks the agent which pods AWS's daemon will not adopt.
func (m *migration) askHandover(t *testing.T, l lab, n node) {
	agent := strings.TrimSpace(l.kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=trunkline-agent",
		"--field-selector", "spec.nodeName="+n.KubeName, "-o", "jsonpath={.items[0].metadata.name}"))
	command := documented(t, "-n kube-system exec POD")
	command[slices.Index(command, "POD")] = agent
	if out := l.kubectl(t, command...); !strings.Contains(out, "addresses in use are in the checkpoint") || strings.Contains(out, "delete these pods") {
		t.Errorf("handover of %s:\n%s", n.Name, out)
	}
}

// left waits until the agent has left the node, and requires that what docs/migrate.md calls
// gone is gone.
func (n node) left(t *testing.T) {
	events := forNode(n, documented(t, "-n default get events --field-selector reason=TrunklineLeft"))
	eventually(t, time.Minute, "the agent has left "+n.Name, func(t testing.TB) error {
		if out := n.l.kubectl(t, append(events, "-o", "name")...); strings.TrimSpace(out) == "" {
			return notYet("no event")
		}
		return nil
	})
	eventually(t, time.Minute, n.KubeName+" is NotReady", func(t testing.TB) error {
		var object corev1.Node
		n.l.get(t, &object, "node", n.KubeName)
		for _, c := range object.Status.Conditions {
			switch {
			case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
				return notYet("%s", c.Message)
			case c.Type == corev1.NodeNetworkUnavailable:
				return notYet("the Node has the condition %+v", c)
			}
		}
		return nil
	})
	if have := n.l.run(t, time.Minute, "exec", n.Name, "--", "ls", "/etc/cni/net.d"); strings.Contains(have, ".conflist") {
		t.Errorf("%s has configurations of CNI:\n%s", n.Name, have)
	}
	if have := n.l.kubectl(t, "get", "nodenetworks", "-o", "name"); strings.Contains(have, n.KubeName) {
		t.Errorf("the API server has\n%s", have)
	}
	if out := (product{n.l}).run(t, time.Minute, "status").String(); strings.Contains(out, "has not left") {
		t.Errorf("status:\n%s", out)
	}
}

// podsByAddress returns the names of the node's pods that have an address of their own.
func (n node) podsByAddress(t testing.TB) map[netip.Addr]string {
	t.Helper()
	var pods corev1.PodList
	n.l.get(t, &pods, "pods", "-A", "--field-selector", "spec.nodeName="+n.KubeName+",status.phase=Running")
	out := map[netip.Addr]string{}
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || p.DeletionTimestamp != nil || p.Status.PodIP == "" {
			continue
		}
		addr, name := netip.MustParseAddr(p.Status.PodIP), p.Namespace+"/"+p.Name
		if other, twice := out[addr]; twice {
			t.Errorf("%s and %s have %s", other, name, addr)
		}
		out[addr] = name
	}
	return out
}

// ofAWSsDaemon returns the names of the pods of which AWS's daemon knows that they use an
// address, by its introspection. There each address of an interface is listed, and those in use
// have the names of their pods.
func (n node) ofAWSsDaemon(t testing.TB) map[netip.Addr]string {
	t.Helper()
	out := n.l.run(t, time.Minute, "exec", n.Name, "--", "bash", "-c",
		`exec 3<>/dev/tcp/127.0.0.1/61679; printf 'GET /v1/enis HTTP/1.0\r\n\r\n' >&3; cat <&3`)
	_, body, _ := strings.Cut(out, "\r\n\r\n")
	var cards map[string]struct {
		ENIs map[string]struct {
			AvailableIPv4Cidrs map[string]struct {
				IPAddresses map[netip.Addr]struct {
					IPAMMetadata struct {
						Namespace string `json:"k8sPodNamespace"`
						Pod       string `json:"k8sPodName"`
					}
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &cards); err != nil {
		t.Fatalf("AWS's daemon answers %v:\n%s", err, out)
	}
	names := map[netip.Addr]string{}
	for _, eni := range cards["0"].ENIs {
		for _, cidr := range eni.AvailableIPv4Cidrs {
			for addr, used := range cidr.IPAddresses {
				names[addr] = used.IPAMMetadata.Namespace + "/" + used.IPAMMetadata.Pod
			}
		}
	}
	return names
}

// unique requires that no two pods have the same address, and returns the addresses.
func (m *migration) unique(t *testing.T) (taken map[netip.Addr]bool) {
	t.Helper()
	taken = map[netip.Addr]bool{}
	for _, n := range append(slices.Clone(m.nodes), m.other) {
		for _, addr := range n.pods(t) {
			if taken[addr] {
				t.Errorf("two pods have %s", addr)
			}
			taken[addr] = true
		}
	}
	return taken
}

// uninstall runs `trunkline uninstall` on the node that went back, once the pods that Trunkline
// wired have ended. AWS's daemon serves the node all the time.
func (m *migration) uninstall(t *testing.T, l lab) {
	n := m.nodes[0]
	inside := func(args ...string) string {
		return l.run(t, time.Minute, append([]string{"exec", n.Name, "--"}, args...)...)
	}
	ours := l.podAddress(t, "new-a")
	l.remove(t, "pod/new-a")
	if have := n.ofAWSsDaemon(t)[ours]; have != "" {
		t.Errorf("AWS's daemon has %s of the ended pod for %s", ours, have)
	}
	if have := inside("ip", "rule"); slices.Contains(strings.Fields(have), ours.String()) {
		t.Errorf("the rules of the ended pod with %s are left:\n%s", ours, have)
	}
	inside("nft", "list", "table", "inet", "trunkline") // fails without the table
	checkpoint := inside("cat", "/var/run/aws-node/ipam.json")

	command := forNode(n, documented(t, "debug node/NODE"))
	command[slices.Index(command, "--image=IMAGE")] = "--image=trunkline.dev/trunkline:dev"
	said := l.kubectl(t, command...)
	pod := regexp.MustCompile(`node-debugger-\S+`).FindString(said)
	if pod == "" {
		pod = strings.TrimPrefix(strings.TrimSpace(l.kubectl(t, "get", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-debug", "-o", "name")), "pod/")
	}
	t.Cleanup(func() { l.remove(t, "pod/"+pod) })
	eventually(t, time.Minute, "trunkline uninstall succeeds", func(t testing.TB) error {
		if phase := strings.TrimSpace(l.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase}")); phase != string(corev1.PodSucceeded) {
			return notYet("%s: %s", phase, l.try(t.Context(), "kubectl", "logs", pod))
		}
		return nil
	})
	if r := l.try(t.Context(), "exec", n.Name, "--", "nft", "list", "table", "inet", "trunkline"); r.err == nil || !strings.Contains(r.String(), "No such file") {
		t.Errorf("the table after the uninstall: %s", r)
	}
	if now := inside("cat", "/var/run/aws-node/ipam.json"); now != checkpoint {
		t.Errorf("the checkpoint of AWS's daemon was\n%s\nis\n%s", checkpoint, now)
	}
	if have := inside("sh", "-c", "cat /etc/cni/net.d/*.conflist"); !strings.Contains(have, `"aws-cni"`) || strings.Contains(have, "trunkline") {
		t.Errorf("configuration of CNI:\n%s", have)
	}
	if have := inside("ip", "-d", "rule"); strings.Count(have, "\n1024:") != 1 {
		t.Errorf("AWS's rule 1024 is not there:\n%s", have)
	}
	l.kubectl(t, "exec", "new-b", "--", "/workload", "dial", "http", m.foreign["back-a"].String()+":8080", "--timeout=10s")
}

// takeOverAgain takes the node over with a pod that AWS's plugin has wired since.
func (m *migration) takeOverAgain(t *testing.T, l lab) {
	n := m.nodes[0]
	s := startStream(t, l, "tcp", "new-b", m.foreign["back-a"].String()+":8081")
	m.move(t, l, n, "label node NODE trunkline.dev/cni=trunkline", "pod/trunkline-agent")
	l.kubectl(t, "-n", "kube-system", "rollout", "status", agents, "--timeout=180s")
	n.ready(t, time.Minute)
	statusIsClean(t, l)
	m.shown(t, l)
	m.unique(t)
	wholeStreams(t, s)
}
