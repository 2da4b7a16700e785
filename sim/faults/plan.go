// Package faults injects faults into the embedded VPC: latency, throttling, stale
// responses, lost replies, hanging connections, slow attaches, capacity errors, dead
// links, and stops that hold a chosen call.
//
// A new Injector injects nothing. Random choices are drawn from a seed; plans are set
// at start or live through Handler. sim/query calls it around every API call,
// sim/world for attachments, links and stale metadata. It contains no EC2 rule.
package faults

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
)

// Plan lists the faults to inject; the zero value is none. Actions are API action
// names, such as "CreateNetworkInterface"; "*" stands for every action without an
// entry of its own. It is the JSON of GET and PUT /admin/faults; durations are
// strings such as "250ms".
type Plan struct {
	// Latency delays an action's effect.
	Latency map[string]Latency `json:"latency,omitempty"`
	// Throttle refuses calls of an action with RequestLimitExceeded by a token
	// bucket.
	Throttle map[string]Bucket `json:"throttle,omitempty"`
	// DescribeLag is the age of the state that describes return.
	DescribeLag Duration `json:"describeLag,omitempty"`
	// MetadataLag is the age of the state that instance metadata returns.
	MetadataLag Duration `json:"metadataLag,omitempty"`
	// Metadata is a fault of instance metadata; nil is none.
	Metadata *Metadata `json:"metadata,omitempty"`
	// AttachTime is how long after the call an attachment stays "attaching" and its
	// link out of the guest.
	AttachTime Duration `json:"attachTime,omitempty"`
	// Calls are faults of single calls.
	Calls []Call `json:"calls,omitempty"`
	// LinkDown lists interfaces (eni-…) that have no carrier.
	LinkDown []string `json:"linkDown,omitempty"`
}

// Latency is a fixed delay and a random one on top, uniform in [0, Jitter).
type Latency struct {
	Fixed  Duration `json:"fixed"`
	Jitter Duration `json:"jitter,omitempty"`
}

// Metadata is a fault of every request for instance metadata, or of some documents.
type Metadata struct {
	// Latency delays each response.
	Latency Latency `json:"latency,omitzero"`
	// Do is Hang, Disconnect or Fail; empty is none of them.
	Do string `json:"do,omitempty"`
	// Status is that of Fail; zero is 503, with which the service asks for a retry. Source:
	// EC2 user guide, "Access instance metadata", HTTP codes.
	Status int `json:"status,omitempty"`
	// Path limits the fault to documents that begin with it, such as
	// "meta-data/iam/": the credentials. Empty is all, the session token included.
	Path string `json:"path,omitempty"`
}

// Bucket is EC2's token bucket: Size tokens at most, Rate tokens per second, one
// per call. Source: EC2 API reference, "Request throttling".
type Bucket struct {
	Size float64 `json:"size"`
	Rate float64 `json:"rate"`
}

// Faults of a single call.
const (
	// LoseReply closes the connection after the effect, without a response.
	LoseReply = "lose-reply"
	// Hang never responds and has no effect; the client must time out.
	Hang = "hang"
	// HangAfter takes effect and never responds.
	HangAfter = "hang-after"
	// Disconnect closes the connection without a response and has no effect.
	Disconnect = "disconnect"
	// Fail responds with Code and has no effect.
	Fail = "fail"
	// StopBefore and StopAfter hold the call before or after its effect until it is
	// released at /admin/stops.
	StopBefore = "stop-before"
	StopAfter  = "stop-after"
)

// Call selects calls of an action and the fault for them.
type Call struct {
	Action string `json:"action"`
	Do     string `json:"do"`
	// Nth is the first call it applies to, counted from 1 since the plan was set.
	// Zero is 1.
	Nth int `json:"nth,omitempty"`
	// Count is how many calls it applies to. Zero is 1, -1 is all further calls.
	Count int `json:"count,omitempty"`
	// Probability is the share of the selected calls it applies to; zero is all.
	Probability float64 `json:"probability,omitempty"`
	// Code, Message and Status are the error of Fail. An empty message is EC2's
	// own for the codes that have one; status zero is 400, or 503 for
	// RequestLimitExceeded and Unavailable, 500 for InternalError.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Status  int    `json:"status,omitempty"`
}

