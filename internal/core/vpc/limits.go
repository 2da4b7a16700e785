package vpc

// Limits are the maximum number of interfaces of an instance type and of addresses
// on each of them, per family. Source: EC2 user guide, "Maximum IP addresses
// per network interface"; at run time DescribeInstanceTypes is authoritative.
type Limits struct {
	ENIs      int // interfaces of the default network card, the primary included
	Cards     int // network cards, each with as many interfaces; 0 is one
	IPv4      int // IPv4 slots per interface, the primary address included
	IPv6      int // IPv6 slots per interface
	Branches  int // branch interfaces; 0 where the type cannot trunk
	EFAs      int // Elastic Fabric Adapters, on all cards together; 0 where the type has none
	Nitro     bool
	BareMetal bool
}

// MaxPods returns the pod limit that EKS sets on such a node: every address slot
// except the primary one of each interface, plus two pods on the host network.
func (l Limits) MaxPods() int { return l.ENIs*(l.IPv4-1) + 2 }

// WithTrunk returns the limits for the other pods of an instance that has a trunk, if its type can
// have one: the trunk takes an interface.
func (l Limits) WithTrunk() Limits {
	if l.Branches > 0 {
		l.ENIs--
	}
	return l
}
