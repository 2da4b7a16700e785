package ipam

import (
	"errors"
	"fmt"
)

// ErrNoAddress is what every reason for an unserved ADD wraps.
var ErrNoAddress = errors.New("no address for the pod")

// Why there is no address. All wrap ErrNoAddress; all but ErrNodeFull pass by
// waiting.
var (
	// ErrPoolEmpty: none is free; more can be had.
	ErrPoolEmpty = fmt.Errorf("%w: the pool is empty", ErrNoAddress)
	// ErrAllCooling: none is free, and some are waiting out their cool-down.
	ErrAllCooling = fmt.Errorf("%w: every unused address is cooling down", ErrNoAddress)
	// ErrNodeFull: every address the instance type allows is in use.
	ErrNodeFull = fmt.Errorf("%w: the node has no room for more", ErrNoAddress)
	// ErrSubnetExhausted: no subnet that can be used has a free address.
	ErrSubnetExhausted = fmt.Errorf("%w: the subnets are exhausted", ErrNoAddress)
	// ErrFrozen: a brake forbids asking EC2 for more.
	ErrFrozen = fmt.Errorf("%w: EC2 calls are frozen", ErrNoAddress)
	// ErrRefused: EC2 refuses to give more (permissions, limits of the account).
	ErrRefused = fmt.Errorf("%w: EC2 refuses", ErrNoAddress)
)

// What callers branch on when a request cannot be met as it is.
var (
	// ErrUnsupported: a mode, family or feature that has types but no behaviour yet.
	ErrUnsupported = errors.New("not supported in this version")
	// ErrStale: an action no longer fits the ledger; plan again.
	ErrStale = errors.New("the ledger has moved on")
	// ErrUnknown: no such address, interface or action in the ledger.
	ErrUnknown = errors.New("not in the ledger")
	// ErrHeld: the address belongs to another owner.
	ErrHeld = errors.New("held by another pod")
)
