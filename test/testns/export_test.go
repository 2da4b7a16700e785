package testns

// For the tests in package testns_test, which isolate, an importer of this package, runs.

// Owner identifies a process.
type Owner = owner

// NewOwner returns the owner of a PID that was started ticks after the calling process.
func NewOwner(me Owner, pid, ticks int) Owner {
	return owner{me.pidNS, uint64(pid), me.started + uint64(ticks)}
}

// Elsewhere is o in another PID namespace.
func Elsewhere(o Owner) Owner {
	o.pidNS++
	return o
}

// Self, OwnerOf and RemoveStale are the functions of these names.
var (
	Self        = self
	OwnerOf     = ownerOf
	RemoveStale = removeStale
)
