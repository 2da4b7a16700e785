package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// checkVersion refuses a CNI version that no result can be converted to.
func checkVersion(version string) error {
	if _, err := (&current.Result{CNIVersion: current.ImplementedSpecVersion}).GetAsVersion(version); err != nil {
		return &cnirpc.Error{
			Code: cnirpc.CodeIncompatible, Msg: "the agent has no result format for the configuration's cniVersion", Details: fmt.Sprintf("%q: %v", version, err),
		}
	}
	return nil
}

// result is the CNI result of an ADD at the configuration's version.
func result(e endpoint.Endpoint, sandbox, version string) (json.RawMessage, error) {
	podEnd := 1 // index of the pod's end
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: e.Link, Mac: e.HostMAC.String(), Mtu: e.MTU},
			{Name: e.Key.IfName, Mac: e.PodMAC.String(), Mtu: e.MTU, Sandbox: sandbox},
		},
	}
	for _, addr := range e.Addresses.List() {
		bits := addr.BitLen()
		gateway, everywhere := net.ParseIP(hostnet.PodGateway4), net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		if addr.Is6() {
			gateway, everywhere = net.ParseIP(hostnet.PodGateway6), net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		r.IPs = append(r.IPs, &current.IPConfig{
			Interface: &podEnd, Address: net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Gateway: gateway,
		})
		r.Routes = append(r.Routes, &types.Route{Dst: everywhere, GW: gateway})
	}
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return nil, &cnirpc.Error{Code: cnirpc.CodeIncompatible, Msg: "the result cannot be converted to the configuration's cniVersion", Details: err.Error()}
	}
	return json.Marshal(converted)
}

// check compares an endpoint with the kernel and with the runtime's cached result, and
// lists every difference.
func (c *Controller) check(ctx context.Context, key endpoint.Key, conf netConf, netns *os.File) error {
	e, ok := c.State.Endpoint(key)
	if !ok || e.Stage != endpoint.Ready {
		return &cnirpc.Error{Code: cnirpc.CodeUnknownContainer, Msg: "the agent knows of no such attachment", Details: key.String()}
	}
	var drift []string
	if err := checkResult(conf, e); err != nil {
		drift = append(drift, err.Error())
	}
	have, err := c.Links.Read(ctx)
	if err != nil {
		return err
	}
	drift = append(drift, missing("on the node", hostnet.ForEndpoint(c.Route(e)), have)...)
	if netns != nil {
		inside, err := readInside(ctx, netns)
		if err != nil {
			return err
		}
		drift = append(drift, missing("in the pod", hostnet.PodSide(e), inside)...)
	}
	if len(drift) > 0 {
		c.CompareKernel()
		return &cnirpc.Error{Code: cnirpc.CodeDrift, Msg: "the pod's network is not as ADD left it", Details: strings.Join(drift, "; ")}
	}
	return nil
}

func readInside(ctx context.Context, netns *os.File) (hostnet.State, error) {
	pod, err := link.Open(netns)
	if err != nil {
		return hostnet.State{}, err
	}
	defer pod.Close()
	return pod.Read(ctx)
}

// missing lists the objects of want that have lacks, or has with other values.
func missing(where string, want, have hostnet.State) (list []string) {
	for _, op := range hostnet.Diff(want, have) {
		if op.Verb != hostnet.Delete {
			list = append(list, fmt.Sprintf("%s: %s", where, op))
		}
	}
	return list
}

// checkResult compares the runtime's cached result with the endpoint.
func checkResult(conf netConf, e endpoint.Endpoint) error {
	if len(conf.PrevResult) == 0 || string(conf.PrevResult) == "null" {
		return errors.New("the runtime sent no previous result")
	}
	parsed, err := create.Create(conf.CNIVersion, conf.PrevResult)
	if err != nil {
		return fmt.Errorf("previous result: %w", err)
	}
	prev, err := current.NewResultFromResult(parsed)
	if err != nil {
		return fmt.Errorf("previous result: %w", err)
	}
	for _, addr := range e.Addresses.List() {
		if !slices.ContainsFunc(prev.IPs, func(ip *current.IPConfig) bool { return ip.Address.IP.String() == addr.String() }) {
			return fmt.Errorf("the runtime's record lacks address %s", addr)
		}
	}
	return nil
}
