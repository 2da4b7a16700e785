package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/testns"
)

// start serves a daemon's API without a world, for requests that it refuses and for its
// status before a lab is up.
func start(t *testing.T, world func(context.Context, Lab, Machines, *slog.Logger) (World, error)) (*Client, string) {
	t.Helper()
	_, dir := serving(t, world)
	return NewClient(dir), dir
}

// serving is start that returns the daemon's state instead of a client.
func serving(t *testing.T, world func(context.Context, Lab, Machines, *slog.Logger) (World, error)) (*lab, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "tl-d") //nolint:usetesting // a unix socket's path is short, t.TempDir's is long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := listen(SocketPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(Options{Name: smallLab().Name, StateDir: dir, Version: "test", World: world}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, l, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		l.close()
	})
	return l, dir
}

func noWorld(ctx context.Context, _ Lab, _ Machines, _ *slog.Logger) (World, error) {
	return nil, errors.New("no fabric")
}

func smallLab() Lab {
	return Lab{
		Name:  testns.Lab(),
		World: cloud.Spec{Region: "us-west-2", VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}},
		Parts: Parts{Kube: "/p/k", Lab: "/p/l", Containerd: "/p/c", Runc: "/p/r", CNI: "/p/n"},
	}
}

func TestStatusWithoutADaemonIsErrNotRunning(t *testing.T) {
	_, err := NewClient(t.TempDir()).Status(t.Context())
	if !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v is not ErrNotRunning", err)
	}
}

func TestAHungDaemonIsReported(t *testing.T) {
	_, dir := start(t, noWorld)
	held := SocketPath(dir) + ".held"
	l, err := net.Listen("unix", held) // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Rename(held, SocketPath(dir)); err != nil {
		t.Fatal(err)
	}
	c := NewClient(dir)
	c.statusTimeout = 20 * time.Millisecond
	if _, err := c.Status(t.Context()); err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "does not answer within 20ms: take the lab down") {
		t.Errorf("a hung daemon: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Status(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
}

func TestTheSocketIsForRootOnlyAndASecondDaemonIsRefused(t *testing.T) {
	_, dir := start(t, noWorld)
	st, err := os.Stat(SocketPath(dir))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v; want mode 0600", st.Mode(), err)
	}
	if _, err := listen(SocketPath(dir)); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a second daemon: %v", err)
	}
}

func TestOneOfTwoConcurrentlyStartedDaemonsIsRefusedBeforeItChangesAnything(t *testing.T) {
	dir := t.TempDir()
	first, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), Options{Name: "../x", StateDir: dir}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `"../x"`) {
		t.Errorf("a name that is a path: %v", err)
	}
	// The first does not listen yet; the second must not remove what it created.
	err = Serve(t.Context(), Options{Name: testns.Lab(), StateDir: dir, World: noWorld}, slog.New(slog.DiscardHandler))
	if !errors.Is(err, errAnother) {
		t.Errorf("the second: %v", err)
	}
	first.Close()
	second, err := lock(dir)
	if err != nil {
		t.Fatalf("after the first has ended: %v", err)
	}
	second.Close()
}

// spawned is the result of Spawn.
type spawned struct {
	ours bool
	err  error
}

// spawn runs a shell script as a lab's daemon, and returns when the script has started.
func spawn(t *testing.T, dir, script string) <-chan spawned {
	t.Helper()
	started := filepath.Join(dir, "started")
	done := make(chan spawned, 1)
	go func() {
		ours, err := Spawn(t.Context(), Detached{Name: testns.Lab(), StateDir: dir, Argv: []string{"/bin/sh", "-c", "touch " + started + "; " + script}})
		done <- spawned{ours, err}
	}()
	for runs := false; !runs; runtime.Gosched() {
		_, err := os.Stat(started)
		runs = err == nil
	}
	return done
}