// Duration is a time.Duration that JSON writes as a string, such as "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return err
	}
	if v < 0 {
		return fmt.Errorf("duration %s: negative", v)
	}
	*d = Duration(v)
	return nil
}

// Check refuses an invalid plan.
func (p Plan) Check() error {
	for _, lag := range []Duration{p.DescribeLag, p.MetadataLag, p.AttachTime} {
		if lag < 0 {
			return fmt.Errorf("duration %s: negative", time.Duration(lag))
		}
	}
	for action, l := range p.Latency {
		if err := l.check(); err != nil {
			return fmt.Errorf("latency %s: %w", action, err)
		}
	}
	if err := p.Metadata.check(); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	for action, b := range p.Throttle {
		if b.Size < 1 || b.Rate < 0 {
			return fmt.Errorf("throttle %s: size %v, rate %v: want a size of at least 1 and no negative rate", action, b.Size, b.Rate)
		}
	}
	for n, c := range p.Calls {
		if err := c.check(); err != nil {
			return fmt.Errorf("calls[%d]: %w", n, err)
		}
	}
	for n, id := range p.LinkDown {
		if err := cloud.KindInterface.CheckID(id); err != nil {
			return fmt.Errorf("linkDown[%d]: %q: want the id of an interface (eni-…)", n, id)
		}
	}
	return nil
}

func (l Latency) check() error {
	if l.Fixed < 0 || l.Jitter < 0 {
		return fmt.Errorf("fixed %s, jitter %s: negative", time.Duration(l.Fixed), time.Duration(l.Jitter))
	}
	return nil
}

func (m *Metadata) check() error {
	switch {
	case m == nil:
		return nil
	case m.Do != "" && m.Do != Hang && m.Do != Disconnect && m.Do != Fail:
		return fmt.Errorf("do %q: want %s, %s or %s", m.Do, Hang, Disconnect, Fail)
	case m.Do != Fail && m.Status != 0:
		return fmt.Errorf("status is for %q alone", Fail)
	case m.Status != 0 && (m.Status < 400 || m.Status > 599):
		return fmt.Errorf("status %d: want 400 to 599", m.Status)
	}
	return m.Latency.check()
}

// actions returns the actions that a plan names.
func (p Plan) actions() []string {
	out := slices.Concat(slices.Collect(maps.Keys(p.Latency)), slices.Collect(maps.Keys(p.Throttle)))
	for _, c := range p.Calls {
		out = append(out, c.Action)
	}
	slices.Sort(out)
	return out
}

func (c Call) check() error {
	switch c.Do {
	case LoseReply, Hang, HangAfter, Disconnect, StopBefore, StopAfter:
	case Fail:
		if c.Code == "" {
			return fmt.Errorf("do %q: code is missing", c.Do)
		}
	default:
		return fmt.Errorf("do %q: want %s, %s, %s, %s, %s, %s or %s", c.Do,
			LoseReply, Hang, HangAfter, Disconnect, Fail, StopBefore, StopAfter)
	}
	if c.Action == "" {
		return fmt.Errorf("do %q: action is missing (\"*\" is every one)", c.Do)
	}
	if err := c.checkError(); err != nil {
		return fmt.Errorf("do %q: %w", c.Do, err)
	}
	if c.Nth < 0 || c.Count < -1 || c.Probability < 0 || c.Probability > 1 {
		return fmt.Errorf("%s of %s: nth %d, count %d, probability %v: out of range",
			c.Do, c.Action, c.Nth, c.Count, c.Probability)
	}
	return nil
}

// checkError checks the error of a Fail; other faults must have none.
func (c Call) checkError() error {
	switch {
	case c.Do != Fail && (c.Code != "" || c.Message != "" || c.Status != 0):
		return fmt.Errorf("code, message and status are for %q alone", Fail)
	case c.Status != 0 && (c.Status < 400 || c.Status > 599):
		return fmt.Errorf("status %d: want 400 to 599", c.Status)
	}
	return nil
}
