//go:build netns

package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
)

// timeout bounds the recovery after a kill. The longest is that of an assignment with
// a lost reply, which is rechecked for as long as a describe may be stale.
const timeout = 60 * time.Second

// victim is a node with an agent that is killed, and restarted as a DaemonSet would.
type victim struct {
	*node.Node
	t *testing.T

	stop context.CancelFunc
	done chan struct{} // closed when the supervisor has ended

	mu      sync.Mutex
	running *exec.Cmd
	next    []*exec.Cmd // agents to start after the running one; then ordinary ones
	starts  int
	broken  error // why the supervisor ended

	pods map[string]*node.Pod // by container: ADD succeeded, DEL not requested
}

// spare is how many addresses the pool may hold beyond those of pods when it has no
// pending work: the warm ones and the headroom.
const spare = 2 + 2

// detachTime is shorter than AWS's, as the pool's times are: every point waits for it.
const detachTime = 100 * time.Millisecond

// settings make the pool grow and shrink within a churn.
func settings() []string {
	return []string{"warm-ips=2", "headroom=2", "cool-down=300ms", "idle-after=1s", "release-every=1s", "del-wait=1s"}
}

// newVictim boots a node with a running agent. plugin is the binary built for an
// earlier node, or empty.
func newVictim(t *testing.T, plugin string) *victim {
	t.Helper()
	v := &victim{Node: node.New(t, node.Config{Plugin: plugin, DetachTime: detachTime}), t: t, done: make(chan struct{}), pods: map[string]*node.Pod{}}
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	go v.supervise(ctx)
	t.Cleanup(func() {
		v.stop()
		v.kill()
		<-v.done
		if t.Failed() {
			raw, _ := os.ReadFile(filepath.Join(v.Dir, "agent.log"))
			t.Logf("agent's log:\n%s", raw[max(0, len(raw)-12000):])
		}
	})
	v.UntilReady()
	return v
}

// supervise runs one agent after the other until it is stopped, or one ends in
// another way than by SIGKILL.
func (v *victim) supervise(ctx context.Context) {
	defer close(v.done)
	for range 20 {
		v.mu.Lock()
		cmd := v.Command(settings()...)
		if len(v.next) > 0 {
			cmd, v.next = v.next[0], v.next[1:]
		}
		log, err := os.OpenFile(filepath.Join(v.Dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			cmd.Stdout, cmd.Stderr = log, log
			err = errors.Join(v.NS.Run(cmd.Start), log.Close())
		}
		v.running, v.broken = cmd, err
		v.starts++
		v.mu.Unlock()
		if err != nil {
			return
		}
		err = cmd.Wait()
		if ctx.Err() != nil {
			return
		}
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
			v.mu.Lock()
			v.broken = fmt.Errorf("the agent ended by itself: %w", cmp.Or(err, errors.New("with success")))
			v.mu.Unlock()
			return
		}
	}
	v.mu.Lock()
	v.broken = errors.New("the agent ended twenty times")
	v.mu.Unlock()
}

// signal sends the running agent a signal.
func (v *victim) signal(s os.Signal) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.running.Process.Signal(s)
}

// kill kills the running agent, if any; the supervisor starts the next.
func (v *victim) kill() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running != nil && v.broken == nil {
		_ = v.running.Process.Kill() // it may have ended already
	}
}

// replace kills the running agent and has the supervisor start these, one after the
// other.
func (v *victim) replace(next ...*exec.Cmd) {
	v.t.Helper()
	v.mu.Lock()
	v.next = next
	before := v.starts
	v.mu.Unlock()
	v.kill()
	v.until("the next agent", func() error {
		if v.started() == before {
			return errors.New("not started")
		}
		return nil
	})
}

func (v *victim) started() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.starts
}

// until waits for a condition, for as long as a recovery may take.
func (v *victim) until(what string, ok func() error) {
	v.t.Helper()
	if err := v.wait(ok); err != nil {
		v.t.Fatalf("%s: %v", what, err)
	}
}

