package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/lab/sweep"
	"github.com/trunkline/trunkline/test/testns"
)

func update() bool { return flag.Lookup("update").Value.String() == "true" }

// TestMain makes trunkline-lab a command of the scripts, with a state directory of the
// test, so that scripts do not see the labs of this machine.
func TestMain(m *testing.M) {
	flag.Bool("update", false, "write golden files")
	testscript.Main(m, map[string]func(){
		"trunkline-lab": func() {
			root, err := os.Getwd()
			if err != nil {
				panic(err)
			}
			s := &session{
				ctx: context.Background(), cleanup: context.Background(), version: "test",
				console: &console{out: os.Stdout, errs: os.Stderr},
				labs:    labs{root: filepath.Join(root, "state"), self: "trunkline-lab"},
			}
			if err := harmless(os.Args[1:], s.labs, os.Getenv("LAB")); err != nil {
				panic(err)
			}
			os.Exit(s.main(os.Args[1:]))
		},
	})
}

// harmless refuses a down that could remove a user's lab. It finds processes, namespaces and
// cgroups by the lab's name on the whole machine: a script may take down only its own lab.
func harmless(args []string, l labs, own string) error {
	if !slices.Contains(args, "down") || slices.Contains(args, "--help") {
		return nil
	}
	names, err := l.list()
	if err != nil {
		return err
	}
	if i := slices.Index(args, "--name"); i >= 0 {
		names = args[i+1 : i+2]
	} else if !slices.Contains(args, "--all") {
		return errors.New("down without --name could remove the user's lab: use --name $LAB")
	}
	for _, name := range names {
		if name != own && spec.CheckName(name) == nil { // an invalid name is refused
			return fmt.Errorf("down of lab %s could remove the user's lab: use --name $LAB", name)
		}
	}
	return nil
}

func TestAScriptMayTakeDownOnlyItsOwnLab(t *testing.T) {
	empty, other := labs{root: t.TempDir()}, labs{root: t.TempDir()}
	if err := os.Mkdir(other.stateDir("other"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args string
		l    labs
		ok   bool
	}{
		{"--name own down", empty, true},
		{"--name own down", other, true},
		{"--name ../x down", empty, true},
		{"down --help", empty, true},
		{"down --all", empty, true},
		{"--name lab status", empty, true},
		{"down", empty, false},
		{"down -o json", other, false},
		{"down --all", other, false},
		{"--name lab down", empty, false},
	} {
		if err := harmless(strings.Fields(tc.args), tc.l, "own"); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.args, err)
		}
	}
}

func TestScripts(t *testing.T) {
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: update(),
		Setup: func(e *testscript.Env) error {
			if at, err := cache.FindSource(e.WorkDir); err == nil {
				return fmt.Errorf("scripts run in %s, in the checkout %s, and their ups would not be refused: choose another TMPDIR", e.WorkDir, at)
			}
			e.Setenv("LAB", testns.Lab())
			e.Setenv("CHECKOUT", source)
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
	})
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if update() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// showUp displays the progress of an up, in synctest's time.
func showUp(tty bool) string {
	var out bytes.Buffer
	b := newBoard(&out, tty, time.Now)
	for _, e := range []struct {
		after  time.Duration
		phase  daemon.Phase
		state  daemon.State
		detail string
		err    string
	}{
		{0, daemon.PhaseWorld, daemon.StateRunning, "", ""},
		{250 * time.Millisecond, daemon.PhaseWorld, daemon.StateDone, "VPC 10.0.0.0/16", ""},
		{0, daemon.PhaseControlPlane, daemon.StateRunning, "etcd", ""},
		{50 * time.Millisecond, daemon.PhaseNodes, daemon.StateRunning, "0 of 3 registered", ""},
		{150 * time.Millisecond, daemon.PhaseControlPlane, daemon.StateDone, "", ""},
		{40 * time.Second, daemon.PhaseNodes, daemon.StateRunning, "2 of 3 registered", ""},
		{30 * time.Second, daemon.PhaseNodes, daemon.StateFailed, "", "node3 not registered"},
		{0, daemon.PhaseDeploy, daemon.StateSkipped, "no manifests", ""},
	} {
		<-time.After(e.after) // synctest's clock
		b.event(daemon.Event{PhaseStatus: daemon.PhaseStatus{
			Phase: e.phase, State: e.state, Detail: e.detail, Error: e.err, Elapsed: e.after,
		}})
	}
	b.close()
	return out.String()
}

