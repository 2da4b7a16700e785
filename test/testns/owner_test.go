package testns_test

import (
	"os"
	"testing"

	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/test/testns"
)

func TestTheNameOfATestsLabIsValidAndNamesItsProcess(t *testing.T) {
	me, err := testns.Self()
	if err != nil {
		t.Fatal(err)
	}
	// The largest PID, a machine that runs for two years.
	late := testns.NewOwner(me, 1<<22, 100*60*60*24*365*2)
	for _, o := range []testns.Owner{me, late, testns.Elsewhere(late)} {
		if err := spec.CheckName(o.String()); err != nil {
			t.Error(err)
		}
		if got, ok := testns.OwnerOf("tl-" + o.String() + "-node1"); !ok || got != o {
			t.Errorf("%s is parsed as %+v (%t), want %+v", o, got, ok, o)
		}
	}
	if testns.Lab() != me.String() || testns.NewOwner(me, os.Getpid(), 0) != me {
		t.Errorf("this process is %s, its lab %s", me, testns.Lab())
	}
}