func (v *victim) wait(ok func() error) error {
	ctx, cancel := context.WithTimeout(v.t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		v.mu.Lock()
		broken := v.broken
		v.mu.Unlock()
		if err == nil || broken != nil {
			return broken
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// oldENI attaches an interface with the tags of an agent of an hour ago: the pool
// releases only interfaces that are not new.
func (v *victim) oldENI() vpc.ENIID {
	v.t.Helper()
	instance := v.State().InstanceNamed("node1")
	primary := v.State().Primary(instance.ID)
	eni, err := v.Cloud().CreateInterface(cloud.NewInterface{
		Subnet: primary.Subnet, Groups: primary.Groups, Description: vpc.DescriptionHead + string(instance.ID),
		Tags: cloud.Tags{
			vpc.TagInstanceID: string(instance.ID), vpc.TagManagedBy: "trunkline", vpc.TagClusterName: "test",
			vpc.TagOwner: vpc.OwnerVPCCNI, vpc.TagCreatedAt: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339),
		},
	})
	if err != nil {
		v.t.Fatal(err)
	}
	device := 0
	taken := v.State().InterfacesOf(instance.ID)
	for slices.ContainsFunc(taken, func(i *cloud.Interface) bool { return i.Attachment.DeviceIndex == device }) {
		device++
	}
	at, err := v.Cloud().Interface(eni.ID).Attach(instance.ID, device, 0)
	if err == nil {
		err = v.Cloud().Interface(eni.ID).SetDeleteOnTermination(at.ID, true)
	}
	if err != nil {
		v.t.Fatal(err)
	}
	v.until("the old interface is attached", func() error {
		if a := v.State().Interfaces[eni.ID].Attachment; a.Status != cloud.Attached {
			return fmt.Errorf("it is %s", a.Status)
		}
		return nil
	})
	return eni.ID
}

// add adds a pod that stays until it is deleted.
func (v *victim) add(p *node.Pod) error {
	if err := v.Add(p); err != nil {
		return fmt.Errorf("ADD %s: %w", p.RT.ContainerID, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pods[p.RT.ContainerID] = p
	return nil
}

func (v *victim) del(p *node.Pod) error {
	v.mu.Lock()
	delete(v.pods, p.RT.ContainerID)
	v.mu.Unlock()
	if err := v.Del(p); err != nil {
		return fmt.Errorf("DEL %s: %w", p.RT.ContainerID, err)
	}
	return nil
}

// burst is how many pods are added at once: more than the addresses of the primary
// and of one more interface, so that the pool has to create another.
const burst = 10

// churn makes the pool create an interface and release one, while pods are added and
// deleted three at a time, and returns when no work is pending.
func (v *victim) churn(old vpc.ENIID) error {
	pods := make([]*node.Pod, burst)
	for i := range pods {
		pods[i] = v.NewPod(fmt.Sprint("burst", i))
	}
	late := v.NewPod("late")
	if err := atOnce(pods, v.add); err != nil {
		return err
	}
	var group errgroup.Group
	group.Go(func() error { return atOnce(v.deletable(pods, old), v.del) })
	group.Go(func() error {
		if err := v.add(late); err != nil {
			return err
		}
		return v.del(late)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return v.wait(v.idle)
}

// deletable returns all but two of the pods. The two that stay are on the interface
// created for the burst: it is then in use, and the old one is idle.
func (v *victim) deletable(pods []*node.Pod, old vpc.ENIID) (list []*node.Pod) {
	staying := 0
	for _, p := range pods {
		owner := v.State().Owner(p.Addr)
		if staying < 2 && owner != nil && owner.ID != old && owner.Attachment != nil && owner.Attachment.DeviceIndex > 0 {
			staying++
			continue
		}
		list = append(list, p)
	}
	return list
}

func atOnce(pods []*node.Pod, do func(*node.Pod) error) error {
	var group errgroup.Group
	group.SetLimit(3)
	for _, p := range pods {
		group.Go(func() error { return do(p) })
	}
	return group.Wait()
}

// idle returns an error if the pool has pending work. The pool chooses which
// interface it releases: one with a call in doubt is not touched meanwhile.
func (v *victim) idle() error {
	s, err := v.observe()
	if err != nil {
		return err
	}
	return errors.Join(s.pendingWork(), s.problems())
}
