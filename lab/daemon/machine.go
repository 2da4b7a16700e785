package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/node"
)

// machine is one instance of the lab, which can be switched on and off.
type machine struct {
	log *slog.Logger
	// forget removes the Node object of a terminated instance.
	forget func(ctx context.Context, kubeName string) error

	power chan struct{} // holds one token; its holder may switch the machine

	mu      sync.Mutex // guards the fields below
	config  node.Config
	running *node.Node
	state   NodeState
	failure string
}

func newMachine(c node.Config, forget func(context.Context, string) error, log *slog.Logger) *machine {
	m := &machine{log: log, forget: forget, config: c, state: NodePending, power: make(chan struct{}, 1)}
	m.power <- struct{}{}
	return m
}

// acquirePower waits for the power token; release returns it.
func (m *machine) acquirePower(ctx context.Context) (release func(), err error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s is busy: %w", m.config.Name, ctx.Err())
	case <-m.power:
		return func() { m.power <- struct{}{} }, nil
	}
}

// namespace returns the name of the instance's network namespace.
func (m *machine) namespace() string { return NetNS(m.config.Lab, m.config.Name) }

// start switches the machine on. It does nothing if the machine is on.
func (m *machine) start(ctx context.Context) error {
	release, err := m.acquirePower(ctx)
	if err != nil {
		return err
	}
	defer release()
	if m.current() == NodeTerminated {
		return fmt.Errorf("%w: start %s: instance is terminated", errBadRequest, m.config.Name)
	}
	if m.crashed() {
		// As after any crash, the state of its kernel is lost.
		if err := m.off(NodePending); err != nil {
			return fmt.Errorf("start %s: %w", m.config.Name, err)
		}
	}
	return m.boot()
}

// boot requires the power token.
func (m *machine) boot() error {
	if m.node() != nil {
		return nil
	}
	if err := netns.Make(m.namespace()); err != nil {
		return fmt.Errorf("boot %s: %w", m.config.Name, err)
	}
	n, err := node.Start(m.config, m.log)
	if err != nil {
		m.set(nil, NodeStopped, err.Error())
		return err
	}
	m.set(n, NodeRunning, "")
	go m.watch(n)
	return nil
}

// watch records the failure when a node exits without a power action. It returns when the
// node exits.
func (m *machine) watch(n *node.Node) {
	<-n.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running != n {
		return // switched off
	}
	m.running, m.state, m.failure = nil, NodeStopped, "node crashed: "+n.LastLog()
	m.log.Error("node crashed", "node", m.config.Name, "log", n.LastLog())
}

// stop cuts the power. The disk, and the interfaces in EC2, stay; the network namespace is
// deleted.
func (m *machine) stop(ctx context.Context) error {
	release, err := m.acquirePower(ctx)
	if err != nil {
		return err
	}
	defer release()
	return m.off(NodeStopped)
}

// off requires the power token.
func (m *machine) off(to NodeState) error {
	n := m.node()
	m.set(nil, to, "")
	var err error
	if n != nil {
		err = n.PowerOff()
	}
	return errors.Join(err, netns.Delete(m.namespace()))
}

func (m *machine) reboot(ctx context.Context) error {
	release, err := m.acquirePower(ctx)
	if err != nil {
		return err
	}
	defer release()
	if m.current() == NodeTerminated {
		return fmt.Errorf("%w: reboot %s: instance is terminated", errBadRequest, m.config.Name)
	}
	if err := m.off(NodePending); err != nil {
		return fmt.Errorf("reboot %s: %w", m.config.Name, err)
	}
	return m.boot()
}

// terminate switches the machine off, erases its disk and deletes its Node object. It is
// idempotent.
func (m *machine) terminate(ctx context.Context) error {
	release, err := m.acquirePower(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := m.off(NodeTerminated); err != nil {
		return fmt.Errorf("terminate %s: %w", m.config.Name, err)
	}
	if err := m.config.Erase(); err != nil {
		return fmt.Errorf("erase disk of %s: %w", m.config.Name, err)
	}
	return m.forget(ctx, m.config.Instance.Hostname())
}

func (m *machine) node() *node.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

func (m *machine) current() NodeState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// switchedOff reports whether a power action stopped the machine, as opposed to a crash.
func (m *machine) switchedOff() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == NodeStopped && m.failure == ""
}

// crashed reports whether the node exited without a power action.
func (m *machine) crashed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == NodeStopped && m.failure != ""
}

func (m *machine) set(n *node.Node, s NodeState, failure string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running, m.state, m.failure = n, s, failure
}

func (m *machine) status() NodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.config
	st := NodeStatus{
		Name: c.Name, KubeName: c.Instance.Hostname(), Namespace: m.namespace(),
		InstanceID: c.Instance.ID, Type: c.Instance.Type, Zone: c.Instance.Zone, Address: c.Instance.Address,
		State: m.state, StateDir: c.StateDir, Error: m.failure,
	}
	if m.running != nil {
		st.PID, st.BootID = m.running.PID(), m.running.BootID()
	}
	return st
}
