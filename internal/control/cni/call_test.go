package cni

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// What a runtime, or a plugin of another version, says wrongly is refused by name, and
// the pods that run are not touched.
func TestABadCallIsRefusedAndTouchesNothing(t *testing.T) {
	const pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"
	for name, c := range map[string]struct {
		command, args, config string
		code                  uint
		says                  string
	}{
		"no JSON":                           {"ADD", pod, `hello`, cnirpc.CodeDecode, "JSON"},
		"a version that is a number":        {"ADD", pod, `{"cniVersion":1}`, cnirpc.CodeDecode, "cniVersion"},
		"an unknown version":                {"ADD", pod, `{"cniVersion":"9.9.9","name":"n"}`, cnirpc.CodeIncompatible, `"9.9.9"`},
		"no version":                        {"ADD", pod, `{"name":"n","cniVersion":"x"}`, cnirpc.CodeIncompatible, `"x"`},
		"arguments that are none":           {"ADD", "K8S_POD_NAME", `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, `"K8S_POD_NAME" is not KEY=VALUE`},
		"a pod name that is a path":         {"ADD", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=../etc", `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, `K8S_POD_NAME "../etc"`},
		"a pod without a namespace":         {"ADD", "K8S_POD_NAME=web", `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, "K8S_POD_NAMESPACE"},
		"an unknown command":                {"FLY", pod, `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, "FLY"},
		"GC without a list":                 {"GC", "", `{"cniVersion":"1.1.0"}`, cnirpc.CodeInvalidConfig, "cni.dev/valid-attachments is missing"},
		"GC with a list of strings":         {"GC", "", `{"cniVersion":"1.1.0","cni.dev/valid-attachments":["one"]}`, cnirpc.CodeInvalidConfig, "none is removed"},
		"GC with an attachment half named":  {"GC", "", `{"cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"one"}]}`, cnirpc.CodeInvalidConfig, "attachments[0] lacks"},
		"CHECK of an unknown container":     {"CHECK", pod, `{"cniVersion":"1.0.0"}`, cnirpc.CodeUnknownContainer, "no such attachment"},
		"a list that is no list, at an ADD": {"ADD", "K8S_POD_NAME=a b", `{"cniVersion":"1.0.0","cni.dev/valid-attachments":5,"runtimeConfig":7}`, cnirpc.CodeInvalidEnv, "K8S_POD"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			one := statetest.Ready(t, h.State, "one")
			req := &cnirpc.Request{Command: c.command, ContainerID: "c9", IfName: "eth0", Args: c.args, Config: json.RawMessage(c.config)}
			answer, failure := h.call(t, req)
			if failure == nil || failure.Code != c.code || !strings.Contains(failure.Error(), c.says) {
				t.Errorf("%s, %v; want code %d with %q", answer, failure, c.code, c.says)
			}
			if left := h.State.Endpoints(); len(left) != 1 || left[0] != one || len(h.wires.done) > 0 {
				t.Errorf("endpoints %+v, steps %v: the pod that runs was touched", left, h.wires.done)
			}
			if len(h.events.events) > 0 {
				t.Errorf("events %q although the pod is not known", h.events.events)
			}
		})
	}
}

// The kubelet has the runtime call STATUS while no pod can be wired.
func TestOnlyAnADDShowsThatTheRuntimeCallsThePluginForPods(t *testing.T) {
	h := newHarness(t)
	for _, command := range []string{"STATUS", "DEL", "CHECK", "GC"} {
		h.call(t, &cnirpc.Request{Command: command, Plugin: "v1", ContainerID: "c9", IfName: "eth0", Config: json.RawMessage(`{"cniVersion":"1.1.0"}`)})
		if at := h.Called(); !at.IsZero() {
			t.Errorf("called at %s by %s", at, command)
		}
	}
	if v := h.Plugin(); v != "v1" {
		t.Errorf("the plugin is %q", v)
	}
	h.call(t, &cnirpc.Request{Command: "ADD", ContainerID: "c9", IfName: "eth0", Config: json.RawMessage(`{"cniVersion":"9.9.9"}`)})
	if h.Called().IsZero() {
		t.Error("not called by ADD")
	}
}

func TestOnlyHostPortsInTheRuntimesConfigurationAreRefused(t *testing.T) {
	for config, refused := range map[string]bool{
		`{}`:                                    false,
		`{"runtimeConfig":{}}`:                  false,
		`{"runtimeConfig":{"portMappings":[]}}`: false,
		`{"runtimeConfig":{"portMappings":null,"dns":{}}}`:                      false,
		`{"runtimeConfig":{"portMappings":[{"hostPort":53,"protocol":"udp"}]}}`: true,
		`{"runtimeConfig":7}`: true,
	} {
		var conf netConf
		if err := json.Unmarshal([]byte(config), &conf); err != nil {
			t.Fatal(err)
		}
		if err := conf.unserved(); (err != nil) != refused {
			t.Errorf("%s: %v, refused should be %v", config, err, refused)
		}
	}
}

func TestGCLeavesWhatTheRuntimeNames(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   int
	}{
		"the specification's name": {`{"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]}`, 1},
		"libcni 1.2.0's name":      {`{"cni.dev/attachments":[{"containerID":"one","ifname":"eth0"}]}`, 1},
		"none at all":              {`{"cni.dev/valid-attachments":null}`, 0},
	} {
		var conf netConf
		err := json.Unmarshal([]byte(c.config), &conf)
		valid, also := conf.valid()
		if err = errors.Join(err, also); err != nil || len(valid) != c.want {
			t.Errorf("%s: %v, %v", name, valid, err)
		}
	}
}

// The list of valid attachments is of one network only: CNI specification, "GC".
func TestGCRemovesTheEndpointsOfItsNetworkOnly(t *testing.T) {
	h := newHarness(t)
	one, two := statetest.Ready(t, h.State, "one"), statetest.Ready(t, h.State, "two")
	gc := func(network string) {
		t.Helper()
		req := &cnirpc.Request{Command: "GC", Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"` + network + `","cni.dev/valid-attachments":[{"containerID":"two","ifname":"eth0"}]}`)}
		if _, failure := h.answered(t.Context(), req, nil); failure != nil {
			t.Error(failure)
		}
	}
	if gc("second"); len(h.State.Endpoints()) != 2 {
		t.Error("a GC of another network removed a pod")
	}
	gc(config.NetworkName)
	if _, there := h.State.Endpoint(one.Key); there {
		t.Error("an endpoint that the runtime does not know stays")
	}
	if got, _ := h.State.Endpoint(two.Key); got.Stage != endpoint.Ready {
		t.Errorf("the endpoint that it knows is %q", got.Stage)
	}
}

func TestSTATUSIsTheBackends(t *testing.T) {
	h := newHarness(t)
	status := &cnirpc.Request{Command: "STATUS", Config: json.RawMessage(`{"cniVersion":"1.1.0"}`)}
	if _, failure := h.answered(t.Context(), status, nil); failure != nil {
		t.Errorf("%v although ADDs are served", failure)
	}
	h.Backend = ledger{refuse: errors.New("EC2 refuses")}
	if _, failure := h.answered(t.Context(), status, nil); failure == nil || failure.Code != cnirpc.CodeUnavailable || !strings.Contains(failure.Details, "EC2 refuses") {
		t.Errorf("%v", failure)
	}
}
