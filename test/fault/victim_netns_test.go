//go:build netns

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
)

// patience bounds what should happen after a kill: the longest is an assignment
// whose reply was lost, which is looked for as long as a describe may be stale.
const patience = 60 * time.Second

// victim is a node whose agent is killed, and started again as a DaemonSet would.
type victim struct {
	*node.Node
	t *testing.T

	stop context.CancelFunc
	done chan struct{} // closed when the keeper has ended

	mu      sync.Mutex
	running *exec.Cmd
	next    *exec.Cmd // what to start after the running one; nil: a plain agent
	starts  int
	broken  error // why the keeper gave up

	pods map[string]*node.Pod // by container: ADD was answered, DEL not yet asked for
}

// settings make the pool grow and shrink within a churn.
func settings() []string {
	return []string{"warm-ips=2", "headroom=2", "idle-after=1s", "release-every=1s", "del-wait=1s"}
}

// newVictim boots a node with a running agent on it.
func newVictim(t *testing.T) *victim {
	t.Helper()
	v := &victim{Node: node.New(t, node.Config{}), t: t, done: make(chan struct{}), pods: map[string]*node.Pod{}}
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	go v.keep(ctx)
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

// keep runs one agent after the other until it is stopped.
func (v *victim) keep(ctx context.Context) {
	defer close(v.done)
	for range 20 {
		v.mu.Lock()
		cmd := v.next
		if v.next = nil; cmd == nil {
			cmd = v.Command(settings()...)
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
		_ = cmd.Wait() // it was killed
		if ctx.Err() != nil {
			return
		}
	}
	v.mu.Lock()
	v.broken = errors.New("the agent ended twenty times")
	v.mu.Unlock()
}

// kill ends the running agent, if any; the keeper starts the next.
func (v *victim) kill() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running != nil && v.broken == nil {
		_ = v.running.Process.Kill() // it may be dead already
	}
}

// replace kills the running agent and has cmd, or a plain agent, follow.
func (v *victim) replace(cmd *exec.Cmd) {
	v.t.Helper()
	v.mu.Lock()
	v.next = cmd
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

// until waits for a condition as long as a recovery may take.
func (v *victim) until(what string, ok func() error) {
	v.t.Helper()
	if err := v.wait(ok); err != nil {
		v.t.Fatalf("%s: %v", what, err)
	}
}

func (v *victim) wait(ok func() error) error {
	ctx, cancel := context.WithTimeout(v.t.Context(), patience)
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

// oldENI puts an interface on the node as an agent of an hour ago left it: the
// pool may give it back, which it does only with interfaces that are not new.
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
	at, err := v.Cloud().Attach(eni.ID, instance.ID, device, 0)
	if err == nil {
		err = v.Cloud().SetDeleteOnTermination(eni.ID, at.ID, true)
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

// add wires a pod that stays until it is deleted.
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

// churn makes the pool grow by an interface and give one back, while pods come
// and go three at a time, and returns when the node is at rest.
func (v *victim) churn(old vpc.ENIID) error {
	crowd := make([]*node.Pod, 9)
	for i := range crowd {
		crowd[i] = v.NewPod(fmt.Sprint("crowd", i))
	}
	late, passing := v.NewPod("late"), v.NewPod("passing")
	if err := atOnce(crowd, v.add); err != nil {
		return err
	}
	// Two stay, on interfaces that stay.
	var going []*node.Pod
	for staying := 0; len(crowd) > 0; crowd = crowd[1:] {
		if owner := v.State().Owner(crowd[0].Addr); staying < 2 && owner != nil && owner.ID != old {
			staying++
			continue
		}
		going = append(going, crowd[0])
	}
	var group errgroup.Group
	group.Go(func() error { return atOnce(going, v.del) })
	group.Go(func() error {
		if err := v.add(late); err != nil {
			return err
		}
		return v.del(late)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	// A pod that passes now and then keeps the pool planning: left alone, it looks
	// for what is idle twice a minute.
	var passed time.Time
	return v.wait(func() error {
		err := v.atRest(old)
		if err == nil || time.Since(passed) < 2*time.Second {
			return err
		}
		passed = time.Now()
		return errors.Join(err, v.add(passing), v.del(passing))
	})
}

func atOnce(pods []*node.Pod, do func(*node.Pod) error) error {
	var group errgroup.Group
	group.SetLimit(3)
	for _, p := range pods {
		group.Go(func() error { return do(p) })
	}
	return group.Wait()
}

// atRest says why the pool still has something to do.
func (v *victim) atRest(old vpc.ENIID) error {
	if v.State().Interfaces[old] != nil {
		return fmt.Errorf("the idle interface %s was not given back", old)
	}
	s, err := v.look()
	if err != nil {
		return err
	}
	held := 0
	for _, e := range s.book.ENIs {
		held += len(e.Addresses)
	}
	if most := len(s.pods) + 5; held > most || len(s.book.Pool.Steps) > 0 {
		return fmt.Errorf("%d addresses are held, at most %d are to be; steps %v: %s", held, most, s.book.Pool.Steps, s.book.Pool.Why)
	}
	return s.problems()
}
