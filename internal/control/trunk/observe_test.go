package trunk_test

import (
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

const listings = "DescribeTrunkInterfaceAssociations"

// A listing of the associations of all trunks takes minutes in a large account.
func TestAListingOfAssociationsKeepsNoPodWaiting(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.elapse(29 * time.Minute)
		before := w.wire.count(listings)
		end := w.wire.hold(listings)
		defer end()
		w.elapse(2 * time.Minute)
		if w.wire.count(listings) == before {
			t.Fatal("no listing began")
		}
		w.start("two", "web")
		w.elapse(20 * time.Second)
		w.carries("two", "web")
		if err := w.cloud.Interface(w.branch("one").ENI).SetGroups([]vpc.SecurityGroupID{vpc.SecurityGroupID(w.groups["db"])}); err != nil {
			t.Fatal(err)
		}
		end()
		w.elapse(time.Minute) // the observation was only delayed: it finds what another program changed
		w.carries("one", "web")
	})
}

func TestNodesShareAListingOfAssociations(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.node("n2", "node2")
		w.policy("web", "web", "web")
		w.start("one", "web")
		w.Put(podsAt, podOn("n2", "two", "web", "uid-two"))
		w.elapse(29 * time.Minute)
		lists, describes := w.wire.count(listings), w.wire.count("DescribeNetworkInterfaces")
		w.elapse(5 * time.Minute)
		if n, reads := w.wire.count(listings)-lists, w.wire.count("DescribeNetworkInterfaces")-describes; n != 1 || reads != 2 {
			t.Errorf("%d listings of associations and %d describes of interfaces for two nodes, want 1 and 2", n, reads)
		}
		w.carries("one", "web")
		w.carries("two", "web")
	}, func(s *cloud.Spec) {
		second := s.Instances[0]
		second.Name = "node2"
		s.Instances = append(s.Instances, second)
	})
}

// Another program removes the tags by which the trunk and the branches are found. They exist: no second trunk is
// made, and no branch is given up, of which the VLAN would be free before its association ends.
func TestInterfacesWithoutTheirTagsAreNotTakenForGone(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.policy("web", "web", "web")
		keepWarm(w, 2, 0, "")
		w.start("one", "web")
		w.elapse(2 * time.Minute)
		var ids []string
		for id, i := range w.cloud.State().Interfaces {
			if i.Description == vpc.DescriptionBranch || i.Type == vpc.TypeTrunk {
				ids = append(ids, string(id))
			}
		}
		before := w.wire.count("DescribeNetworkInterfaces")
		if err := w.cloud.Untag(ids, map[string]*string{vpc.TagOwner: nil}); err != nil {
			t.Fatal(err)
		}
		made, deleted, record := w.wire.count("CreateNetworkInterface"), w.wire.count("DeleteNetworkInterface"), w.ledger()
		w.elapse(2 * time.Hour)
		if n, ends := w.wire.count("CreateNetworkInterface")-made, w.wire.count("DeleteNetworkInterface")-deleted; n+ends > 0 || len(ids) != 4 {
			t.Errorf("%d of %d interfaces made again, %d deletions\n%s\nbefore\n%s", n, len(ids), ends, w.ledger(), record)
		}
		if n := w.wire.count("DescribeNetworkInterfaces") - before; n > 8 {
			t.Errorf("%d describes in 2 hours", n)
		}
		w.carries("one", "web")
	})
}
