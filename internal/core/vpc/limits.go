package vpc

// Limits is how many interfaces an instance type takes and how many addresses
// each of them holds, per family. Source: EC2 user guide, "Maximum IP addresses
// per network interface"; DescribeInstanceTypes is the authority at run time.
type Limits struct {
	ENIs      int // interfaces, the primary included
	IPv4      int // IPv4 slots per interface, the primary address included
	IPv6      int // IPv6 slots per interface
	Branches  int // branch interfaces; 0 where the type cannot trunk
	Nitro     bool
	BareMetal bool
}

// MaxPods is the number of pods EKS lets such a node run: every slot but the
// primary of each interface, plus two pods on the host network.
func (l Limits) MaxPods() int { return l.ENIs*(l.IPv4-1) + 2 }
