package policy

import (
	"fmt"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Operation is one write to one table: a Put or a Delete. Both are idempotent.
type Operation interface {
	fmt.Stringer
	apply(t *Tables)
}

// Put writes an entry. Key and value are those of a field of Tables.
type Put[K comparable, V any] struct {
	Key   K
	Value V
}

// Delete removes an entry. The key is that of a field of Tables.
type Delete[K comparable] struct{ Key K }

func (p Put[K, V]) String() string { return fmt.Sprintf("put %+v: %v", p.Key, p.Value) }
func (d Delete[K]) String() string { return fmt.Sprintf("delete %+v", d.Key) }

// Change is what to write to the tables, in the order of the phases and of the operations in
// them. After any number of its operations, each connection is judged as before the change or
// as after it.
type Change struct {
	// Before writes what no set in force uses yet, or what does not alter a verdict.
	Before []Operation
	// Switch alters verdicts: classes of peers that changed, and the sets of endpoints.
	Switch []Operation
	// After deletes what is not used any longer. A program that has begun to judge a packet may
	// still read it: wait until it has ended before this phase, or the packet is judged by a part of
	// its set. The next change may only be applied after this phase.
	After []Operation
	// Epoch is set if a connection that an unchanged set allowed may be denied now, because the
	// class of its peer changed: live connections must be judged again. Those of an endpoint
	// with another set are in any case.
	Epoch bool
}

// Empty reports whether there is nothing to do.
func (c Change) Empty() bool { return c.Len() == 0 && !c.Epoch }

// Len is the number of operations.
func (c Change) Len() int { return len(c.Before) + len(c.Switch) + len(c.After) }

// All are the operations in order.
func (c Change) All() []Operation {
	all := make([]Operation, 0, c.Len())
	return append(append(append(all, c.Before...), c.Switch...), c.After...)
}

// String lists the operations, one a line.
func (c Change) String() string {
	text := ""
	for _, phase := range []struct {
		name       string
		operations []Operation
	}{{"before", c.Before}, {"switch", c.Switch}, {"after", c.After}} {
		for _, o := range phase.operations {
			text += fmt.Sprintf("%s: %s\n", phase.name, o)
		}
	}
	if c.Epoch {
		text += "epoch\n"
	}
	return text
}

// Apply executes operations on the tables.
func (t *Tables) Apply(operations ...Operation) {
	for _, o := range operations {
		o.apply(t)
	}
}

func (p Put[K, V]) apply(t *Tables) {
	switch p := any(p).(type) {
	case Put[endpoint.ID, SetID]:
		t.Endpoints[p.Key] = p.Value
	case Put[SetID, Set]:
		t.Sets[p.Key] = p.Value
	case Put[ClassKey, Class]:
		t.Classes[p.Key] = p.Value
	case Put[PrefixKey, Class]:
		t.Prefixes[p.Key] = p.Value
	case Put[PortKey, PortClass]:
		t.Ports[p.Key] = p.Value
	case Put[PortRange, PortClass]:
		t.PortRanges[p.Key] = p.Value
	case Put[RowKey, uint64]:
		t.Rows[p.Key] = p.Value
	}
}

func (d Delete[K]) apply(t *Tables) {
	switch key := any(d.Key).(type) {
	case endpoint.ID:
		delete(t.Endpoints, key)
	case SetID:
		delete(t.Sets, key)
	case ClassKey:
		delete(t.Classes, key)
	case PrefixKey:
		delete(t.Prefixes, key)
	case PortKey:
		delete(t.Ports, key)
	case PortRange:
		delete(t.PortRanges, key)
	case RowKey:
		delete(t.Rows, key)
	}
}
