//go:build lab

package daemon_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/node/testparts"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/lab/sweep"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/test/testns"
)

var flags = testparts.Register()

// TestMain also runs as the daemon and as PID 1 of the tests' labs.
func TestMain(m *testing.M) {
	if args, ok := node.InitArgs(os.Args); ok {
		os.Exit(node.InitMain(args))
	}
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		os.Exit(serve(os.Args[2], os.Args[3]))
	}
	flag.Parse()
	os.Exit(m.Run())
}

func serve(name, stateDir string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	o := daemon.Options{Name: name, StateDir: stateDir, Version: "test", World: daemon.StartWorld}
	if err := daemon.Serve(context.Background(), o, log); err != nil {
		log.Error("serve", "err", err)
		return 1
	}
	return 0
}

const pauseImage = "trunkline.dev/test-pause:1"

// testLab returns the default lab, with this test's own programs.
func testLab(t *testing.T, nodes int) daemon.Lab {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := spec.Spec{Name: testns.Lab()}
	s.Nodes = make([]spec.Node, nodes)
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	pause, archive := filepath.Join(t.TempDir(), "pause"), filepath.Join(t.TempDir(), "pause.tar")
	build := exec.Command("go", "build", "-o", pause, "../node/testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build pause: %v\n%s", err, output)
	}
	if err := (image.Recipe{Files: map[string]string{"/pause": pause}, Entrypoint: []string{"/pause"}}).Write(archive, pauseImage); err != nil {
		t.Fatal(err)
	}
	p := flags.Find(t)
	l := daemon.Lab{
		Name: r.Name, World: r.Cloud, ControlPlane: spec.ControlPlaneHost, ServiceCIDR: r.ServiceCIDR, ClusterDNS: r.ClusterDNS,
		Roles:  []iam.Role{{Name: spec.DefaultRole, Instances: true}},
		Parts:  daemon.Parts{Kube: p.Kube, Lab: self, Containerd: p.Containerd, Runc: p.Runc, CNI: p.CNI, PauseImage: pauseImage},
		Images: []daemon.Image{{Path: archive, Refs: []string{pauseImage}}},
	}
	for _, n := range r.Nodes {
		l.Nodes = append(l.Nodes, daemon.Node{Name: n.Name, Cgroup: n.Cgroup, Labels: n.Labels, Image: n.Image, NoCNIPlugins: n.NoCNIPlugins})
	}
	return l
}

// up starts a daemon and converges it. The lab is swept after the test.
func up(t *testing.T, l daemon.Lab) *daemon.Client {
	t.Helper()
	stateDir := daemon.StateDir(l.Name) // beside the other labs, because labs share the machine's sysctls
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(daemon.LogPath(stateDir))
			t.Logf("daemon.log:\n%s", b)
		}
		if _, err := sweep.Sweep(context.Background(), sweep.Options{Lab: l.Name, StateDir: stateDir}); err != nil {
			t.Error(err)
		}
	})
	ours, err := daemon.Spawn(t.Context(), daemon.Detached{Name: l.Name, StateDir: stateDir, Argv: []string{l.Parts.Lab, "serve", l.Name, stateDir}})
	if err != nil || !ours {
		t.Fatalf("start the daemon: started %t, %v", ours, err)
	}
	client := daemon.NewClient(stateDir)
	converge(t, client, l)
	return client
}

