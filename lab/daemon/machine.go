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

// machine is one instance of the lab and its power switch.
type machine struct {
	log *slog.Logger
	// forget removes the Node object of a terminated instance.
	forget func(ctx context.Context, kubeName string) error

	turn chan struct{} // holds one token; who has it may switch the machine

	mu      sync.Mutex // guards what follows
	config  node.Config
	running *node.Node
	state   NodeState
	failure string
}

func newMachine(c node.Config, forget func(context.Context, string) error, log *slog.Logger) *machine {
	m := &machine{log: log, forget: forget, config: c, state: NodePending, turn: make(chan struct{}, 1)}
	m.turn <- struct{}{}
	return m
}

// take waits for the switch; give puts it back.
func (m *machine) take(ctx context.Context) (give func(), err error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("node %s is busy: %w", m.config.Name, ctx.Err())
	case <-m.turn:
		return func() { m.turn <- struct{}{} }, nil
	}
}

// namespace is the name of the instance's network namespace.
func (m *machine) namespace() string { return NetNS(m.config.Lab, m.config.Name) }

// start turns the machine on, unless it is.
func (m *machine) start(ctx context.Context) error {
	give, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	if m.current() == NodeTerminated {
		return fmt.Errorf("%w: start %s: instance is terminated", errBadRequest, m.config.Name)
	}
	if m.wentDown() {
		// What its kernel knew is void, as after any crash.
		if err := m.off(NodePending); err != nil {
			return fmt.Errorf("start %s: %w", m.config.Name, err)
		}
	}
	return m.boot()
}

// boot must be called with the switch in hand.
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

// watch notes when a node goes down by itself. It ends when the node does.
func (m *machine) watch(n *node.Node) {
	<-n.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running != n {
		return // switched off
	}
	m.running, m.state, m.failure = nil, NodeStopped, "node went down: "+n.LastWords()
	m.log.Error("node went down", "node", m.config.Name, "log", n.LastWords())
}

// stop cuts the power. The disk and the interfaces' place in EC2 stay; the
// kernel's side of them goes with the namespace.
func (m *machine) stop(ctx context.Context) error {
	give, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	return m.off(NodeStopped)
}

// off must be called with the switch in hand.
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
	give, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	if m.current() == NodeTerminated {
		return fmt.Errorf("%w: reboot %s: instance is terminated", errBadRequest, m.config.Name)
	}
	if err := m.off(NodePending); err != nil {
		return fmt.Errorf("reboot %s: %w", m.config.Name, err)
	}
	return m.boot()
}

// terminate is idempotent. It returns when the machine is off and its Node
// object gone.
func (m *machine) terminate(ctx context.Context) error {
	give, err := m.take(ctx)
	if err != nil {
		return err
	}
	defer give()
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

// switchedOff reports whether somebody cut the power, as opposed to a node that
// went down by itself.
func (m *machine) switchedOff() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == NodeStopped && m.failure == ""
}

// wentDown reports whether the node went down by itself.
func (m *machine) wentDown() bool {
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
