//go:build netns

package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/trunkline/trunkline/test/node"
)

// A plugin that the node's image has is chained after ours, for hostPort.
func TestPortmapIsChained(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	buildPortmap(n)
	n.StartAgent()
	n.UntilReady()
	servesHostPort(t, n)
}

// As on EKS's image AL2023: the node's directory of plugins is empty before init.
func TestANodeWithoutReferencePluginsServesHostPorts(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{Reference: true})
	for _, name := range []string{"loopback", "portmap", "trunkline-cni"} {
		if info, err := os.Stat(filepath.Join(n.Dir, "bin", name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s after init: %v, %v", name, info, err)
		}
	}
	n.StartAgent()
	n.UntilReady()
	servesHostPort(t, n)
}

func buildPortmap(n *node.Node) string {
	at := filepath.Join(n.Dir, "bin", "portmap")
	n.Build("deploy/plugins", "github.com/containernetworking/plugins/plugins/meta/portmap", at)
	return at
}

// writeProgram writes a script. A process that another test starts meanwhile would inherit the
// descriptor until it executes its program, and the kernel executes no file that is open for
// writing (ETXTBSY).
func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// webPod is a pod with a hostPort.
func webPod(n *node.Node) *node.Pod {
	p := n.NewPod("web")
	p.RT.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	return p
}

// servesHostPort wires a pod with a hostPort, and connects to it by the node's address.
func servesHostPort(t *testing.T, n *node.Node) {
	t.Helper()
	p := webPod(n)
	cni, list := n.CNI()
	// portmap must run in the node's namespace, which it modifies.
	var result types.Result
	if err := n.NS.Run(func() (err error) { result, err = cni.AddNetworkList(t.Context(), list, p.RT); return err }); err != nil {
		t.Fatal(err)
	}
	got, err := current.NewResultFromResult(result)
	if err != nil || len(got.IPs) != 1 {
		t.Fatalf("the chain's result lacks the pod's address: %v, %v", result, err)
	}
	if err := n.NS.Run(func() error { return cni.CheckNetworkList(t.Context(), list, p.RT) }); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	var l net.Listener
	if err := p.Run(func() (err error) { l, err = net.Listen("tcp", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	primary := n.State().Primary(n.State().InstanceNamed("node1").ID).IPv4.Addresses[0]
	other := n.NewPod("client")
	if err := n.Add(other); err != nil {
		t.Fatal(err)
	}
	if err := other.Run(func() error {
		conn, err := net.DialTimeout("tcp", primary.String()+":8080", 5*time.Second)
		if err == nil {
			conn.Close()
		}
		return err
	}); err != nil {
		t.Errorf("hostPort: %v", err)
	}
	if err := n.NS.Run(func() error { return cni.DelNetworkList(t.Context(), list, p.RT) }); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// A hostPort is never lost silently: without portmap the pod is refused, until there is
// one.
func TestAHostPortIsRefusedWhilePortmapIsMissing(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	n.StartAgent()
	n.UntilReady()
	cni, list := n.CNI()
	p := webPod(n)
	add := func() error {
		return n.NS.Run(func() error { _, err := cni.AddNetworkList(t.Context(), list, p.RT); return err })
	}
	if err := add(); err == nil || !strings.Contains(err.Error(), "hostPort 8080/tcp would be lost") {
		t.Fatalf("ADD of a pod with a hostPort: %v, want a refusal that names it", err)
	}
	if err := n.Add(n.NewPod("plain")); err != nil {
		t.Errorf("a pod without a hostPort: %v", err)
	}
	buildPortmap(n)
	n.Until("the new portmap is chained", func() error {
		if cni, list = n.CNI(); len(list.Plugins) != 2 {
			return errors.New("it is not in the conflist")
		}
		return nil
	})
	if err := add(); err != nil {
		t.Errorf("ADD with portmap: %v", err)
	}
}

// Plugins of release 0.8, which EKS's image AL2 has, know no CNI version above 0.4.0 and
// refuse every call with a higher one.
func TestAChainedPluginThatKnowsOnlyAnOldCNIVersionWorks(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	portmap := buildPortmap(n)
	if err := os.Rename(portmap, portmap+"-1.9.1"); err != nil {
		t.Fatal(err)
	}
	const old = `#!/bin/sh
if [ "$CNI_COMMAND" = VERSION ]; then
	echo '{"cniVersion":"0.4.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0"]}'
	exit 0
fi
config=$(cat)
case $config in
*'"cniVersion":"0.4.0"'*) echo "$config" | "$0-1.9.1"; exit ;;
esac
echo '{"cniVersion":"0.4.0","code":1,"msg":"incompatible CNI versions"}'
exit 1
`
	writeProgram(t, portmap, old)
	n.StartAgent("cni-version=auto")
	n.UntilReady()
	if _, list := n.CNI(); list.CNIVersion != "0.4.0" || len(list.Plugins) != 2 {
		t.Errorf("CNI %s with %d plugins, want 0.4.0 with 2", list.CNIVersion, len(list.Plugins))
	}
	servesHostPort(t, n)
}

// The node as AWS's daemon leaves it: the runtime takes the first file by name.
func TestPodsAreWiredByTrunklineAfterAMoveFromAWSsCNI(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	dir := filepath.Join(n.Dir, "net.d")
	const aws = `{"cniVersion":"0.4.0","name":"aws-cni","disableCheck":true,"plugins":[{"type":"aws-cni"},{"type":"egress-cni"},{"type":"portmap"}]}`
	if err := os.WriteFile(filepath.Join(dir, "10-aws.conflist"), []byte(aws), 0o644); err != nil {
		t.Fatal(err)
	}
	const unavailable = "#!/bin/sh\necho '{\"code\":100,\"msg\":\"rpc error: code = Unavailable\"}'\nexit 1\n"
	writeProgram(t, filepath.Join(n.Dir, "bin", "aws-cni"), unavailable)
	add := func(name string) error {
		files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
		if err != nil {
			return err
		}
		list, err := libcni.ConfListFromFile(slices.Min(files))
		if err != nil {
			return err
		}
		cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Join(n.Dir, "bin")}, filepath.Join(n.Dir, "cache"), nil)
		pod := n.NewPod(name)
		return n.NS.Run(func() error { _, err := cni.AddNetworkList(t.Context(), list, pod.RT); return err })
	}
	if err := add("before"); err == nil || !strings.Contains(err.Error(), "Unavailable") {
		t.Fatalf("before the agent serves: %v, want AWS's plugin to be called", err)
	}
	n.StartAgent()
	n.UntilReady()
	n.Until("the runtime calls our plugin", func() error { return add("after") })
	if kept, err := os.ReadFile(filepath.Join(dir, "10-aws.conflist.before-trunkline")); err != nil || string(kept) != aws {
		t.Errorf("kept for the way back: %q, %v", kept, err)
	}
}