func TestSpawnUsesTheDaemonOfAConcurrentSpawn(t *testing.T) {
	_, dir := start(t, noWorld)
	held, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	later := SocketPath(dir) + ".later"
	if err := os.Rename(SocketPath(dir), later); err != nil { // the other daemon does not answer yet
		t.Fatal(err)
	}
	done := spawn(t, dir, "echo another daemon runs; exit 1")
	select {
	case got := <-done:
		t.Fatalf("it did not wait until the other daemon answers: ours %t, %v", got.ours, got.err)
	case <-time.After(5 * pollEvery):
	}
	if err := os.Rename(later, SocketPath(dir)); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.ours || got.err != nil {
		t.Errorf("ours %t, %v; want the other daemon", got.ours, got.err)
	}
}

func TestTheErrorOfADaemonThatExitsHasItsLastOutput(t *testing.T) {
	dir := t.TempDir()
	got := <-spawn(t, dir, "echo cannot start; exit 1")
	if got.err == nil || !got.ours || !strings.Contains(got.err.Error(), "cannot start") {
		t.Errorf("ours %t, %v", got.ours, got.err)
	}
}

func TestTheSocketOfADeadDaemonIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestAFailedPhaseIsReportedAndTheOthersStayPending(t *testing.T) {
	client, _ := start(t, noWorld)
	var seen []Event
	err := client.Apply(t.Context(), smallLab(), func(e Event) { seen = append(seen, e) })
	if err == nil || !strings.Contains(err.Error(), "no fabric") {
		t.Fatalf("error %v lacks the cause", err)
	}
	last := seen[len(seen)-1]
	if last.Phase != PhaseWorld || last.State != StateFailed {
		t.Errorf("last event %+v, want the world phase failed", last)
	}
	st, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.State != StateFailed || !strings.Contains(st.Error, "no fabric") || st.Phases[1].State != StatePending {
		t.Errorf("status %+v", st)
	}
}

func TestAnApplyEndsWhenItsClientDisconnects(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	client, _ := start(t, func(ctx context.Context, _ Lab, _ Machines, _ *slog.Logger) (World, error) {
		close(entered)
		<-ctx.Done()
		close(left)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- client.Apply(ctx, smallLab(), nil) }()
	<-entered
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("apply returned %v", err)
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Fatal("the convergence continues without its client")
	}
}

// pair is an apply that is blocked in its world phase, and a second one that waits for it.
type pair struct {
	lab                 *lab
	release, disconnect func()     // unblock the first; disconnect the second's client
	first, second       chan error // their results
}

