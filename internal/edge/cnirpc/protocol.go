// Package cnirpc is the wire between the CNI plugin and the agent: one request
// and one answer, each a line of JSON, on a unix stream socket. The pod's network
// namespace travels beside the request as an open file descriptor; the agent
// never opens a path that a client names.
//
// The plugin's end is here, the agent's in cniserver. This one imports little and no
// net, for it is linked into a program that starts once per pod.
//
// Skew: a request carries the protocol version its sender speaks and the oldest
// it accepts. Unknown fields are ignored, fields are only ever added, so an old
// plugin works with a new agent and the reverse.
package cnirpc

import "encoding/json"

// Version is the protocol spoken by this build; MinVersion the oldest it
// understands.
const (
	Version    = 1
	MinVersion = 1
)

// MaxMessage bounds a request or an answer, in bytes. CNI configurations and
// GC's list of attachments are the large ones: 1,000 pods are about 120 KiB.
const MaxMessage = 1 << 20

// Request is what the plugin sends: the CNI call as the runtime made it.
type Request struct {
	Version     int             `json:"version"`
	MinVersion  int             `json:"minVersion"`
	Plugin      string          `json:"plugin"`  // build version of the plugin, for logs
	Command     string          `json:"command"` // ADD DEL CHECK STATUS GC
	ContainerID string          `json:"containerID,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Netns       string          `json:"netns,omitempty"` // path, informative; the descriptor counts
	Args        string          `json:"args,omitempty"`  // CNI_ARGS
	Config      json.RawMessage `json:"config"`          // stdin
	// WaitMillis is how long the plugin is ready to wait for an answer.
	WaitMillis int64 `json:"waitMillis,omitempty"`
	// SpooledAt is set on a DEL that was written to the spool while no agent
	// answered: Unix milliseconds.
	SpooledAt int64 `json:"spooledAt,omitempty"`
}

// Response is the agent's answer. Exactly one of Result and Error is set, except
// for commands that answer nothing on success.
type Response struct {
	Version int             `json:"version"`
	Agent   string          `json:"agent"`            // build version of the agent
	Result  json.RawMessage `json:"result,omitempty"` // CNI result at the configuration's cniVersion
	Error   *Error          `json:"error,omitempty"`
}

// Error is a CNI error: code, message and details as the specification has them.
type Error struct {
	Code    uint   `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// Error codes of the CNI specification, and those of ours from 100 on.
const (
	CodeIncompatible     = 1
	CodeUnknownContainer = 3
	CodeInvalidEnv       = 4
	CodeIO               = 5
	CodeDecode           = 6
	CodeInvalidConfig    = 7
	CodeInvalidNetns     = 8
	CodeTryAgain         = 11
	CodeUnavailable      = 50 // STATUS: no ADD can be served
	CodeLimited          = 51 // STATUS: none, and pods here have limited connectivity
	CodeInternal         = 100
	CodeRefused          = 101 // a room refused the pod; the details say why
	CodeDrift            = 102 // CHECK: something is not as ADD left it
)