func converge(t *testing.T, client *daemon.Client, l daemon.Lab) {
	t.Helper()
	err := client.Apply(t.Context(), l, func(e daemon.Event) {
		t.Logf("%-14s %-8s %6.2fs %s %s", e.Phase, e.State, e.Elapsed.Seconds(), e.Detail, e.Error)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func status(t *testing.T, client *daemon.Client) daemon.Status {
	t.Helper()
	st, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func kubectlCommand(l daemon.Lab, st daemon.Status, args ...string) *exec.Cmd {
	cmd := exec.Command(l.Parts.Kube, append([]string{"kubectl", "--kubeconfig=" + st.Endpoints.Kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECACHEDIR="+filepath.Join(st.StateDir, "kubectl")) // not in the user's home
	return cmd
}

func kubectl(t *testing.T, l daemon.Lab, st daemon.Status, args ...string) string {
	t.Helper()
	out, err := kubectlCommand(l, st, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: did not happen within three minutes", what)
		case <-tick.C:
		}
	}
}

// snapshotView ignores large directories in which the daemon does not write.
func snapshotView() sweep.View {
	return sweep.View{StateRoot: daemon.StateRoot, Ignore: []string{"/root", "/usr/local"}}
}

func TestLifeCycleOfALabAndItsNodesLeavesNothingBehind(t *testing.T) {
	before, err := sweep.TakeSnapshot(snapshotView())
	if err != nil {
		t.Fatal(err)
	}
	l := testLab(t, 2)
	client := up(t, l)
	st := status(t, client)
	if st.State != daemon.StateDone || len(st.Nodes) != 2 {
		t.Fatalf("status: %+v", st)
	}

	t.Run("every node is registered as its instance", func(t *testing.T) {
		for _, n := range st.Nodes {
			got := kubectl(t, l, st, "get", "node", n.KubeName, "-o", "jsonpath={.spec.providerID} {.status.nodeInfo.bootID} {.status.capacity.pods}")
			if want := fmt.Sprintf("aws:///%s/%s %s 58", n.Zone, n.InstanceID, n.BootID); got != want {
				t.Errorf("%s is %q, want %q", n.Name, got, want)
			}
		}
	})
	t.Run("up again changes nothing", func(t *testing.T) {
		converge(t, client, l)
		if again := status(t, client); again.Nodes[0].PID != st.Nodes[0].PID || again.Nodes[1].BootID != st.Nodes[1].BootID {
			t.Errorf("nodes were started again: %+v, before %+v", again.Nodes, st.Nodes)
		}
	})
	t.Run("the log of a host network pod can be read through the API", func(t *testing.T) {
		kubectl(t, l, st, "run", "hello", "--image="+pauseImage, "--image-pull-policy=IfNotPresent", "--restart=Never",
			`--overrides={"spec":{"hostNetwork":true,"tolerations":[{"operator":"Exists"}]}}`, "--", "hello")
		eventually(t, "the pod's log has hello", func() bool {
			out, _ := kubectlCommand(l, st, "logs", "hello").Output() // not yet
			return strings.Contains(string(out), "hello")
		})
	})
	t.Run("a rebooted node has another boot ID", func(t *testing.T) {
		if err := client.Power(t.Context(), "node1", daemon.PowerReboot); err != nil {
			t.Fatal(err)
		}
		now := status(t, client).Nodes[0]
		if now.BootID == st.Nodes[0].BootID || now.State != daemon.NodeRunning {
			t.Fatalf("after the reboot: %+v", now)
		}
		eventually(t, "the kubelet reports the new boot ID", func() bool {
			return kubectl(t, l, st, "get", "node", now.KubeName, "-o", "jsonpath={.status.nodeInfo.bootID}") == now.BootID
		})
	})
	t.Run("a stopped node starts again", func(t *testing.T) {
		if err := client.Power(t.Context(), "node1", daemon.PowerStop); err != nil {
			t.Fatal(err)
		}
		if now := status(t, client).Nodes[0]; now.State != daemon.NodeStopped || now.PID != 0 {
			t.Errorf("after the power cut: %+v", now)
		}
		if err := client.Power(t.Context(), "node1", daemon.PowerStart); err != nil {
			t.Fatal(err)
		}
		now := status(t, client).Nodes[0]
		eventually(t, "the kubelet reports the new boot ID", func() bool {
			return kubectl(t, l, st, "get", "node", now.KubeName, "-o", "jsonpath={.status.nodeInfo.bootID}") == now.BootID
		})
	})
	t.Run("the Node object of a terminated node is deleted", func(t *testing.T) {
		if err := client.Power(t.Context(), "node2", daemon.PowerTerminate); err != nil {
			t.Fatal(err)
		}
		if out := kubectl(t, l, st, "get", "nodes", "-o", "name"); strings.Contains(out, st.Nodes[1].KubeName) {
			t.Errorf("nodes: %s", out)
		}
	})
	t.Run("up launches a new instance for a terminated node", func(t *testing.T) {
		converge(t, client, l)
		now := status(t, client).Nodes[1]
		if now.InstanceID == st.Nodes[1].InstanceID || now.State != daemon.NodeRunning {
			t.Errorf("node2 is %+v, was instance %s", now, st.Nodes[1].InstanceID)
		}
	})
	t.Run("a node removed from lab.yaml is terminated", func(t *testing.T) {
		fewer := l
		fewer.Nodes, fewer.World.Instances = l.Nodes[:1], l.World.Instances[:1]
		converge(t, client, fewer)
		if now := status(t, client).Nodes; len(now) != 1 {
			t.Errorf("nodes: %+v", now)
		}
		if out := kubectl(t, l, st, "get", "nodes", "-o", "name"); strings.Count(out, "node/") != 1 {
			t.Errorf("nodes: %s", out)
		}
	})
	t.Run("the error names an unknown node or action", func(t *testing.T) {
		for _, tc := range [][2]string{{"node9", "stop"}, {"node1", "explode"}} {
			err := client.Power(t.Context(), tc[0], daemon.Power(tc[1]))
			if err == nil || !strings.Contains(err.Error(), tc[0]) && !strings.Contains(err.Error(), tc[1]) {
				t.Errorf("%v: %v", tc, err)
			}
		}
	})
	if err := client.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sweep.Sweep(t.Context(), sweep.Options{Lab: l.Name, StateDir: st.StateDir}); err != nil {
		t.Fatal(err)
	}
	after, err := sweep.TakeSnapshot(snapshotView())
	if err != nil {
		t.Fatal(err)
	}
	left, unknown := before.Leftovers(after, l.Name)
	for _, c := range left {
		t.Errorf("left behind: %s", c)
	}
	for _, c := range unknown {
		t.Logf("changed by other programs: %s", c)
	}
}

func TestSweepRemovesALabAfterItsDaemonWasKilled(t *testing.T) {
	l := testLab(t, 1)
	client := up(t, l)
	st := status(t, client)
	if err := exec.Command("kill", "-9", fmt.Sprint(st.PID)).Run(); err != nil {
		t.Fatal(err)
	}
	r, err := sweep.Sweep(t.Context(), sweep.Options{Lab: l.Name, StateDir: st.StateDir})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("swept %+v", r)
	again, err := sweep.Sweep(t.Context(), sweep.Options{Lab: l.Name, StateDir: st.StateDir})
	if err != nil || !again.Empty() {
		t.Errorf("a second sweep found %+v, %v", again, err)
	}
}
