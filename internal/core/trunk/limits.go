package trunk

import "strings"

// BranchLimit is how many branches an instance type can have, and where that is from. EC2's API
// does not show it. override is the operator's, by instance type or family; it has precedence
// over the pattern that most types follow. Source: the table pkg/aws/vpc/limits.go of AWS's VPC
// resource controller. A number that is too large is refused by EC2 once it is reached.
func BranchLimit(instanceType string, override map[string]int) (n int, from string) {
	family, size, _ := strings.Cut(instanceType, ".")
	if n, ok := override[instanceType]; ok {
		return n, "set for the type " + instanceType
	}
	if n, ok := override[family]; ok {
		return n, "set for the family " + family
	}
	if withoutTrunk()[family] {
		return 0, "instances of the family " + family + " have no trunk"
	}
	if strings.HasPrefix(size, "metal") {
		return 107, "the pattern of bare metal"
	}
	if n, ok := branchesBySize()[size]; ok {
		return n, "the pattern of the size " + size
	}
	return 0, "the size of the type " + instanceType + " is not known: set its number of branches"
}

// withoutTrunk are the families that have no trunk.
func withoutTrunk() map[string]bool {
	out := map[string]bool{}
	for family := range strings.FieldsSeq("t1 t2 t3 t3a t4g c1 c3 c4 cc2 m1 m2 m3 m4 r3 r4 i2 i3 i4i d2 h1 f1 g2 g3 g3s p2 p3 x1 x1e u-6tb1") {
		out[family] = true
	}
	return out
}

// branchesBySize are the least numbers of the types of a size.
func branchesBySize() map[string]int {
	return map[string]int{
		"medium": 4, "large": 9, "xlarge": 18, "2xlarge": 38, "4xlarge": 54, "8xlarge": 54, "9xlarge": 54, "12xlarge": 54,
		"16xlarge": 107, "18xlarge": 107, "24xlarge": 107, "32xlarge": 107, "48xlarge": 107,
	}
}