func TestOnAPipeProgressIsWholeLinesWithUpdatesOfLongPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { golden(t, "progress-plain", showUp(false)) })
}

func TestOnATerminalTheSpinnerLineIsErasedBeforeEachWholeLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shown := showUp(true)
		// The final content of a terminal: in each line the text after the last erasure.
		var lines []string
		for _, line := range strings.Split(shown, "\n") {
			if i := strings.LastIndex(line, "\r\x1b[K"); i >= 0 {
				line = line[i+len("\r\x1b[K"):]
			}
			lines = append(lines, line)
		}
		golden(t, "progress-terminal", strings.Join(lines, "\n"))
		for _, line := range strings.Split(shown, "\r\x1b[K") {
			if last := strings.Split(line, "\n"); len([]rune(last[len(last)-1])) > 90 {
				t.Errorf("a spinner line of %d columns would wrap: %q", len(line), line)
			}
		}
	})
}

func TestRunningPhasesAreShownAsAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		b := newBoard(&out, false, time.Now)
		b.set("nodes", "")
		<-time.After(2 * time.Second)
		b.set("images", "")
		b.abort("interrupted")
		b.close()
		if want := "✗ nodes            2.0s  interrupted\n✗ images           0.0s  interrupted\n"; out.String() != want {
			t.Errorf("shown:\n%swant:\n%s", out.String(), want)
		}
	})
}

func sampleStatus() daemon.Status {
	return daemon.Status{
		Name: "lab", Version: "test", PID: 42, State: daemon.StateDone, Elapsed: 12300 * time.Millisecond,
		Phases: []daemon.PhaseStatus{
			{Phase: daemon.PhaseWorld, State: daemon.StateDone, Elapsed: 400 * time.Millisecond},
			{Phase: daemon.PhaseNodes, State: daemon.StateDone, Elapsed: 6 * time.Second, Detail: "1 of 1 registered"},
			{Phase: daemon.PhaseDeploy, State: daemon.StateSkipped},
		},
		Nodes: []daemon.NodeStatus{{
			Name: "node1", KubeName: "ip-10-0-0-5.us-west-2.compute.internal", InstanceID: vpc.InstanceID("i-0123456789abcdef0"),
			Type: "m5.xlarge", Zone: "us-west-2a", Address: netip.MustParseAddr("10.0.0.5"), State: daemon.NodeRunning,
		}},
		Endpoints: daemon.Endpoints{
			Kubernetes: "https://127.0.0.1:40001", Kubeconfig: "/var/lib/trunkline-lab/lab/kubeconfig",
			EC2: "http://127.0.0.1:40002", Admin: "http://127.0.0.1:40002/admin",
		},
	}
}

func TestStatusText(t *testing.T) {
	var out bytes.Buffer
	if err := showStatus(&out, sampleStatus(), health{API: isReady, Nodes: map[string]string{"node1": isReady}}); err != nil {
		t.Fatal(err)
	}
	golden(t, "status", out.String())
}

func TestTheReasonWhyALabIsNotUp(t *testing.T) {
	st := sampleStatus()
	st.State = daemon.StateRunning
	st.Phases[1] = daemon.PhaseStatus{Phase: daemon.PhaseNodes, State: daemon.StateRunning, Elapsed: 3 * time.Second, Detail: "0 of 1 registered"}
	if got := reason(st); got != "nodes for 3.0s (0 of 1 registered)" {
		t.Errorf("reason = %q", got)
	}
	st.Phases[1].Error = "kubelet exited"
	if got := reason(st); got != "nodes: kubelet exited" {
		t.Errorf("reason = %q", got)
	}
}

