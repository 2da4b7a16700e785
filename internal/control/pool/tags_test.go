package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
)

func TestACreatedInterfaceHasTheOperatorsTagsBesideOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		n.scale(20) // more than the primary interface has addresses for
		time.Sleep(grown)
		var made []*simcloud.Interface
		for _, i := range n.account.State().Interfaces {
			if i.Tags[vpc.TagManagedBy] == vpc.ManagedBy {
				made = append(made, i)
			}
		}
		if len(made) == 0 {
			t.Fatal("no interface was created")
		}
		for _, i := range made {
			if i.Tags["team"] != "a" || i.Tags[vpc.TagInstanceID] != string(n.self) || len(i.Tags) != vpc.OwnTags+1 {
				t.Errorf("%s has the tags %v", i.ID, i.Tags)
			}
		}
	})
}
