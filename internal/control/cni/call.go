package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
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
	RuntimeConfig    json.RawMessage `json:"runtimeConfig"`
}

// unserved refuses a pod with hostPorts that nothing on the node would serve. The runtime
// sends them to our plugin only where no portmap is chained; see control/conflist.
func (c netConf) unserved() error {
	if c.RuntimeConfig == nil {
		return nil
	}
	var conf struct {
		PortMappings []struct {
			HostPort int    `json:"hostPort"`
			Protocol string `json:"protocol"`
		} `json:"portMappings"`
	}
	if err := json.Unmarshal(c.RuntimeConfig, &conf); err != nil {
		return &cnirpc.Error{Code: cnirpc.CodeInvalidConfig, Msg: "runtimeConfig cannot be read", Details: err.Error()}
	}
	var ports []string
	for _, m := range conf.PortMappings {
		ports = append(ports, fmt.Sprintf("%d/%s", m.HostPort, m.Protocol))
	}
	if len(ports) == 0 {
		return nil
	}
	return &cnirpc.Error{
		Code: cnirpc.CodeRefused, Msg: "the pod has a hostPort, and the node no usable portmap plugin",
		Details: fmt.Sprintf("hostPort %s would be lost; `trunkline status` says what is wrong with portmap on this node", strings.Join(ports, ", ")),
	}
}

// valid are the attachments that a GC must leave. An empty list leaves none. Without a
// list, or with an entry that is not complete, nothing is removed.
func (c netConf) valid() (map[endpoint.Key]bool, error) {
	raw := c.ValidAttachments
	if raw == nil {
		raw = c.Attachments
	}
	refuse := func(details string) (map[endpoint.Key]bool, error) {
		return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidConfig, Msg: "GC without a list of valid attachments: none is removed", Details: details}
	}
	if raw == nil {
		return refuse("cni.dev/valid-attachments is missing")
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(raw, &list); err != nil {
		return refuse("cni.dev/valid-attachments: " + err.Error())
	}
	valid := map[endpoint.Key]bool{}
	for i, a := range list {
		if a.ContainerID == "" || a.IfName == "" {
			return refuse(fmt.Sprintf("cni.dev/valid-attachments[%d] lacks containerID or ifname", i))
		}
		valid[endpoint.Key{ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	return valid, nil
}

// Handle answers one call of the plugin. It is cniserver's Handler.
func (c *Controller) Handle(ctx context.Context, req *cnirpc.Request, netns *os.File, answer cniserver.Answer) {
	began := time.Now()
	c.mu.Lock()
	c.plugin = req.Plugin
	if req.Command == "ADD" { // containerd 2 calls STATUS every few seconds, whether pods are wired or not
		c.called = began
	}
	c.mu.Unlock()
	c.dispatch(ctx, req, netns, func(result json.RawMessage, err error) {
		c.metrics.call(req.Command, err, time.Since(began))
		if err == nil {
			answer(result, nil)
			return
		}
		failure := asError(err)
		c.Log.Warn("call failed", "command", req.Command, "container", req.ContainerID, "code", failure.Code, "error", err, "took", time.Since(began))
		answer(nil, failure)
	})
}

// dispatch carries out a call and answers it once.
func (c *Controller) dispatch(ctx context.Context, req *cnirpc.Request, netns *os.File, answer func(json.RawMessage, error)) {
	var conf netConf
	if err := json.Unmarshal(req.Config, &conf); err != nil {
		answer(nil, &cnirpc.Error{Code: cnirpc.CodeDecode, Msg: "network configuration is not valid JSON", Details: err.Error()})
		return
	}
	key := endpoint.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	if key.ContainerID == "" && req.Command != "STATUS" && req.Command != "GC" {
		answer(nil, &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: req.Command + " without a container"})
		return
	}
	switch req.Command {
	case "ADD":
		err := c.calls.Do(ctx, key, func(ctx context.Context) error { return c.add(ctx, req, conf, netns, answer) })
		if err != nil {
			answer(nil, err)
		}
	case "DEL":
		answer(nil, c.calls.Preempt(ctx, key, func(ctx context.Context) error {
			if _, ok := c.State.Endpoint(key); ok {
				c.adds.Yield(ctx, quiet, yieldAtMost)
			}
			return c.del(ctx, key)
		}))
	case "CHECK":
		answer(nil, c.calls.Do(ctx, key, func(ctx context.Context) error { return c.check(ctx, key, conf, netns) }))
	case "STATUS":
		var err error
		if why := c.Backend.Status(); why != nil {
			err = &cnirpc.Error{Code: cnirpc.CodeUnavailable, Msg: "no pod can be wired", Details: why.Error()}
		}
		answer(nil, err)
	case "GC":
		answer(nil, c.gc(ctx, conf))
	default:
		answer(nil, &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: "unknown command", Details: fmt.Sprintf("%q", req.Command)})
	}
}

// podOf reads the pod from CNI_ARGS. It is zero for runtimes other than the kubelet's,
// which have no pods.
func podOf(args string) (endpoint.Pod, error) {
	var pod endpoint.Pod
	refuse := func(why string, list ...any) error {
		return &cnirpc.Error{Code: cnirpc.CodeInvalidEnv, Msg: "invalid CNI_ARGS", Details: fmt.Sprintf(why, list...)}
	}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, found := strings.Cut(pair, "=")
		if !found && pair != "" {
			return endpoint.Pod{}, refuse("%q is not KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		case "K8S_POD_UID":
			pod.UID = value
		}
	}
	if pod.Name == "" && pod.Namespace == "" {
		return pod, nil
	}
	if wrong := validation.IsDNS1123Label(pod.Namespace); len(wrong) > 0 {
		return endpoint.Pod{}, refuse("K8S_POD_NAMESPACE %q: %s", pod.Namespace, wrong[0])
	}
	if wrong := validation.IsDNS1123Subdomain(pod.Name); len(wrong) > 0 {
		return endpoint.Pod{}, refuse("K8S_POD_NAME %q: %s", pod.Name, wrong[0])
	}
	return pod, nil
}
