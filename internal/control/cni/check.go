package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/link"
)

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
