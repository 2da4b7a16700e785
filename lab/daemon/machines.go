package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/node"
)

// machines are the lab's machines by their names, including terminated ones until they are
// removed. It implements Machines, for reboots and terminations through the EC2 API.
type machines struct {
	mu     sync.Mutex
	byName map[string]*machine // guarded by mu
}

func newMachines() *machines { return &machines{byName: map[string]*machine{}} }

// named returns a machine; nil if there is none with this name.
func (ms *machines) named(name string) *machine {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.byName[name]
}

// add adds a machine, or replaces the terminated one of its name.
func (ms *machines) add(m *machine) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	ms.byName[m.config.Name] = m
}

func (ms *machines) remove(name string) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	delete(ms.byName, name)
}

// names returns the names of all machines, sorted.
func (ms *machines) names() []string {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return slices.Sorted(maps.Keys(ms.byName))
}

// all returns the machines in the order of their names.
func (ms *machines) all() []*machine {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	var out []*machine
	for _, name := range slices.Sorted(maps.Keys(ms.byName)) {
		out = append(out, ms.byName[name])
	}
	return out
}

// running returns the nodes of the machines that are on.
func (ms *machines) running() []*node.Node {
	var out []*node.Node
	for _, m := range ms.all() {
		if n := m.node(); n != nil {
			out = append(out, n)
		}
	}
	return out
}

// statuses returns the status of every machine.
func (ms *machines) statuses() []NodeStatus {
	var out []NodeStatus
	for _, m := range ms.all() {
		out = append(out, m.status())
	}
	return out
}

// expected returns the status of those of the given nodes that should be in the cluster:
// they exist and are not switched off. It returns an error if one has crashed.
func (ms *machines) expected(nodes []Node) ([]NodeStatus, error) {
	var out []NodeStatus
	for _, n := range nodes {
		m := ms.named(n.Name)
		if m == nil || m.switchedOff() {
			continue
		}
		st := m.status()
		if st.Error != "" {
			return nil, fmt.Errorf("node %s: %s", n.Name, st.Error)
		}
		out = append(out, st)
	}
	return out, nil
}

// stop cuts the power of all machines, concurrently.
func (ms *machines) stop(ctx context.Context) error {
	var g errgroup.Group
	for _, m := range ms.all() {
		g.Go(func() error { return m.stop(ctx) })
	}
	return g.Wait()
}

// Reboot switches a machine off and on. It then has a new network namespace.
func (ms *machines) Reboot(ctx context.Context, id vpc.InstanceID) error {
	m := ms.withID(id)
	if m == nil {
		return fmt.Errorf("reboot %s: %w", id, errUnknownNode)
	}
	return m.reboot(ctx)
}

// Terminate switches a machine off permanently and deletes its Node object, as the cloud's
// node lifecycle controller does.
func (ms *machines) Terminate(ctx context.Context, id vpc.InstanceID) error {
	m := ms.withID(id)
	if m == nil {
		return nil // it never booted, or is already terminated
	}
	return m.terminate(ctx)
}

func (ms *machines) withID(id vpc.InstanceID) *machine {
	for _, m := range ms.all() {
		if m.config.Instance.ID == id {
			return m
		}
	}
	return nil
}
