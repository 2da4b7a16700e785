package ipam

import (
	"errors"
	"fmt"
)

// ErrNoAddress is wrapped by every reason for an ADD without an address.
var ErrNoAddress = errors.New("no address for the pod")

// Reasons for no address. All wrap ErrNoAddress; all but ErrNodeFull may end without a
// change to the node.
var (
	// ErrPoolEmpty: none is free; more can be assigned.
	ErrPoolEmpty = fmt.Errorf("%w: the pool is empty", ErrNoAddress)
	// ErrAllCooling: none is free, and some cool down.
	ErrAllCooling = fmt.Errorf("%w: every unused address is cooling down", ErrNoAddress)
	// ErrNodeFull: every address the instance type allows is in use.
	ErrNodeFull = fmt.Errorf("%w: the node holds no more addresses", ErrNoAddress)
	// ErrSubnetExhausted: no subnet that can be used has a free address.
	ErrSubnetExhausted = fmt.Errorf("%w: the subnets are exhausted", ErrNoAddress)
	// ErrFrozen: a brake forbids asking EC2 for more.
	ErrFrozen = fmt.Errorf("%w: EC2 calls are frozen", ErrNoAddress)
	// ErrRefused: EC2 refuses more (permissions, limits of the account).
	ErrRefused = fmt.Errorf("%w: EC2 refuses", ErrNoAddress)
)

// What callers branch on when a request cannot be met as it is.
var (
	// ErrUnsupported: a mode, family or feature without an implementation.
	ErrUnsupported = errors.New("not supported in this version")
	// ErrStale: the ledger has changed since the action was planned; plan again.
	ErrStale = errors.New("the ledger has changed since the plan")
	// ErrUnknown: no such address, interface or action in the ledger.
	ErrUnknown = errors.New("not in the ledger")
	// ErrHeld: the address belongs to another owner.
	ErrHeld = errors.New("held by another pod")
)
