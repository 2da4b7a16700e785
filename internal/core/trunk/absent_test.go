package trunk_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/trunkline/trunkline/internal/core/trunk"
)

func TestABranchThatDoesNotExistIsNotDeleted(t *testing.T) {
	for _, a := range []trunk.Action{
		{ID: "x", Kind: trunk.DeleteBranch, Instance: instance, Branch: "z"},
		{ID: "x", Kind: trunk.DeleteBranch, Instance: instance, ENI: "eni-z"},
		{ID: "x", Kind: trunk.Adopt, Instance: instance, Branch: "z", Pod: "pod-1"},
		{ID: "x", Kind: trunk.Adopt, Instance: instance, ENI: "eni-z", Pod: "pod-1"},
	} {
		s := with(func(*trunk.Branch) {})
		if next, err := trunk.Begin(s, a, trunk.DefaultConfig(), epoch); !errors.Is(err, trunk.ErrStale) || !reflect.DeepEqual(next, s) {
			t.Errorf("%s: %v", a, err)
		}
	}
}
