package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// peers is what the engine holds of the cluster: namespaces and pods. Labels and named ports
// are shared between the pods that have equal ones.
type peers struct {
	namespaces map[string]*namespace
	owners     map[netip.Addr]*pod
	contested  map[netip.Addr][]*pod // the pods of an address, if more than one has it
	labels     interned[labels.Set]
	ports      interned[[]NamedPort]
	sequence   uint64
	dirty      map[netip.Addr]struct{} // addresses of pods that changed
}

// namespace exists while it is known or has pods.
type namespace struct {
	name   string
	known  bool
	labels labels.Set
	pods   map[string]*pod
}

type pod struct {
	namespace   *namespace
	name        string
	labels      *shared[labels.Set]
	ports       *shared[[]NamedPort]
	addresses   []netip.Addr
	sequence    uint64 // grows with each change of addresses: of two pods, the last has an address
	hostNetwork bool
}

// shared is a value of several pods.
type shared[T any] struct {
	key   string
	value T
	uses  int
}

type interned[T any] map[string]*shared[T]

func (i interned[T]) acquire(key string, value func() T) *shared[T] {
	s := i[key]
	if s == nil {
		s = &shared[T]{key: key, value: value()}
		i[key] = s
	}
	s.uses++
	return s
}

func (i interned[T]) release(s *shared[T]) {
	if s.uses--; s.uses == 0 {
		delete(i, s.key)
	}
}

func newPeers() *peers {
	return &peers{
		namespaces: map[string]*namespace{}, owners: map[netip.Addr]*pod{}, contested: map[netip.Addr][]*pod{},
		labels: interned[labels.Set]{}, ports: interned[[]NamedPort]{}, dirty: map[netip.Addr]struct{}{},
	}
}

// namespace returns a namespace, which may be unknown.
func (p *peers) namespace(name string) *namespace {
	n := p.namespaces[name]
	if n == nil {
		name = strings.Clone(name)
		n = &namespace{name: name, pods: map[string]*pod{}}
		p.namespaces[name] = n
	}
	return n
}

func (p *peers) forget(n *namespace) {
	if !n.known && len(n.pods) == 0 {
		delete(p.namespaces, n.name)
	}
}

// setNamespace reports whether something changed.
func (p *peers) setNamespace(name string, set labels.Set) bool {
	n := p.namespace(name)
	if n.known && maps.Equal(n.labels, set) {
		return false
	}
	n.known, n.labels = true, maps.Clone(set)
	p.touch(n)
	return true
}

func (p *peers) deleteNamespace(name string) bool {
	n := p.namespaces[name]
	if n == nil || !n.known {
		return false
	}
	n.known, n.labels = false, nil
	p.touch(n)
	p.forget(n)
	return true
}

// touch marks the addresses of a namespace.
func (p *peers) touch(n *namespace) {
	for _, pod := range n.pods {
		for _, a := range pod.addresses {
			p.dirty[a] = struct{}{}
		}
	}
}

func (p *peers) pod(ref PodRef) *pod {
	if n := p.namespaces[ref.Namespace]; n != nil {
		return n.pods[ref.Name]
	}
	return nil
}

func (p *peers) setPod(of Pod) bool {
	n := p.namespace(of.Namespace)
	labelsKey, portsKey := textOfLabels(of.Labels), textOfPorts(of.Ports)
	addresses := of.Addresses
	if of.HostNetwork {
		addresses = nil
	}
	old := n.pods[of.Name]
	switch {
	case old == nil:
		name := strings.Clone(of.Name)
		old = &pod{namespace: n, name: name}
		n.pods[name] = old
	case old.labels.key == labelsKey && old.ports.key == portsKey && old.hostNetwork == of.HostNetwork && slices.Equal(old.addresses, addresses):
		return false
	default:
		p.labels.release(old.labels)
		p.ports.release(old.ports)
	}
	old.labels = p.labels.acquire(labelsKey, func() labels.Set { return maps.Clone(of.Labels) })
	old.ports = p.ports.acquire(portsKey, func() []NamedPort { return slices.Clone(of.Ports) })
	old.hostNetwork = of.HostNetwork
	p.touchPod(old)
	if !slices.Equal(old.addresses, addresses) {
		p.disown(old)
		p.sequence++
		old.sequence, old.addresses = p.sequence, slices.Clone(addresses)
		p.own(old)
		p.touchPod(old)
	}
	return true
}

