package cloud

// Brake limits what may be asked of EC2.
type Brake string

// Brakes. An operator sets the freezes; the executor's breaker sets AllocateOnly
// when EC2 keeps failing.
const (
	BrakeOff      Brake = ""
	FreezeRelease Brake = "freeze release" // nothing is given back
	FreezeAll     Brake = "freeze all"     // nothing is changed
	AllocateOnly  Brake = "allocate only"  // as FreezeRelease
	// Unobserved is in force until an agent that serves from its journal has observed EC2;
	// as FreezeAll.
	Unobserved Brake = "EC2 not observed yet"
)

// AllowsAllocate reports whether EC2 may be asked for more.
func (b Brake) AllowsAllocate() bool { return b != FreezeAll && b != Unobserved }

// AllowsRelease reports whether EC2 may be asked to take something back.
func (b Brake) AllowsRelease() bool { return b == BrakeOff }

// Allows reports whether an action of kind k may be carried out.
func (b Brake) Allows(k Kind) bool {
	if k.Frees() {
		return b.AllowsRelease()
	}
	return b.AllowsAllocate()
}
