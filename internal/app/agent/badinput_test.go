package agent

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/link"
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
		"a version nobody knows":            {"ADD", pod, `{"cniVersion":"9.9.9","name":"n"}`, cnirpc.CodeIncompatible, `"9.9.9"`},
		"no version":                        {"ADD", pod, `{"name":"n","cniVersion":"x"}`, cnirpc.CodeIncompatible, `"x"`},
		"arguments that are none":           {"ADD", "K8S_POD_NAME", `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, `"K8S_POD_NAME" is not KEY=VALUE`},
		"a pod name that is a path":         {"ADD", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=../etc", `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, `K8S_POD_NAME "../etc"`},
		"a pod without a namespace":         {"ADD", "K8S_POD_NAME=web", `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, "K8S_POD_NAMESPACE"},
		"a command nobody knows":            {"FLY", pod, `{"cniVersion":"1.0.0"}`, cnirpc.CodeInvalidEnv, "FLY"},
		"GC without a list":                 {"GC", "", `{"cniVersion":"1.1.0"}`, cnirpc.CodeInvalidConfig, "cni.dev/valid-attachments is missing"},
		"GC with a list of strings":         {"GC", "", `{"cniVersion":"1.1.0","cni.dev/valid-attachments":["one"]}`, cnirpc.CodeInvalidConfig, "none is taken away"},
		"GC with an attachment half named":  {"GC", "", `{"cniVersion":"1.1.0","cni.dev/valid-attachments":[{"containerID":"one"}]}`, cnirpc.CodeInvalidConfig, "attachments[0] lacks"},
		"CHECK of nobody":                   {"CHECK", pod, `{"cniVersion":"1.0.0"}`, cnirpc.CodeUnknownContainer, "no such attachment"},
		"a list that is no list, at an ADD": {"ADD", "K8S_POD_NAME=a b", `{"cniVersion":"1.0.0","cni.dev/valid-attachments":5,"runtimeConfig":7}`, cnirpc.CodeInvalidEnv, "K8S_POD"},
	} {
		t.Run(name, func(t *testing.T) {
			a, told := looking(t)
			a.host = &link.Host{} // counts ADDs; whatever else it is asked for would panic
			assign(t, a.book, "one")
			req := &cnirpc.Request{Command: c.command, ContainerID: "c9", IfName: "eth0", Args: c.args, Config: json.RawMessage(c.config)}
			netns, err := os.Open("/proc/self/ns/net")
			if err != nil {
				t.Fatal(err)
			}
			defer netns.Close()
			result, failure := a.handle(t.Context(), req, netns)
			if failure == nil || failure.Code != c.code || !strings.Contains(failure.Error(), c.says) {
				t.Errorf("%s, %v; want code %d with %q", result, failure, c.code, c.says)
			}
			if left := a.book.attachments(); len(left) != 1 || left[0].Stage != wired {
				t.Errorf("attachments %+v: the pod that runs was touched", left)
			}
			if len(told.events) > 0 {
				t.Errorf("told %q, and nobody knows which pod", told.events)
			}
		})
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
func TestAGCOfAnotherNetworkTakesNoPodAway(t *testing.T) {
	a, _ := looking(t)
	a.host = &link.Host{} // would panic
	assign(t, a.book, "one")
	req := &cnirpc.Request{Command: "GC", Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"second","cni.dev/valid-attachments":[]}`)}
	if _, failure := a.handle(t.Context(), req, nil); failure != nil {
		t.Error(failure)
	}
	if left := a.book.attachments(); len(left) != 1 || left[0].Stage != wired {
		t.Errorf("attachments %+v", left)
	}
}
