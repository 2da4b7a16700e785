package ec2

import (
	"errors"
	"time"
)

// vanished reports whether a refusal by policy may mean that the interface is gone:
// our grants hang on its tag, and one that is not there has none.
// Source: github.com/aws/karpenter-provider-aws/issues/2100.
func (c *carry) vanished(err error) bool {
	switch c.in.Kind {
	case Attach, Detach, Delete:
		return Code(err) == "UnauthorizedOperation"
	case Create, Assign, Restore, Unassign:
	}
	return false
}

// settled is the end that a look has found. A refusal that it disproves is none.
func (c *carry) settled(err error) error {
	if c.denied != nil && !errors.Is(err, c.denied) {
		c.x.refused.note(c.denied.Action, nil, time.Now())
	}
	return err
}
