package kube

import (
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unique"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// podConverter converts pods to peers. Pods of one ReplicaSet share what is equal.
type podConverter struct {
	mu        sync.Mutex
	templates map[uint64]weak.Pointer[template] // by hash
	seed      maphash.Seed
}

// template is the part of a pod that others have as well. It is dropped with the last of
// them.
type template struct {
	namespace string
	labels    labels.Set
	ports     []policy.NamedPort
	account   string                  // the service account
	shared    []unique.Handle[string] // keep the strings in the table of package unique
}

func (t *template) equal(o *template) bool {
	return t.namespace == o.namespace && t.account == o.account && maps.Equal(t.labels, o.labels) && slices.Equal(t.ports, o.ports)
}

// hash does not depend on the order of a map.
func (t *template) hash(seed maphash.Seed) uint64 {
	h := maphash.String(seed, t.namespace) + maphash.Comparable(seed, t.account)
	for k, v := range t.labels {
		h += maphash.Comparable(seed, [2]string{k, v})
	}
	for i, p := range t.ports {
		h += uint64(i+1) * maphash.Comparable(seed, p)
	}
	return h
}

// intern returns a copy of t with shared strings.
func (t *template) intern() *template {
	out := &template{labels: make(labels.Set, len(t.labels)), ports: make([]policy.NamedPort, 0, len(t.ports))}
	text := func(s string) string {
		h := unique.Make(s)
		out.shared = append(out.shared, h)
		return h.Value()
	}
	out.shared = make([]unique.Handle[string], 0, 2+2*len(t.labels)+len(t.ports))
	out.namespace, out.account = text(t.namespace), text(t.account)
	for k, v := range t.labels {
		out.labels[text(k)] = text(v)
	}
	for _, p := range t.ports {
		p.Name = text(p.Name)
		out.ports = append(out.ports, p)
	}
	return out
}

// share returns a template that is equal to t, if possible one that other pods have.
func (c *podConverter) share(t *template) *template {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.templates == nil {
		c.templates, c.seed = map[uint64]weak.Pointer[template]{}, maphash.MakeSeed()
	}
	h := t.hash(c.seed)
	if known := c.templates[h].Value(); known != nil && known.equal(t) {
		return known
	}
	t = t.intern()
	c.templates[h] = weak.Make(t)
	runtime.AddCleanup(t, c.drop, h)
	return t
}

// drop removes a template that no pod has any more.
func (c *podConverter) drop(h uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.templates[h].Value() == nil {
		delete(c.templates, h)
	}
}

// row converts a pod. A pod that no address can be a peer by has none.
func (c *podConverter) row(obj any) (*peer, error) {
	in, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("convert %T: not a Pod", obj)
	}
	ref := policy.PodRef{Namespace: in.Namespace, Name: in.Name}
	addresses, reported := addressesOf(in)
	if len(addresses) == 0 {
		return &peer{ref: ref}, nil
	}
	rank := rank{reported: reported, started: math.MaxInt64, created: in.CreationTimestamp.Unix(), uid: uidOf(string(in.UID))}
	if in.Status.StartTime != nil {
		rank.started = in.Status.StartTime.Unix()
	}
	return c.peer(ref.Name, in.Spec.NodeName, &template{namespace: in.Namespace, labels: in.Labels, ports: policy.NamedPorts(&in.Spec), account: in.Spec.ServiceAccountName}, addresses, rank), nil
}

func (c *podConverter) peer(name, node string, t *template, addresses []netip.Addr, r rank) *peer {
	t = c.share(t)
	at := unique.Make(node)
	return &peer{
		ref: policy.PodRef{Namespace: t.namespace, Name: name}, template: t, node: at, rank: r,
		pod: &policy.Pod{
			Namespace: t.namespace, Name: name, Labels: t.labels, Ports: t.ports, Node: at.Value(), Addresses: addresses,
		},
	}
}

// uidOf is a uid as 16 bytes, in the order of the texts. Only the start is kept of one that is
// not a UUID.
func uidOf(text string) (out [16]byte) {
	digits, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(digits) != len(out) {
		digits = []byte(text)
	}
	copy(out[:], digits)
	return out
}

// addressesOf are the addresses of a pod that can be a peer, and whether the kubelet has
// reported them. Before it has, they are those of the annotation that AWS's agent and
// controller write when they assign them.
func addressesOf(in *corev1.Pod) (out []netip.Addr, reported bool) {
	if in.Spec.HostNetwork || in.Status.Phase == corev1.PodSucceeded || in.Status.Phase == corev1.PodFailed {
		return nil, false
	}
	for _, ip := range in.Status.PodIPs {
		if a, ok := podAddress(ip.IP); ok && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	if a, ok := podAddress(in.Status.PodIP); ok && len(out) == 0 {
		out = append(out, a)
	}
	if len(out) > 0 {
		return slices.Clip(out), true
	}
	return annotated(in.Annotations[vpc.AnnotationPodIPs]), false
}

// annotated reads the annotation; with anything else than at most one address of each
// family it is not used.
func annotated(text string) (out []netip.Addr) {
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, ok := podAddress(strings.TrimSpace(part))
		if !ok || slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			return nil
		}
		out = append(out, a)
	}
	return out
}

// podAddress reads an address that a pod can have.
func podAddress(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	a = a.Unmap()
	return a, a.IsGlobalUnicast()
}
