//go:build lab

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/image"
)

// TestImages is a lab with a node of each image of EKS: that of Ubuntu with the files that
// docs/compat.md names.
func TestImages(t *testing.T) {
	drawn(t)
	l := lab{name: uniqueName("im"), bin: binaries(t)}
	before := machine(t)
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", withOwnImage(t, "examples/images.yaml"))
	for _, s := range []step{
		{"pods on all nodes reach each other", podsOfAllNodesReachEachOther},
		{"pods of several interfaces of Ubuntu are reached, also after a reboot", ubuntuLeavesInterfacesAlone},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, l) })
	}
}

// ownImage is an image that only the archive in the lab's file has.
const ownImage = "own.test/app:1"

// withOwnImage is a lab's file that names an archive with ownImage beside it.
func withOwnImage(t *testing.T, example string) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "./lab/workload/cmd/workload")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the workload: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join("../..", example))
	if err == nil {
		err = image.Recipe{
			Files: map[string]string{"/workload": filepath.Join(dir, "workload")}, Dirs: []string{"/tmp"}, Entrypoint: []string{"/workload"},
		}.Write(filepath.Join(dir, "own.tar"), ownImage)
	}
	path := filepath.Join(dir, "lab.yaml")
	if err == nil {
		err = os.WriteFile(path, append(text, "images: [own.tar]\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ubuntuLeavesInterfacesAlone runs more pods on the node than its first interface has
// addresses for. With the image's own settings cloud-init configures them on the links and
// systemd-networkd deletes the pods' rules, so that pods of later interfaces are not reached.
func ubuntuLeavesInterfacesAlone(t *testing.T, l lab) {
	nodes := l.nodes(t)
	at := slices.IndexFunc(nodes, func(n node) bool { return n.Name == "ubuntu" })
	if at < 0 {
		t.Fatalf("the lab has no node ubuntu: %v", nodes)
	}
	ubuntu := nodes[at]
	nodes[(at+1)%len(nodes)].startPod(t, "asks")
	t.Cleanup(func() { l.remove(t, "deployment/many") })
	for _, boot := range []string{"first", "second"} {
		addresses := ubuntu.startMany(t)
		links := l.run(t, time.Minute, "exec", ubuntu.Name, "--", "ip", "-4", "-o", "addr")
		for _, addr := range addresses {
			l.kubectl(t, "exec", "asks", "--", "/workload", "dial", "http", addr+":8080", "--timeout=10s")
			if strings.Contains(links, " "+addr+"/") {
				t.Errorf("%s boot: the pod's address %s is on a link:\n%s", boot, addr, links)
			}
		}
		if out := (product{l}).run(t, 2*time.Minute, "status", "--wait=1m").String(); !strings.Contains(out, "no errors") {
			t.Errorf("%s boot: status:\n%s", boot, out)
		}
		l.remove(t, "deployment/many")
		l.goneWithin(t, time.Minute, "app=many")
		if boot == "first" {
			ubuntu.reboot(t)
		}
	}
}

// startMany runs a Deployment of more pods on the node than one interface of an m5.large has
// addresses for, and returns their addresses.
func (n node) startMany(t testing.TB) []string {
	t.Helper()
	const pods = 14 // nine on an interface
	n.l.apply(t, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: %d
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %s}
      terminationGracePeriodSeconds: 1
      containers: [{name: serve, image: %s, args: [serve]}]
`, pods, n.KubeName, workloadImage))
	n.l.kubectl(t, "rollout", "status", "deployment/many", "--timeout=2m")
	addresses := strings.Fields(n.l.kubectl(t, "get", "pods", "-l", "app=many", "-o", "jsonpath={.items[*].status.podIP}"))
	if len(addresses) != pods {
		t.Fatalf("%d pods have an address, want %d", len(addresses), pods)
	}
	return addresses
}

// podsOfAllNodesReachEachOther starts a pod of ownImage on each node.
func podsOfAllNodesReachEachOther(t *testing.T, l lab) {
	pods := map[string]string{}
	for _, n := range l.nodes(t) {
		pods["on-"+n.Name] = n.startPodOf(t, "on-"+n.Name, ownImage).String()
	}
	for from := range pods {
		for to, addr := range pods {
			if from != to {
				l.kubectl(t, "exec", from, "--", "/workload", "dial", "http", addr+":8080", "--timeout=10s")
			}
		}
	}
}
