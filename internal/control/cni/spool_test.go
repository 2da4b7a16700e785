package cni

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// spoolDEL writes a DEL of container c1 into a spool of the harness; at is what the clock of
// the machine shows.
func (h *harness) spoolDEL(t *testing.T, dir string, at time.Time) {
	t.Helper()
	del := cnirpc.Request{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{}`)}
	if err := cnirpc.Spool(dir, del, at); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) spooled(t *testing.T) (all []cnirpc.Spooled) {
	t.Helper()
	for _, dir := range h.SpoolDirs {
		list, err := cnirpc.ReadSpool(dir)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list...)
	}
	return all
}

func (h *harness) wired(t *testing.T) bool {
	t.Helper()
	e, ok := h.State.Endpoint(endpoint.Key{ContainerID: "c1", IfName: "eth0"})
	return ok && e.Wired()
}

func (h *harness) mustAdd(t *testing.T) {
	t.Helper()
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
}

func (h *harness) mustDrain(t *testing.T) {
	t.Helper()
	if err := h.DrainSpool(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := h.spooled(t); len(left) > 0 {
		t.Errorf("left in the spool: %+v", left)
	}
}

// steppedClocks are what the clock shows at a DEL, relative to its ADD.
func steppedClocks() map[string]time.Duration {
	return map[string]time.Duration{"a clock that steps back": -time.Hour, "a clock that stands": 0, "a clock that steps forward": time.Hour}
}

func TestASpooledDELIsExecutedWhateverTheClockShows(t *testing.T) {
	for name, step := range steppedClocks() {
		for i, where := range []string{"on the disk", "in memory"} {
			t.Run(name+", spooled "+where, func(t *testing.T) {
				h := newHarness(t)
				h.mustAdd(t)
				h.spoolDEL(t, h.SpoolDirs[i], time.Now().Add(step))
				h.mustDrain(t)
				if h.wired(t) {
					t.Error("the DEL came after the ADD, and the endpoint is still wired")
				}
			})
		}
	}
}

// The DEL came first, and an ADD of the same attachment before the spool was drained.
func TestAnADDExecutesTheSpooledDELBeforeIt(t *testing.T) {
	for name, step := range steppedClocks() {
		for i, where := range []string{"on the disk", "in memory"} {
			t.Run(name+", spooled "+where, func(t *testing.T) {
				h := newHarness(t)
				h.mustAdd(t)
				h.spoolDEL(t, h.SpoolDirs[i], time.Now().Add(step))
				h.mustAdd(t)
				if want := []string{"wire", "put", "up", "remove", "unwire", "wire", "put", "up"}; !slices.Equal(h.wires.done, want) {
					t.Errorf("steps %v, want %v", h.wires.done, want)
				}
				h.mustDrain(t)
				if !h.wired(t) {
					t.Error("the DEL of the earlier attachment removed the later one")
				}
			})
		}
	}
}

// The agent read the spool, and an ADD came before it executed the DEL.
func TestADELThatAnADDHasExecutedIsNotExecutedAgain(t *testing.T) {
	h := newHarness(t)
	h.mustAdd(t)
	h.spoolDEL(t, h.SpoolDirs[0], time.Now())
	read := h.spooled(t)
	h.mustAdd(t)
	if err := (spool{h.Controller}).execute(t.Context(), read); err != nil || !h.wired(t) {
		t.Errorf("%v, wired %v: the ADD came after the DEL", err, h.wired(t))
	}
}

// The agent was killed after it executed the DEL and before it removed it from the spool;
// or the plugin was killed after it spooled the DEL, and the runtime repeated it.
func TestASpooledDELOfAnAttachmentThatIsGoneIsRemoved(t *testing.T) {
	h := newHarness(t)
	h.mustAdd(t)
	h.spoolDEL(t, h.SpoolDirs[0], time.Now())
	if _, failure := h.call(t, request("DEL", "known")); failure != nil {
		t.Fatal(failure)
	}
	h.mustDrain(t)
	if h.wired(t) {
		t.Error("the endpoint is wired")
	}
}

// paused is a component that holds each ADD until it may go on.
type paused struct{ reached, goOn chan struct{} }

func (paused) Admit(context.Context, kube.Pod) error { return nil }
func (p paused) Ready(ctx context.Context, _ endpoint.Endpoint, _ int) error {
	p.reached <- struct{}{}
	select {
	case <-p.goOn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The agent is too slow to answer a DEL: the plugin spools it while the ADD is in flight.
func TestADELSpooledDuringItsADDIsExecutedAfterIt(t *testing.T) {
	p := paused{make(chan struct{}), make(chan struct{})}
	h := newHarness(t, p)
	done := make(chan *cnirpc.Error, 1)
	netns := selfNetns(t)
	go func() {
		_, failure := h.answered(t.Context(), request("ADD", "known"), netns)
		done <- failure
	}()
	<-p.reached
	h.spoolDEL(t, h.SpoolDirs[0], time.Now().Add(-time.Hour))
	if err := h.DrainSpool(t.Context()); err != nil || len(h.spooled(t)) != 1 {
		t.Errorf("%v, %d in the spool during the ADD; want that the DEL waits", err, len(h.spooled(t)))
	}
	close(p.goOn)
	if failure := <-done; failure != nil {
		t.Fatal(failure)
	}
	h.mustDrain(t)
	if h.wired(t) {
		t.Error("the DEL came after the ADD, and the endpoint is still wired")
	}
}

// The runtime killed the ADD's plugin while the ADD waited for its turn, and the DEL's plugin
// spooled: the DEL is the newer one.
func TestAnADDOfAKilledPluginDoesNotBeginAfterASpooledDEL(t *testing.T) {
	h := newHarness(t)
	h.mustAdd(t)
	h.spoolDEL(t, h.SpoolDirs[0], time.Now())
	ctx, gone := context.WithCancelCause(t.Context())
	killed := errors.New("the plugin was killed")
	gone(killed)
	if err := (spool{h.Controller}).settle(ctx, endpoint.Key{ContainerID: "c1", IfName: "eth0"}); err == nil {
		t.Error("the ADD goes on")
	}
	h.mustDrain(t)
	if h.wired(t) {
		t.Error("the endpoint is wired")
	}
}

func TestWhatIsNoDELInTheSpoolDoesNotStopAnADD(t *testing.T) {
	h := newHarness(t)
	for _, text := range []string{"", "{", `{"version":1,"command":"ADD"}` + "\n"} {
		h.spoolDEL(t, h.SpoolDirs[0], time.Now())
		overwrite(t, h.SpoolDirs[0], text)
		h.mustAdd(t)
	}
}

// overwrite replaces the content of every file of a spool.
func overwrite(t *testing.T, dir, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of %s: %v, %v", dir, files, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
