package policy

// Numbers are the largest of each kind that tables have.
type Numbers struct {
	Set   SetID
	Scope Scope
	Ports PortsID
}

// NewEngineAfter returns an engine for tables with content of an earlier one. It uses none of
// their numbers: nothing of them is taken for its own, and endpoints have the earlier sets in
// force until the first commit switches them.
func NewEngineAfter(l Limits, last Numbers) *Engine {
	e := NewEngine(l)
	e.last.set, e.last.ports, e.last.scope = max(last.Set, SetFirst-1), last.Ports, last.Scope+1
	e.node = newScope(e.last.scope, nil)
	return e
}
