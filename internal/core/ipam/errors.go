package ipam

import (
	"errors"
	"fmt"
)

// ErrNoAddress is wrapped by every reason why an ADD gets no address.
var ErrNoAddress = errors.New("no address for the pod")

// Reasons why there is no address. All wrap ErrNoAddress; all but ErrNodeFull may end
// while the pods of the node stay the same.
var (
	// ErrPoolEmpty: no address is free; EC2 can assign more.
	ErrPoolEmpty = fmt.Errorf("%w: the pool is empty", ErrNoAddress)
	// ErrAllCooling: no address is free, and some cool down.
	ErrAllCooling = fmt.Errorf("%w: every unused address is cooling down", ErrNoAddress)
	// ErrNodeFull: every address the instance type allows is in use.
	ErrNodeFull = fmt.Errorf("%w: the node holds no more addresses", ErrNoAddress)
	// ErrSubnetExhausted: no subnet that can be used has a free address.
	ErrSubnetExhausted = fmt.Errorf("%w: the subnets are exhausted", ErrNoAddress)
	// ErrFrozen: a brake forbids requesting more from EC2.
	ErrFrozen = fmt.Errorf("%w: EC2 calls are frozen", ErrNoAddress)
	// ErrRefused: EC2 refuses more (permissions, limits of the account).
	ErrRefused = fmt.Errorf("%w: EC2 refuses", ErrNoAddress)
)

// Errors that callers branch on.
var (
	// ErrUnsupported: a mode, family or feature without an implementation.
	ErrUnsupported = errors.New("not supported in this version")
	// ErrStale: the ledger has changed since the action was planned; plan again.
	ErrStale = errors.New("the ledger has changed since the plan")
	// ErrUnknown: no such address, interface or action in the ledger.
	ErrUnknown = errors.New("not in the ledger")
	// ErrHeld: the address is assigned to another holder.
	ErrHeld = errors.New("held by another pod")
)
