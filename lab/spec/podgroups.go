package spec

// Values of securityGroupsForPods.
const (
	PodGroupsOwn     = "own"
	PodGroupsManaged = "managed"
	PodGroupsEBPF    = "ebpf"
	PodGroupsAuto    = "auto" // each node by its instance type, and by what the account may do
)

// Names of the default security groups that the demo and the connectivity test give to pods: the
// database accepts connections on 8080 from clients, and from no other pod or node.
const (
	GroupNodes    = "nodes"
	GroupClients  = "clients"
	GroupDatabase = "database"
)

// HasTrunks reports whether nodes of a lab with a value of securityGroupsForPods may have trunks.
func HasTrunks(mode string) bool {
	return mode == PodGroupsOwn || mode == PodGroupsManaged || mode == PodGroupsAuto
}

// podGroups is how pods get security groups of their own; empty: no pod does.
func podGroups(p *problems, s Spec) string {
	const field = "securityGroupsForPods"
	mode := s.SecurityGroupsForPods
	switch {
	case mode == "":
	case mode != PodGroupsOwn && mode != PodGroupsManaged && mode != PodGroupsEBPF && mode != PodGroupsAuto:
		p.add(field, mode, "must be %s, %s, %s or %s, or absent", PodGroupsOwn, PodGroupsManaged, PodGroupsEBPF, PodGroupsAuto)
	case s.Cloud == CloudNone:
		p.add(field, mode, "only a lab with a cloud has security groups (cloud: %s)", CloudAWS)
	case mode == PodGroupsOwn && !s.Quotas.TrunkCalls:
		p.add(field, mode, "needs quotas.trunkCalls: true, because EC2 refuses AssociateTrunkInterface to other accounts")
	default:
		return mode
	}
	return ""
}
