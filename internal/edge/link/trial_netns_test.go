//go:build netns

package link

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

func TestThisKernelCanWirePods(t *testing.T) {
	for range 3 { // it leaves nothing that a second one would meet
		if err := Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAProbeNamesTheStepThatFailed(t *testing.T) {
	err := probe(t.Context(), hostnet.Pod{
		Namespace: "a", Name: "b", ContainerID: "c", IfName: "eth0", Link: "a-name-that-no-link-can-have", MTU: 1500,
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
	if err == nil || !strings.Contains(err.Error(), "link a-name-that-no-link-can-have") {
		t.Errorf("%v: names neither the step nor the link", err)
	}
}
