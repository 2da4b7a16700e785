// Package cnirpc is the wire protocol between the CNI plugin and the agent: one request
// and one answer, each a line of JSON, on a unix stream socket. The pod's network
// namespace is sent with the request as an open file descriptor; the agent never opens a
// path that a client names.
//
// This package is the plugin's end and touches the socket and the spool directory;
// cniserver is the agent's end. It is linked into a program that starts for every ADD and
// DEL, so it imports a part of the standard library only, and not net.
//
// Version skew: a request carries the protocol version of its sender and the oldest
// version the sender accepts. Unknown fields are ignored and fields are never removed, so
// an old plugin works with a new agent and a new plugin with an old agent.
package cnirpc

import "encoding/json"

// Version is the protocol version of this build; MinVersion is the oldest it accepts.
const (
	Version    = 1
	MinVersion = 1
)

// MaxMessage bounds a request or an answer, in bytes. The largest requests are those with
// GC's list of attachments: about 120 KiB for 1,000 pods.
const MaxMessage = 1 << 20

// Request is the CNI call as the container runtime made it.
type Request struct {
	Version     int             `json:"version"`
	MinVersion  int             `json:"minVersion"`
	Plugin      string          `json:"plugin"`  // build version of the plugin, for logs
	Command     string          `json:"command"` // ADD DEL CHECK STATUS GC
	ContainerID string          `json:"containerID,omitempty"`
	IfName      string          `json:"ifName,omitempty"`
	Netns       string          `json:"netns,omitempty"` // path, for logs; the agent uses the descriptor
	Args        string          `json:"args,omitempty"`  // CNI_ARGS
	Config      json.RawMessage `json:"config"`          // stdin
	// WaitMillis is how long the plugin waits for the answer; 0 when unknown.
	WaitMillis int64 `json:"waitMillis,omitempty"`
	// SpooledAt is set on a DEL from the spool: when it was written, in Unix
	// milliseconds, for an operator who reads the file. The clock may step back, so no
	// order follows from it (see control/cni, spool.go).
	SpooledAt int64 `json:"spooledAt,omitempty"`
}

// Response is the agent's answer. Exactly one of Result and Error is set, or none when a
// command without a result succeeded.
type Response struct {
	Version int             `json:"version"`
	Agent   string          `json:"agent"`            // build version of the agent
	Result  json.RawMessage `json:"result,omitempty"` // CNI result at the configuration's cniVersion
	Error   *Error          `json:"error,omitempty"`
}

// Error is an error of the CNI specification: code, message and details.
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

// Error codes: those of the CNI specification, and our own from 100 on.
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
	CodeLimited          = 51 // STATUS: no ADD can be served, and existing pods have limited connectivity
	CodeInternal         = 100
	CodeRefused          = 101 // a component refused the pod; the details give the reason
	CodeDrift            = 102 // CHECK: the pod's network differs from the result of the ADD
)
