package policy

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// feed gives the engine what changed: objects of the cluster, then pods and endpoints of the
// node.
func (c *Controller) feed() error {
	feedObjects(c)
	return c.feedEndpoints()
}

// feedAll gives a new engine all objects, pods and endpoints. Which of
// the cluster's pods have the name of one of this node is known only with the endpoints.
func feedAll(c *Controller) error {
	c.Objects.Again()
	pods := feedObjects(c)
	err := c.feedEndpoints()
	for _, p := range c.wired {
		if pod := pods[refOf(p.endpoint)]; pod != nil {
			c.elsewhere[refOf(p.endpoint)] = *pod
		}
	}
	return err
}

// feedObjects gives the engine the objects of the cluster that changed, and returns the pods among
// them.
func feedObjects(c *Controller) map[policy.PodRef]*policy.Pod {
	changes := c.Objects.Take()
	c.metrics.taken(changes.Since, changes.Written)
	for ref, object := range changes.Policies {
		if object == nil {
			c.engine.DeletePolicy(ref)
			c.faults.noteOdd(ref, "", nil)
			continue
		}
		c.engine.SetPolicy(object.Policy)
		c.faults.noteOdd(ref, object.UID, object.Problems)
		for _, text := range object.Problems {
			c.Log.Warn("a part of a policy cannot be honoured, and allows nothing", "policy", ref, "problem", text)
		}
	}
	for name, set := range changes.Namespaces {
		if set == nil {
			c.engine.DeleteNamespace(name)
			continue
		}
		c.engine.SetNamespace(name, *set)
	}
	local := map[policy.PodRef]bool{}
	for _, p := range c.wired {
		local[refOf(p.endpoint)] = true
	}
	for ref, pod := range changes.Pods {
		switch {
		case local[ref]: // known better here, as long as it is here
			delete(c.elsewhere, ref)
			if pod != nil {
				c.elsewhere[ref] = *pod
			}
		case pod == nil:
			c.engine.DeletePod(ref)
		default:
			c.engine.SetPod(*pod)
		}
	}
	return changes.Pods
}

// feedEndpoints gives the engine the endpoints that the table has, and their pods with the
// addresses that they were wired with, which the API server shows later.
func (c *Controller) feedEndpoints() error {
	pods := map[policy.PodRef]kube.Pod{}
	for _, p := range c.Pods.Pods() {
		pods[policy.PodRef{Namespace: p.Namespace, Name: p.Name}] = p
	}
	left := map[endpoint.ID]bool{}
	for id := range c.wired {
		left[id] = true
	}
	addresses := map[policy.PodRef][]netip.Addr{} // of all interfaces of a pod
	newest := map[policy.PodRef]endpoint.Endpoint{}
	for _, e := range c.State.Endpoints() {
		if !e.Wired() || !e.Addresses.Primary().IsValid() {
			continue
		}
		delete(left, e.ID)
		addresses[refOf(e)] = append(addresses[refOf(e)], e.Addresses.List()...)
		newest[refOf(e)] = newer(newest[refOf(e)], e)
		if before, known := c.wired[e.ID]; !known || before.endpoint.Key != e.Key || refOf(before.endpoint) != refOf(e) {
			c.ended[e.ID] = c.ended[e.ID] || known
			c.enter(e)
		}
		place := c.wired[e.ID]
		place.endpoint = e
		c.wired[e.ID] = place
	}
	for ref, list := range addresses {
		if pod, known := pods[ref]; known && isPodOf(pod, newest[ref]) {
			c.engine.SetPod(podOf(pod, list))
		}
	}
	var errs []error
	for id := range left {
		errs = append(errs, c.forget(id))
	}
	return errors.Join(errs...)
}

// newer is the one of two endpoints of a pod that took its stage later; the zero endpoint is the
// older one.
func newer(a, b endpoint.Endpoint) endpoint.Endpoint {
	if a.Since.After(b.Since) {
		return a
	}
	return b
}

// isPodOf reports whether an endpoint is of a pod, and not of another one with its name: the watch of
// the node's pods may still have the earlier one, when Ready has judged the later one by what the API
// server answered. A static pod is the same while its mirror pod is deleted and created with another
// UID, and control/cni keeps the UID of the mirror pod.
func isPodOf(p kube.Pod, e endpoint.Endpoint) bool {
	return e.Pod.UID == "" || e.Pod.UID == p.UID || p.Static != ""
}

// enter gives the engine an endpoint. If its number is that of an earlier one, connections are judged
// again first: their entries name the endpoint of the set that allowed them.
func (c *Controller) enter(e endpoint.Endpoint) {
	if c.ended[e.ID] {
		c.datapath.State.NextEpoch()
		clear(c.ended)
	}
	c.engine.SetEndpoint(e.ID, refOf(e))
}

// forget ends the engine's knowledge of an endpoint that has ended.
func (c *Controller) forget(id endpoint.ID) error {
	place := c.wired[id]
	c.ended[id] = true
	c.engine.DeleteEndpoint(id)
	delete(c.wired, id)
	delete(c.faults.cut, id)
	ref := refOf(place.endpoint)
	another := false // sandbox of the pod
	for _, other := range c.wired {
		another = another || refOf(other.endpoint) == ref
	}
	pod, moved := c.elsewhere[ref]
	switch {
	case another:
	case moved && !slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool { return slices.Contains(place.endpoint.Addresses.List(), a) }):
		c.engine.SetPod(pod) // a pod of a StatefulSet, for instance
		delete(c.elsewhere, ref)
	default:
		c.engine.DeletePod(ref)
		delete(c.elsewhere, ref)
	}
	return c.unplace(id, place)
}

func refOf(e endpoint.Endpoint) policy.PodRef {
	return policy.PodRef{Namespace: e.Pod.Namespace, Name: e.Pod.Name}
}

// podOf is a pod of the node with the addresses that it was wired with.
func podOf(p kube.Pod, addresses []netip.Addr) policy.Pod {
	return policy.Pod{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, Addresses: addresses, Ports: p.Ports}
}
