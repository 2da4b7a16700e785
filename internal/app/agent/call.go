package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// netConf is what the agent reads of a network configuration.
type netConf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	PrevResult json.RawMessage `json:"prevResult"`
	// ValidAttachments are for GC; Attachments is the name that libcni before 1.2.2
	// had for them.
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage `json:"cni.dev/attachments"`
}

// valid are the attachments that a GC must leave. An empty list leaves none; without
// a list, or with one that does not say which they are, nothing may go.
func (c netConf) valid() (map[types.GCAttachment]bool, error) {
	raw := c.ValidAttachments
	if raw == nil {
		raw = c.Attachments
	}
	refuse := func(details string) (map[types.GCAttachment]bool, error) {
		return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidConfig, Msg: "GC does not say which attachments are valid, so none is taken away", Details: details}
	}
	if raw == nil {
		return refuse("cni.dev/valid-attachments is missing")
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(raw, &list); err != nil {
		return refuse("cni.dev/valid-attachments: " + err.Error())
	}
	valid := map[types.GCAttachment]bool{}
	for i, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return refuse(fmt.Sprintf("cni.dev/valid-attachments[%d] lacks containerID or ifname", i))
		}
		valid[a] = true
	}
	return valid, nil
}

// handle answers one call of the plugin. It is cniserver's Handler.
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
		return nil, a.calls.Preempt(ctx, key, func(ctx context.Context) error {
			if _, ok := a.book.get(key); ok {
				a.host.LetADDsFirst(ctx, lull, addsFirst)
			}
			return a.del(ctx, key)
		})
	case "CHECK":
		return nil, a.calls.Do(ctx, key, func(ctx context.Context) error { return a.check(ctx, key, conf, netns) })
	case "STATUS":
		return nil, a.status()
	case "GC":
		return nil, a.gc(ctx, conf)
	}
	return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: "unknown command", Details: fmt.Sprintf("%q", req.Command)}
}

// podArgs reads CNI_ARGS as the kubelet's runtimes fill it in. No pod at all is
// fine: other runtimes have none.
func podArgs(args string) (namespace, name, uid string, err error) {
	refuse := func(why string, list ...any) (string, string, string, error) {
		return "", "", "", &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: "CNI_ARGS names no pod that can be", Details: fmt.Sprintf(why, list...)}
	}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, found := strings.Cut(pair, "=")
		if !found && pair != "" {
			return refuse("%q is not KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			namespace = value
		case "K8S_POD_NAME":
			name = value
		case "K8S_POD_UID":
			uid = value
		}
	}
	if name == "" && namespace == "" {
		return "", "", uid, nil
	}
	if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
		return refuse("K8S_POD_NAMESPACE %q: %s", namespace, wrong[0])
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return refuse("K8S_POD_NAME %q: %s", name, wrong[0])
	}
	return namespace, name, uid, nil
}

// status says whether the next ADD could be wired. A pool that is empty for the
// moment, or a node that is full, is no reason to say no: the runtime would
// report the whole node as not ready and its pods would be evicted. ADDs wait. Nor is
// a refusal of EC2's while pods run here: a role that lost a right must not have a
// fleet evicted.
func (a *Agent) status() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.decision.Numbers.Assigned+a.decision.Numbers.Quarantined > 0 {
		return nil // whatever holds up the next pod is told on that pod
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
