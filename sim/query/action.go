package query

import (
	"context"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
)

// Call is the call that a handler answers.
type Call struct {
	Context   context.Context
	Action    string
	RequestID string
	Principal iam.Principal
	// State is the account that this call may see: for read-only actions possibly an
	// older one, by an injected lag.
	State *cloud.State

	refusals refusals
}

// Action is one row of a service's table. Make it with Handle.
type Action struct {
	Name string
	Page string // of AWS's API reference
	// ReadOnly actions get a State that may lag.
	ReadOnly bool
	// Anonymous actions need no signature.
	Anonymous bool
	// Request and Response are zero values of the messages, for tests that walk
	// the table.
	Request, Response any

	newRequest func() any
	permit     func(*Call, any) ([]iam.Request, error)
	do         func(*Call, any) (any, error)
}

// Spec is the definition of an Action.
type Spec[Req, Resp any] struct {
	Name      string
	Page      string
	ReadOnly  bool
	Anonymous bool
	// Permit lists the IAM requests that must be allowed; nil is none. Its error,
	// such as NotFound for a resource, is the response to a caller that is allowed
	// all of them.
	Permit func(*Call, *Req) ([]iam.Request, error)
	Do     func(*Call, *Req) (*Resp, error)
}

// Handle converts a typed Spec into an Action.
func Handle[Req, Resp any](s Spec[Req, Resp]) Action {
	a := Action{
		Name: s.Name, Page: s.Page, ReadOnly: s.ReadOnly, Anonymous: s.Anonymous,
		Request: *new(Req), Response: *new(Resp),
		newRequest: func() any { return new(Req) },
		do:         func(c *Call, req any) (any, error) { return s.Do(c, req.(*Req)) },
	}
	if s.Permit != nil {
		a.permit = func(c *Call, req any) ([]iam.Request, error) { return s.Permit(c, req.(*Req)) }
	}
	return a
}

// DryRun is embedded by requests with the parameter DryRun.
type DryRun struct {
	DryRun bool `q:"DryRun"`
}

func (d DryRun) dryRun() bool { return d.DryRun }