func applies(t *testing.T) pair {
	t.Helper()
	entered, released := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	l, dir := serving(t, func(ctx context.Context, _ Lab, _ Machines, _ *slog.Logger) (World, error) {
		if calls.Add(1) > 1 {
			return nil, errors.New("the second fails")
		}
		close(entered)
		select {
		case <-released:
			return nil, errors.New("the first fails")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	client := NewClient(dir)
	ctx, cancel := context.WithCancel(t.Context())
	p := pair{l, func() { close(released) }, cancel, make(chan error, 1), make(chan error, 1)}
	go func() { p.first <- client.Apply(t.Context(), smallLab(), nil) }()
	<-entered
	go func() { p.second <- client.Apply(ctx, smallLab(), nil) }()
	p.untilServed(2)
	return p
}

// untilServed waits until n applies are being served.
func (p pair) untilServed(n int) {
	for served := -1; served != n; runtime.Gosched() {
		p.lab.phases.mu.Lock()
		served = len(p.lab.phases.listeners)
		p.lab.phases.mu.Unlock()
	}
}

func TestAnApplyGetsOnlyItsOwnResult(t *testing.T) {
	t.Run("the waiting one disconnects", func(t *testing.T) {
		p := applies(t)
		p.disconnect()
		if err := <-p.second; !errors.Is(err, context.Canceled) {
			t.Errorf("the second ended with %v", err)
		}
		p.untilServed(1)
		p.release()
		if err := <-p.first; err == nil || !strings.Contains(err.Error(), "the first fails") {
			t.Errorf("the first got %v", err)
		}
	})
	t.Run("both finish", func(t *testing.T) {
		p := applies(t)
		p.release()
		if err := <-p.first; err == nil || !strings.Contains(err.Error(), "the first fails") {
			t.Errorf("the first got %v", err)
		}
		if err := <-p.second; err == nil || !strings.Contains(err.Error(), "the second fails") {
			t.Errorf("the second got %v", err)
		}
	})
}

func TestAStopEndsAnotherClientsApply(t *testing.T) {
	entered := make(chan struct{})
	client, _ := start(t, func(ctx context.Context, _ Lab, _ Machines, _ *slog.Logger) (World, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	done := make(chan error, 1)
	go func() { done <- client.Apply(t.Context(), smallLab(), nil) }()
	<-entered
	if err := client.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the apply succeeded on a lab that was stopped")
	}
}

func TestInvalidLabsAreRefused(t *testing.T) {
	client, _ := start(t, noWorld)
	for name, tc := range map[string]struct {
		change func(*Lab)
		want   string
	}{
		"name":          {func(l *Lab) { l.Name = "Lab!" }, `"Lab!"`},
		"another lab":   {func(l *Lab) { l.Name = "other" }, "this daemon is that of lab " + testns.Lab()},
		"unknown node":  {func(l *Lab) { l.Nodes = []Node{{Name: "node7"}} }, `"node7"`},
		"relative path": {func(l *Lab) { l.Parts.Runc = "runc" }, "parts.runc"},
	} {
		l := smallLab()
		tc.change(&l)
		if err := client.Apply(t.Context(), l, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v lacks %s", name, err, tc.want)
		}
	}
}

func TestARunningLabRefusesAnotherNetworkAndAcceptsOtherNodes(t *testing.T) {
	l := newLab(Options{Name: smallLab().Name}, slog.New(slog.DiscardHandler))
	running := smallLab()
	l.setApplied(running)
	more := smallLab()
	more.World.Instances = []cloud.InstanceSpec{{Name: "node1"}}
	more.Nodes = []Node{{Name: "node1"}}
	if err := l.validate(more); err != nil {
		t.Errorf("another node: %v", err)
	}
	other := smallLab()
	other.World.VPC.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	if err := l.validate(other); err == nil || !strings.Contains(err.Error(), "take it down first") {
		t.Errorf("another network: %v", err)
	}
}

// An interrupted apply may have launched an instance without booting it.
func TestAnUnwantedInstanceIsTerminatedAlsoIfItNeverBooted(t *testing.T) {
	instance := func(name string) cloud.InstanceSpec {
		return cloud.InstanceSpec{
			Name: name, Type: "t3.medium", Subnet: "a", Namespace: NetNS(testns.Lab(), name), Metadata: cloud.DefaultMetadata(),
		}
	}
	want := smallLab()
	want.World.Account = "111122223333"
	want.World.Subnets = []cloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.0.0/24")}}
	want.World.Instances = []cloud.InstanceSpec{instance("node1"), instance("node2")}
	w, err := world.Start(t.Context(), world.Config{Spec: want.World}) // without a fabric
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	l := newLab(Options{Name: testns.Lab()}, slog.New(slog.DiscardHandler))
	l.setWorld(w)
	want.World.Instances = want.World.Instances[:1]
	if err := l.removeUnwanted(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	for name, state := range map[string]cloud.InstanceState{"node1": cloud.Running, "node2": cloud.Terminated} {
		if got := w.State().InstanceNamed(name).State; got != state {
			t.Errorf("%s is %s, want %s", name, got, state)
		}
	}
}

func TestASlowReaderIsDisconnectedAndDoesNotBlockPhases(t *testing.T) {
	p := newPhases()
	slow, stopSlow := p.listen()
	defer stopSlow()
	for range eventBacklog + 1 {
		p.skip(PhaseDeploy, "again")
	}
	n := 0
	for range slow {
		n++
	}
	if n != eventBacklog {
		t.Errorf("the slow reader got %d events, want the backlog of %d and then the end", n, eventBacklog)
	}
}

func TestIssuersDifferByLabAndHaveEKSsForm(t *testing.T) {
	a, b := smallLab(), smallLab()
	b.Name = "b"
	if a.Issuer() == b.Issuer() {
		t.Error("two labs have the same issuer")
	}
	id, ok := strings.CutPrefix(a.Issuer(), "https://oidc.eks.us-west-2.amazonaws.com/id/")
	if !ok || len(id) != 32 || strings.ToUpper(id) != id {
		t.Errorf("issuer %s", a.Issuer())
	}
}