func TestANodeIsFoundByEachOfItsNames(t *testing.T) {
	st := sampleStatus()
	for _, name := range []string{"node1", "i-0123456789abcdef0", "ip-10-0-0-5.us-west-2.compute.internal"} {
		if n, err := node(st, name); err != nil || n.Name != "node1" {
			t.Errorf("node(%q) = %v, %v", name, n.Name, err)
		}
	}
	if _, err := node(st, "node9"); err == nil || !strings.Contains(err.Error(), "its nodes are node1") {
		t.Errorf("node9: %v", err)
	}
}

func TestARouteIsShownWithItsDestinationTargetAndState(t *testing.T) {
	for want, r := range map[string]types.Route{
		"0.0.0.0/0 → igw-1 (active)":       {DestinationCidrBlock: aws.String("0.0.0.0/0"), GatewayId: aws.String("igw-1"), State: "active"},
		"::/0 → igw-1 (active)":            {DestinationIpv6CidrBlock: aws.String("::/0"), GatewayId: aws.String("igw-1"), State: "active"},
		"192.0.2.0/24 → eni-1 (blackhole)": {DestinationCidrBlock: aws.String("192.0.2.0/24"), NetworkInterfaceId: aws.String("eni-1"), State: "blackhole"},
	} {
		if got := routeText(r); got != want {
			t.Errorf("shown as %q, want %q", got, want)
		}
	}
}

