package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// speaks reports whether a result can be said in a CNI version.
func speaks(version string) error {
	if _, err := (&current.Result{CNIVersion: current.ImplementedSpecVersion}).GetAsVersion(version); err != nil {
		return &cnirpc.Error{
			Code: cnirpc.CodeIncompatible, Msg: "the configuration's cniVersion is not one that results can be said in", Details: fmt.Sprintf("%q: %v", version, err),
		}
	}
	return nil
}

// resultOf is the CNI result of an ADD at the configuration's version.
func resultOf(add *addition, version string) (json.RawMessage, error) {
	sandbox := 1 // index of the pod's end
	bits := add.lease.Addr.BitLen()
	address := net.IPNet{IP: add.lease.Addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}
	gateway := net.ParseIP(hostnet.PodGateway4)
	everywhere := net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: add.wired.Link, Mac: add.wired.HostMAC.String(), Mtu: add.wired.MTU},
			{Name: add.req.IfName, Mac: add.wired.PodMAC.String(), Mtu: add.wired.MTU, Sandbox: add.req.Netns},
		},
		IPs:    []*current.IPConfig{{Interface: &sandbox, Address: address, Gateway: gateway}},
		Routes: []*types.Route{{Dst: everywhere, GW: gateway}},
	}
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return nil, &cnirpc.Error{Code: cnirpc.CodeIncompatible, Msg: "the result cannot be said in the configuration's version", Details: err.Error()}
	}
	return json.Marshal(converted)
}

// check compares an attachment with the journal, the kernel and the runtime's
// own memory, and says in words what is not as ADD left it.
func (a *Agent) check(ctx context.Context, key ipam.Key, conf netConf, netns *os.File) error {
	t, ok := a.book.get(key)
	if !ok || t.Stage != wired {
		return &cnirpc.Error{Code: cnirpc.CodeUnknownContainer, Msg: "the agent knows of no such attachment", Details: key.String()}
	}
	var drift []string
	if err := checkResult(conf, t); err != nil {
		drift = append(drift, err.Error())
	}
	have, err := a.host.Read(ctx)
	if err != nil {
		return err
	}
	drift = append(drift, missing("on the node", hostnet.ForPod(a.wantPod(t)), have)...)
	if netns != nil {
		inside, err := readInside(ctx, netns, a)
		if err != nil {
			return err
		}
		drift = append(drift, missing("in the pod", hostnet.PodSide(t.pod()), inside)...)
	}
	if len(drift) > 0 {
		a.kernel.MarkFull()
		return &cnirpc.Error{Code: cnirpc.CodeDrift, Msg: "the pod's network is not as ADD left it", Details: strings.Join(drift, "; ")}
	}
	return nil
}

func readInside(ctx context.Context, netns *os.File, a *Agent) (hostnet.State, error) {
	pod, err := link.Open(netns, a.log)
	if err != nil {
		return hostnet.State{}, err
	}
	defer pod.Close()
	return pod.Read(ctx)
}

// missing lists what want has and have lacks or has otherwise.
func missing(where string, want, have hostnet.State) (words []string) {
	for _, op := range hostnet.Diff(want, have) {
		if op.Verb != hostnet.Delete {
			words = append(words, fmt.Sprintf("%s: %s", where, op))
		}
	}
	return words
}

// checkResult compares the runtime's cached result with the attachment.
func checkResult(conf netConf, t attachment) error {
	if len(conf.PrevResult) == 0 || string(conf.PrevResult) == "null" {
		return fmt.Errorf("the runtime sent no previous result")
	}
	parsed, err := create.Create(conf.CNIVersion, conf.PrevResult)
	if err != nil {
		return fmt.Errorf("previous result: %w", err)
	}
	prev, err := current.NewResultFromResult(parsed)
	if err != nil {
		return fmt.Errorf("previous result: %w", err)
	}
	if !slices.ContainsFunc(prev.IPs, func(ip *current.IPConfig) bool { return ip.Address.IP.String() == t.Addr.String() }) {
		return fmt.Errorf("the runtime remembers other addresses than %s", t.Addr)
	}
	return nil
}
