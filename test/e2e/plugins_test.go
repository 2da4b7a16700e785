//go:build lab

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAL2023 is a lab of two nodes with EKS's image AL2023. It has no CNI plugins, of which
// containerd calls loopback for every pod and hostPort needs portmap, and its network is
// systemd-networkd's.
func TestAL2023(t *testing.T) {
	l := lab{name: uniqueName("al"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", "examples/al2023.yaml")
	for _, s := range []step{
		{"the connectivity test passes", connectivityPassesWithoutGroups},
		{"a pod's hostPort is served", hostPortIsServed},
		{"the configuration that AWS's daemon leaves is replaced", leftConflistIsReplaced},
		{"another configuration that sorts first is an error", otherConflistIsReported},
		{"systemd-networkd leaves the plugin's rules alone", networkdLeavesThePluginAlone},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

func hostPortIsServed(t *testing.T, l lab) {
	l.apply(t, `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: `+workloadImage+`
    args: [serve]
    ports: [{containerPort: 8080, hostPort: 28090}]
`)
	t.Cleanup(func() { l.remove(t, "pod/web") })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/web", "--timeout=90s")
	l.runPod(t, "asks", "serve")
	node := strings.TrimSpace(l.kubectl(t, "get", "pod", "web", "-o", "jsonpath={.status.hostIP}"))
	l.kubectl(t, "exec", "asks", "--", "/workload", "dial", "http", fmt.Sprintf("%s:28090", node), "--size=1000", "--timeout=10s")
	if out := (product{l}).run(t, 2*time.Minute, "status", "--wait=1m").String(); !strings.Contains(out, "no errors") {
		t.Errorf("status:\n%s", out)
	}
}

// leave writes a file into the node's directory of configurations.
func leave(t *testing.T, l lab, name, content string) {
	t.Helper()
	l.run(t, time.Minute, "exec", "node1", "--", "sh", "-c", "cat > /etc/cni/net.d/"+name+" <<'END'\n"+content+"\nEND")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // t's has ended
		defer cancel()
		if r := l.try(ctx, "exec", "node1", "--", "rm", "-f", "/etc/cni/net.d/"+name); r.err != nil {
			t.Errorf("remove %s from node1: %v\n%s", name, r.err, r)
		}
	})
}

func leftConflistIsReplaced(t *testing.T, l lab) {
	leave(t, l, "10-aws.conflist", `{"cniVersion":"0.4.0","name":"aws-cni","disableCheck":true,"plugins":[{"type":"aws-cni"},{"type":"egress-cni"},{"type":"portmap"}]}`)
	eventually(t, time.Minute, "an event says that it was replaced", func(t testing.TB) error {
		if out := l.kubectl(t, "get", "events", "--field-selector", "reason=AWSConfigurationReplaced"); !strings.Contains(out, "10-aws.conflist") {
			return notYet("events: %s", out)
		}
		return nil
	})
	l.runPod(t, "moved", "serve")
}

func otherConflistIsReported(t *testing.T, l lab) {
	leave(t, l, "05-bridge.conflist", `{"cniVersion":"1.0.0","name":"bridge","plugins":[{"type":"bridge"}]}`)
	eventually(t, time.Minute, "status names the file", func(t testing.TB) error {
		if out := (product{l}).run(t, time.Minute, "status").String(); !strings.Contains(out, "05-bridge.conflist sorts before") {
			return notYet("status:\n%s", out)
		}
		return nil
	})
}

// reconfigure has systemd-networkd configure the primary interface again, and prints what
// changes until its default route is back.
const reconfigure = `m=$(mktemp); ip monitor rule route > $m & p=$!; sleep 1; networkctl reconfigure eth0
for n in $(seq 100); do grep -q '^default via.*dev eth0' $m && break; sleep 0.2; done; kill $p; cat $m`

// restartNetworkd ends systemd-networkd, which PID 1 starts again.
const restartNetworkd = `pkill -x systemd-network; sleep 1; for n in $(seq 100); do networkctl list >/dev/null 2>&1 && break; sleep 0.2; done; `

// networkdLeavesThePluginAlone has systemd-networkd configure an interface again on the node
// of a pod. It deletes rules of other programs then, but the image says otherwise. Without
// the image's file, the deliberate break, it does, and the agent restores them.
func networkdLeavesThePluginAlone(t *testing.T, l lab) {
	l.runPod(t, "stays", "serve")
	address := strings.TrimSpace(l.kubectl(t, "get", "pod", "stays", "-o", "jsonpath={.status.podIP} {.status.hostIP}"))
	pod, host, _ := strings.Cut(address, " ")
	nodes := l.nodes(t)
	at := slices.IndexFunc(nodes, func(n node) bool { return n.Address.String() == host })
	if at < 0 {
		t.Fatalf("no node has the address %s", host)
	}
	inside := func(command string) string {
		return l.run(t, 2*time.Minute, "exec", nodes[at].Name, "--", "sh", "-c", command)
	}
	rule := "from all to " + pod + " lookup main"
	if have := inside("ip rule"); !strings.Contains(have, rule) {
		t.Fatalf("the node has no rule of the pod %s:\n%s", pod, have)
	}
	if changed := inside(reconfigure); !strings.Contains(changed, "\ndefault via") || strings.Contains(changed, rule) {
		t.Errorf("systemd-networkd deleted a rule of the pod, or did nothing:\n%s", changed)
	}
	const file = "/etc/systemd/networkd.conf.d/80-release.conf"
	changed := inside("mv " + file + " /run/ && " + restartNetworkd + reconfigure)
	inside("mv /run/80-release.conf " + file + " && " + restartNetworkd)
	if !strings.Contains(changed, "Deleted 512:") {
		t.Errorf("without %s systemd-networkd left the rules alone; the check above cannot fail:\n%s", file, changed)
	}
	eventually(t, time.Minute, "the agent restores the pod's rule", func(t testing.TB) error {
		if have := inside("ip rule"); !strings.Contains(have, rule) {
			return notYet("rules:\n%s", have)
		}
		return nil
	})
}
