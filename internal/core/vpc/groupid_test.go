package vpc_test

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestTheFormOfASecurityGroupsID(t *testing.T) {
	for id, want := range map[vpc.SecurityGroupID]bool{
		"sg-0123456789abcdef0": true, "sg-0123abcd": true, "": false, "sg-": false, "sg-0123456789abcdef": false, "sg-0123456789ABCDEF0": false,
		"sg-0123456789abcdef01": false, " sg-0123abcd": false, "sg-0123abcd\n": false, "eni-0123abcd": false,
	} {
		if id.Valid() != want {
			t.Errorf("%q is valid: %v, want %v", id, id.Valid(), want)
		}
	}
}
