package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// commit writes what the engine's tables changed. After an error the tables of kernel and
// engine differ, and policies do not count as enforced: the loop compiles and writes everything
// again.
func (c *Controller) commit() error {
	began := time.Now()
	change := c.engine.Commit()
	if change.Empty() {
		c.metrics.inForce() // what was received is about other nodes
		return nil
	}
	w := c.writer()
	err := w.enforce(change)
	if err == nil {
		c.metrics.inForce()
		err = w.remove(change)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write policies: %w", err), reset(c))
	}
	c.metrics.commit.Observe(time.Since(began).Seconds())
	c.metrics.operations.Add(float64(change.Len()))
	c.Log.Debug("policies written", "operations", change.Len(), "took", time.Since(began))
	return nil
}

// Write writes a change of an engine to the maps, in the order of its phases. After an error the
// maps hold a part of it.
func Write(d *bpf.Datapath, change policy.Change) error {
	return writer{maps: &d.Maps, state: d.State}.change(change)
}

func (c *Controller) writer() writer {
	return writer{maps: &c.datapath.Maps, state: c.datapath.State, cut: c.faults.cut}
}

// writer executes the engine's operations on the kernel's maps.
type writer struct {
	maps  *bpf.Maps
	state *bpf.State
	cut   map[endpoint.ID]string // endpoints of which no set is put in force
}

// change executes a change in the order of its phases.
func (w writer) change(change policy.Change) error {
	if err := w.enforce(change); err != nil {
		return err
	}
	return w.remove(change)
}

// enforce puts a change in force.
func (w writer) enforce(change policy.Change) error {
	for _, phase := range [][]policy.Operation{change.Before, change.Switch} {
		if err := w.write(phase); err != nil {
			return err
		}
	}
	if change.Epoch {
		w.state.NextEpoch()
	}
	return nil
}

// remove deletes what a change in force has replaced, once no program judges by it: without its rows and
// classes a packet would be denied, or be judged as one of a peer that no policy names.
func (w writer) remove(change policy.Change) error {
	if len(change.After) == 0 {
		return nil
	}
	if err := bpf.WaitForPrograms(); err != nil {
		return err
	}
	return w.write(change.After)
}

func (w writer) write(operations []policy.Operation) error {
	for _, o := range operations {
		if err := w.do(o); err != nil {
			if full := new(bpf.FullError); errors.As(err, &full) {
				return err // whatever the operation is
			}
			return fmt.Errorf("%s: %w", o, err)
		}
	}
	return nil
}

var errOperation = errors.New("the maps have no such table")

func (w writer) do(o policy.Operation) error {
	switch o := o.(type) {
	case policy.Put[endpoint.ID, policy.SetID]:
		if _, cut := w.cut[o.Key]; !cut {
			w.state.SetInForce(o.Key, uint32(o.Value))
		}
		return nil
	case policy.Delete[endpoint.ID]:
		w.state.SetInForce(o.Key, bpf.SetNone)
		return nil
	case policy.Put[policy.SetID, policy.Set]:
		return w.maps.Sets.Put(uint32(o.Key), setOf(o.Value))
	case policy.Delete[policy.SetID]:
		return w.maps.Sets.Delete(uint32(o.Key))
	case policy.Put[policy.RowKey, uint64]:
		return w.maps.Rows.Put(rowOf(o.Key), o.Value)
	case policy.Delete[policy.RowKey]:
		return w.maps.Rows.Delete(rowOf(o.Key))
	default:
		return w.peersAndPorts(o)
	}
}

func (w writer) peersAndPorts(o policy.Operation) error {
	switch o := o.(type) {
	case policy.Put[policy.ClassKey, policy.Class]:
		return w.maps.Classes.Put(classOf(o.Key), uint32(o.Value))
	case policy.Delete[policy.ClassKey]:
		return w.maps.Classes.Delete(classOf(o.Key))
	case policy.Put[policy.PrefixKey, policy.Class]:
		return w.maps.Prefixes.Put(bpf.PrefixKeyOf(uint32(o.Key.Scope), o.Key.Prefix), uint32(o.Value))
	case policy.Delete[policy.PrefixKey]:
		return w.maps.Prefixes.Delete(bpf.PrefixKeyOf(uint32(o.Key.Scope), o.Key.Prefix))
	case policy.Put[policy.PortKey, policy.PortClass]:
		return w.maps.Ports.Put(portOf(o.Key), uint32(o.Value))
	case policy.Delete[policy.PortKey]:
		return w.maps.Ports.Delete(portOf(o.Key))
	case policy.Put[policy.PortRange, policy.PortClass]:
		return w.maps.PortRanges.Put(rangeOf(o.Key), uint32(o.Value))
	case policy.Delete[policy.PortRange]:
		return w.maps.PortRanges.Delete(rangeOf(o.Key))
	default:
		return errOperation
	}
}

func setOf(s policy.Set) bpf.Set {
	out := bpf.Set{Scope: uint32(s.Scope), Ports: uint32(s.Ports)}
	for d, isolated := range s.Isolated {
		if isolated {
			out.Isolated |= 1 << d
		}
	}
	if s.Ranges {
		out.Ranges = 1
	}
	if s.Prefixes {
		out.Prefixes = 1
	}
	return out
}

func rowOf(k policy.RowKey) bpf.RowKey {
	return bpf.RowKey{Set: uint32(k.Set), Class: uint32(k.Class), Page: k.Page, Direction: bpf.Direction(k.Direction)}
}

func classOf(k policy.ClassKey) bpf.ClassKey {
	return bpf.ClassKey{Scope: uint32(k.Scope), Address: bpf.AddressOf(k.Address)}
}

func portOf(k policy.PortKey) bpf.PortKey {
	return bpf.PortKey{Ports: uint32(k.Ports), Protocol: uint8(k.Protocol), Port: k.Port}
}

func rangeOf(k policy.PortRange) bpf.PortRangeKey {
	return bpf.PortRangeKeyOf(uint32(k.Ports), uint8(k.Protocol), k.Port, int(k.Bits))
}
