//go:build netns

package link_test

import (
	"context"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Multus has the plugin make a second interface of a pod: each has its own link and address, by
// which peers reach the pod, and the end of one leaves the other.
func TestAFurtherInterfaceOfAPodWorksBesideTheFirst(t *testing.T) {
	w := newWorld(t)
	first := w.pod("a", "10.0.0.12")
	for name, addr := range map[string]string{"net1": "10.0.0.70", "net2": "10.0.0.71"} {
		g := &guest{NS: first.NS, Endpoint: w.guest("a-"+name, addr).Endpoint}
		g.Key, g.Pod = endpoint.Key{ContainerID: first.Key.ContainerID, IfName: name}, first.Pod
		g.Link = endpoint.LinkNameOf(endpoint.DefaultLinkPrefix, g.Key, g.Pod)
		g.HostMAC, g.PodMAC = endpoint.MACs(g.Key)
		w.pods["a-"+name] = g
		w.wire(g)
		w.wire(g) // a repeated ADD
		w.allowSource(g)
	}
	w.apply()
	for _, addr := range []string{"10.0.0.12", "10.0.0.70", "10.0.0.71"} {
		echoAt(t, first.NS, addr+":7")
	}
	echo(t, w.peer, echoPort)
	reached := func(addrs ...string) {
		t.Helper()
		mustSee(t, first.NS, peerAddr+":7", 64, "10.0.0.12")
		for _, addr := range addrs {
			mustSee(t, w.peer, addr+":7", 64, peerAddr)
		}
	}
	reached("10.0.0.12", "10.0.0.70", "10.0.0.71")

	if _, err := w.host.Unwire(context.Background(), w.pods["a-net1"].Endpoint); err != nil {
		t.Fatal(err)
	}
	reached("10.0.0.12", "10.0.0.71")
	w.wire(w.pods["a-net1"]) // its dying link is in the pod still
	reached("10.0.0.12", "10.0.0.70", "10.0.0.71")
}
