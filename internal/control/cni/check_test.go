package cni

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// reading is a kernel with a state.
type reading struct {
	*wires
	have hostnet.State
	err  error
}

func (r reading) Read(context.Context, ...string) (hostnet.State, error) { return r.have, r.err }

func TestCHECKNamesEachDifferenceFromTheADD(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(have *hostnet.State)
		config  string // %s is the ADD's result
		want    string // "": no difference
		compare bool   // the kernel is to be compared
	}{
		"nothing":                {nil, `{"cniVersion":"1.0.0","prevResult":%s}`, "", false},
		"the link":               {func(h *hostnet.State) { h.Links = nil }, `{"cniVersion":"1.0.0","prevResult":%s}`, "on the node: report link", true},
		"a route":                {func(h *hostnet.State) { h.Routes = nil }, `{"cniVersion":"1.0.0","prevResult":%s}`, "on the node: add route", true},
		"a rule":                 {func(h *hostnet.State) { h.Rules = nil }, `{"cniVersion":"1.0.0","prevResult":%s}`, "on the node: add rule", true},
		"no result of the ADD":   {nil, `{"cniVersion":"1.0.0"}`, "the runtime sent no previous result", true},
		"an empty result":        {nil, `{"cniVersion":"1.0.0","prevResult":null}`, "the runtime sent no previous result", true},
		"a result of no version": {nil, `{"cniVersion":"9.9.9","prevResult":%s}`, "previous result: ", true},
		"a result that is none":  {nil, `{"cniVersion":"1.0.0","prevResult":[]}`, "previous result: ", true},
		"another address":        {nil, `{"cniVersion":"1.0.0","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.99/32"}]}}`, "the runtime's record lacks address 10.0.0.", true},
		"a rule and the address": {func(h *hostnet.State) { h.Rules = nil }, `{"cniVersion":"1.0.0","prevResult":{"cniVersion":"1.0.0"}}`, "lacks address 10.0.0.", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			compared := false
			h.CompareKernel = func() { compared = true }
			answer, failure := h.call(t, request("ADD", "known"))
			if failure != nil {
				t.Fatal(failure)
			}
			e, _ := h.ofCall()
			have := hostnet.ForEndpoint(e)
			if c.change != nil {
				c.change(&have)
			}
			h.Links = reading{wires: h.wires, have: have}
			req := request("CHECK", "known")
			req.Config = json.RawMessage(strings.ReplaceAll(c.config, "%s", string(answer)))
			_, failure = h.answered(t.Context(), req, nil)
			switch {
			case c.want == "" && failure != nil:
				t.Errorf("%v although nothing differs", failure)
			case c.want != "" && (failure == nil || failure.Code != cnirpc.CodeDrift || !strings.Contains(failure.Details, c.want)):
				t.Errorf("%v, want code %d with %q", failure, cnirpc.CodeDrift, c.want)
			}
			if name == "a rule and the address" && !strings.Contains(failure.Details, "add rule") {
				t.Errorf("%v names one difference of two", failure)
			}
			if compared != c.compare {
				t.Errorf("a comparison of the kernel was requested: %v, want %v", compared, c.compare)
			}
		})
	}
}

func TestCHECKFailsIfTheKernelCannotBeRead(t *testing.T) {
	h := newHarness(t)
	answer, failure := h.call(t, request("ADD", "known"))
	if failure != nil {
		t.Fatal(failure)
	}
	h.Links = reading{wires: h.wires, err: errKernel}
	req := request("CHECK", "known")
	req.Config = json.RawMessage(`{"cniVersion":"1.0.0","prevResult":` + string(answer) + `}`)
	if _, failure := h.answered(t.Context(), req, nil); failure == nil || failure.Code == cnirpc.CodeDrift || !strings.Contains(failure.Error(), errKernel.Error()) {
		t.Errorf("%v, want the error of the read, and not that something differs", failure)
	}
}

func TestTheResultHasEachAddressWithItsGatewayAndDefaultRoute(t *testing.T) {
	e := endpoint.Adopt(1, endpoint.Key{ContainerID: "c1", IfName: "eth0"}, endpoint.Pod{}, endpoint.Wire{
		Addresses: endpoint.AddressesOf(netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("2600:1f14::7")), Link: "eni1", MTU: 9001,
	}, false, time.Time{})
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		raw, err := result(e, "/run/netns/one", version)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			CNIVersion string
			Interfaces []current.Interface
			IPs        []struct{ Address, Gateway string }
			Routes     []struct{ Dst, GW string }
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if got.CNIVersion != version || len(got.Interfaces) != 2 || len(got.IPs) != 2 || len(got.Routes) != 2 {
			t.Fatalf("%s: %s", version, raw)
		}
		host, pod := got.Interfaces[0], got.Interfaces[1]
		if host.Name != "eni1" || host.Mac != e.HostMAC.String() || host.Sandbox != "" || pod.Name != "eth0" || pod.Mac != e.PodMAC.String() || pod.Sandbox != "/run/netns/one" {
			t.Errorf("%s: interfaces %+v", version, got.Interfaces)
		}
		for n, want := range []struct{ address, gateway, dst string }{
			{"10.0.0.7/32", hostnet.PodGateway4, "0.0.0.0/0"}, {"2600:1f14::7/128", hostnet.PodGateway6, "::/0"},
		} {
			if ip, route := got.IPs[n], got.Routes[n]; ip.Address != want.address || ip.Gateway != want.gateway || route.Dst != want.dst || route.GW != want.gateway {
				t.Errorf("%s: address %+v and route %+v, want %+v", version, ip, route, want)
			}
		}
	}
}

// Its DEL was accepted: the runtime must not take it for a pod that is connected.
func TestCHECKFindsNoAttachmentThatIsBeingRemoved(t *testing.T) {
	h := newHarness(t)
	if _, failure := h.call(t, request("ADD", "known")); failure != nil {
		t.Fatal(failure)
	}
	h.wires.fail["unwire"] = errKernel
	if _, failure := h.call(t, request("DEL", "known")); failure == nil {
		t.Fatal("the link was removed")
	}
	if _, failure := h.call(t, request("CHECK", "known")); failure == nil || failure.Code != cnirpc.CodeUnknownContainer {
		t.Errorf("%v, want code %d", failure, cnirpc.CodeUnknownContainer)
	}
}