func TestACommandSelectsTheOnlyLab(t *testing.T) {
	for want, tc := range map[string]struct {
		name string
		labs []string
	}{
		"lab": {"", nil}, "one": {"", []string{"one"}}, "two": {"two", []string{"one"}},
		"several labs exist: one, two; choose one with --name": {"", []string{"one", "two"}},
	} {
		l := labs{root: t.TempDir()}
		for _, lab := range tc.labs {
			if err := os.Mkdir(l.stateDir(lab), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		got, err := l.selected(tc.name)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("--name %q with %v: %s, want %s", tc.name, tc.labs, got, want)
		}
	}
}

func TestSweptListsWhatWasRemoved(t *testing.T) {
	for want, r := range map[string]sweep.Report{
		"nothing to remove": {},
		"removed 9 processes, 1 namespace, 2 mounts, its state; 1 sysctl restored": {
			Processes: 9, Namespaces: []string{"a"}, Mounts: []string{"a", "b"}, StateDir: true, Sysctls: []string{"x"},
		},
	} {
		if got := swept(r); got != want {
			t.Errorf("swept = %q, want %q", got, want)
		}
	}
}

func TestLogsAreSelectedByNodeAndProgram(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"log/daemon.log", "control-plane/log/kube-apiserver.log", "nodes/node1/log/kubelet.log", "nodes/node2/log/kubelet.log", "nodes/node1/disk/var/x.log"} {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(path+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	logs, err := findLogs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := logNames(logs), "daemon, kube-apiserver, node1/kubelet, node2/kubelet"; got != want {
		t.Errorf("logs are %s, want %s", got, want)
	}
	for what, want := range map[string]int{"node1": 1, "kubelet": 2, "node2/kubelet": 1, "daemon": 1, "node": 0} {
		n := 0
		for _, l := range logs {
			if l.matches(what) {
				n++
			}
		}
		if n != want {
			t.Errorf("%q selects %d logs, want %d", what, n, want)
		}
	}
}

func TestSuggestedCommandsStartTheProgramAsItWasStarted(t *testing.T) {
	for argv0, want := range map[string]string{
		"./bin/trunkline-lab": "./bin/trunkline-lab --name x", "/opt/trunkline-lab": "/opt/trunkline-lab --name x", "trunkline-lab": "trunkline-lab --name x",
	} {
		if got := (labs{self: calledAs(argv0)}).command("x"); got != want {
			t.Errorf("called as %s: %q, want %q", argv0, got, want)
		}
	}
	if got := (labs{self: "trunkline-lab"}).command(spec.DefaultName); got != "trunkline-lab" {
		t.Errorf("the default lab: %q", got)
	}
}

func TestTheDeployDirectoryHasThisLabsTagsAndAddresses(t *testing.T) {
	want, p := samplePlan(t)
	want.World.Region, want.World.Account = "eu-west-1", "999988887777"
	want.ClusterDNS = netip.MustParseAddr("172.21.0.10")
	text, err := manifests{product: true, dns: true}.kustomization(want, p, filepath.Join(p.source, "x", "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "kustomization", string(text))
}

// A daemon that accepts the stop request and never answers uses up only stopTime; the
// sweep then has its full time.
func TestALabWithAHungDaemonIsSwept(t *testing.T) {
	root, err := os.MkdirTemp("", "tl-c") //nolint:usetesting // a unix socket's path is short, t.TempDir's is long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	lab := testns.Lab()
	options := sweep.Options{Lab: lab, StateDir: filepath.Join(root, "labs", lab), Log: slog.New(slog.DiscardHandler)}
	if err := os.MkdirAll(options.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	hung, err := net.Listen("unix", daemon.SocketPath(options.StateDir))
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	left := exec.CommandContext(t.Context(), "sleep", "600")
	left.Env = []string{component.Mark(lab)}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = left.Wait() }() // killed by the sweep, or with the test
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	report, err := takeDown(ctx, options, 50*time.Millisecond)
	if err != nil || report.Processes != 1 || !report.StateDir {
		t.Errorf("swept %+v, %v; want its process and its state", report, err)
	}
}

// Ctrl-C interrupts a program of the demo once, and the demo waits until the program has
// cleaned up.
func TestAnInterruptedProgramOfTheDemoCleansUpFirst(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &trigger{on: "runs", do: cancel}
	d := &tour{out: out, errs: out}
	err := d.program(ctx, "/bin/sh", "-c", `trap 'echo clean; exit 130' INT; echo runs; while :; do sleep 0.05; done`)
	if !errors.Is(err, context.Canceled) || strings.Count(out.buf.String(), "clean") != 1 {
		t.Errorf("it returned %v and wrote %q", err, out.buf.String())
	}
}

// trigger is a writer that calls do when its content contains on.
type trigger struct {
	on  string
	do  func()
	buf bytes.Buffer
}

func (t *trigger) Write(p []byte) (int, error) {
	n, err := t.buf.Write(p)
	if strings.Contains(t.buf.String(), t.on) {
		t.do()
	}
	return n, err
}

func TestErrorsHaveTheirExitCodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var errs bytes.Buffer
	s := &session{ctx: ctx, console: &console{errs: &errs}}
	for _, tc := range []struct {
		err  error
		code int
	}{
		{nil, ExitOK},
		{errors.New("x"), ExitFailed},
		{refused(errors.New("x")), ExitRefused},
		{fmt.Errorf("ask: %w", daemon.ErrNotRunning), ExitNotRunning},
		{fmt.Errorf("find: %w", cache.ErrNoSource), ExitRefused},
		{context.Canceled, ExitFailed}, // cancelled, but not by an interruption
	} {
		if got := s.exitCode(tc.err); got != tc.code {
			t.Errorf("%v: exit code %d, want %d", tc.err, got, tc.code)
		}
	}
	cancel()
	if got := s.exitCode(fmt.Errorf("build: %w", context.Canceled)); got != ExitInterrupted {
		t.Errorf("Ctrl-C: exit code %d", got)
	}
}
