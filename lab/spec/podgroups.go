package spec

// PodGroupsOwn is the value of securityGroupsForPods.
const PodGroupsOwn = "own"

// Names of the default security groups that the demo and the connectivity test give to pods: the
// database accepts connections on 8080 from clients, and from no other pod or node.
const (
	GroupNodes    = "nodes"
	GroupClients  = "clients"
	GroupDatabase = "database"
)

// podGroups reports whether Trunkline's controller gives pods security groups of their own.
func podGroups(p *problems, s Spec) bool {
	const field = "securityGroupsForPods"
	switch {
	case s.SecurityGroupsForPods == "":
		return false
	case s.SecurityGroupsForPods != PodGroupsOwn:
		p.add(field, s.SecurityGroupsForPods, "must be %s, or absent", PodGroupsOwn)
	case s.Cloud == CloudNone:
		p.add(field, s.SecurityGroupsForPods, "only a lab with a cloud has branch interfaces (cloud: %s)", CloudAWS)
	case !s.Quotas.TrunkCalls:
		p.add(field, s.SecurityGroupsForPods, "needs quotas.trunkCalls: true, because EC2 refuses AssociateTrunkInterface to other accounts")
	default:
		return true
	}
	return false
}
