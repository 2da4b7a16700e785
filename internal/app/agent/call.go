package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// netConf is what the agent reads of a network configuration.
type netConf struct {
	CNIVersion       string               `json:"cniVersion"`
	Name             string               `json:"name"`
	PrevResult       json.RawMessage      `json:"prevResult"`
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// handle answers one call of the plugin. It is the cnirpc.Handler.
func (a *Agent) handle(ctx context.Context, req *cnirpc.Request, netns *os.File) (json.RawMessage, *cnirpc.Error) {
	began := time.Now()
	a.mu.Lock()
	a.plugin = req.Plugin
	a.mu.Unlock()
	result, err := a.dispatch(ctx, req, netns)
	a.metrics.call(req.Command, err, time.Since(began))
	if err == nil {
		return result, nil
	}
	failure := asError(err)
	a.log.Warn("call failed", "command", req.Command, "container", req.ContainerID, "code", failure.Code, "error", err, "took", time.Since(began))
	return nil, failure
}

func (a *Agent) dispatch(ctx context.Context, req *cnirpc.Request, netns *os.File) (json.RawMessage, error) {
	var conf netConf
	if err := json.Unmarshal(req.Config, &conf); err != nil {
		return nil, &cnirpc.Error{Code: cnirpc.CodeDecode, Msg: "network configuration is not the JSON it should be", Details: err.Error()}
	}
	key := ipam.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	if key.ContainerID == "" && req.Command != "STATUS" && req.Command != "GC" {
		return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: req.Command + " without a container"}
	}
	switch req.Command {
	case "ADD":
		var result json.RawMessage
		err := a.calls.Do(ctx, key, func(ctx context.Context) (err error) {
			result, err = a.add(ctx, req, conf, netns)
			return err
		})
		return result, err
	case "DEL":
		return nil, a.calls.Preempt(ctx, key, func(ctx context.Context) error { return a.del(ctx, key) })
	case "CHECK":
		return nil, a.calls.Do(ctx, key, func(ctx context.Context) error { return a.check(ctx, key, conf, netns) })
	case "STATUS":
		return nil, a.status()
	case "GC":
		return nil, a.gc(ctx, conf)
	}
	return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: "unknown command", Details: fmt.Sprintf("%q", req.Command)}
}

// podArgs reads CNI_ARGS as the kubelet's runtimes fill it in.
func podArgs(args string) (namespace, name, uid string) {
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAMESPACE":
			namespace = value
		case "K8S_POD_NAME":
			name = value
		case "K8S_POD_UID":
			uid = value
		}
	}
	return namespace, name, uid
}

// status says whether the next ADD could be wired. A pool that is empty for the
// moment, or a node that is full, is no reason to say no: the runtime would
// report the whole node as not ready and its pods would be evicted. ADDs wait.
func (a *Agent) status() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.serving {
		return &cnirpc.Error{Code: cnirpc.CodeUnavailable, Msg: "the agent is still starting"}
	}
	switch c := a.decision.Condition; c.Reason {
	case ipam.ReasonInvalid:
		return &cnirpc.Error{Code: cnirpc.CodeUnavailable, Msg: "no pod can be wired", Details: c.Message}
	case ipam.ReasonRefused:
		if !c.CanAdd {
			return &cnirpc.Error{Code: cnirpc.CodeUnavailable, Msg: "no address is left and EC2 refuses to give more", Details: c.Message}
		}
	default: // ADDs are served, or wait
	}
	return nil
}