func (p *peers) deletePod(ref PodRef) bool {
	old := p.pod(ref)
	if old == nil {
		return false
	}
	p.touchPod(old)
	p.disown(old)
	p.labels.release(old.labels)
	p.ports.release(old.ports)
	delete(old.namespace.pods, old.name)
	p.forget(old.namespace)
	return true
}

func (p *peers) touchPod(pod *pod) {
	for _, a := range pod.addresses {
		p.dirty[a] = struct{}{}
	}
}

func (p *peers) own(of *pod) {
	for _, a := range of.addresses {
		if other := p.owners[a]; other != nil && other != of {
			if p.contested[a] == nil {
				p.contested[a] = []*pod{other}
			}
			p.contested[a] = append(p.contested[a], of)
		}
		p.owners[a] = of
	}
}

func (p *peers) disown(of *pod) {
	for _, a := range of.addresses {
		rest := slices.DeleteFunc(p.contested[a], func(other *pod) bool { return other == of })
		switch {
		case len(rest) == 0:
			delete(p.owners, a)
		default:
			p.owners[a] = slices.MaxFunc(rest, func(x, y *pod) int { return int(x.sequence) - int(y.sequence) })
			p.contested[a] = rest
		}
		if len(rest) <= 1 {
			delete(p.contested, a)
		}
	}
}

// of calls f with the addresses that the pods of a namespace have.
func (p *peers) of(n *namespace, f func(a netip.Addr, pod *pod)) {
	for _, pod := range n.pods {
		for _, a := range pod.addresses {
			if p.owners[a] == pod {
				f(a, pod)
			}
		}
	}
}

// namespacesOf are the namespaces in which a set may select pods; all without a set.
func (p *peers) namespacesOf(s *PodSet) iter.Seq[*namespace] {
	return func(yield func(*namespace) bool) {
		if s != nil && s.Namespace != "" {
			if n := p.namespaces[s.Namespace]; n != nil {
				yield(n)
			}
			return
		}
		for _, n := range p.namespaces {
			if matches := s == nil || s.Namespaces == nil || n.known && s.Namespaces.Matches(n.labels); matches && !yield(n) {
				return
			}
		}
	}
}

// in reports whether a set selects the pod.
func (p *pod) in(s PodSet) bool {
	return p.namespace.known && s.has(p.hostNetwork, p.namespace.name, p.labels.value, p.namespace.labels)
}

// numbers are the ports of the pod that have a name.
func (p *pod) numbers(n portName) []uint16 {
	var numbers []uint16
	for _, port := range p.ports.value {
		if port.Name == n.name && port.Protocol == n.protocol && !slices.Contains(numbers, port.Port) {
			numbers = append(numbers, port.Port)
		}
	}
	slices.Sort(numbers)
	return numbers
}

func textOfLabels(set labels.Set) string {
	keys := make([]string, 0, len(set))
	size := 0
	for key, value := range set {
		keys = append(keys, key)
		size += len(key) + len(value) + 2
	}
	slices.Sort(keys)
	text := make([]byte, 0, size)
	for _, key := range keys {
		text = append(append(append(append(text, key...), '='), set[key]...), ',')
	}
	return string(text)
}

func textOfPorts(ports []NamedPort) string {
	var text []byte
	for _, p := range ports {
		text = append(append(text, p.Name...), 0, byte(p.Protocol), byte(p.Port>>8), byte(p.Port))
	}
	return string(text)
}
