package pool

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	simcloud "github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
)

// grown has the node reach what its pods need, and settled has metadata show it too.
const (
	grown   = time.Minute
	settled = 5 * time.Minute
)

// The figure ec2.idle_reads_per_hour of package bench is the log line of this test.
func TestAnIdleNodeReadsEC2SixTimesAnHourAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		n.scale(5)
		time.Sleep(grown)
		n.add()
		time.Sleep(settled)
		const hours = 24
		before, puts, gets := len(n.made(0)), n.imds.requests("PUT"), n.imds.requests("GET")
		time.Sleep(hours * time.Hour)
		made := n.made(before)
		t.Logf("ec2.idle_reads_per_hour %.3f", float64(reads(made))/hours)
		if reads(made) > 6*hours || reads(made) != len(made) {
			t.Errorf("an idle day: %d reads, %d calls", reads(made), len(made))
		}
		if reads(made) < 3*hours {
			t.Errorf("%d reads a day: interfaces, strays and subnets are not read any more", reads(made))
		}
		interfaces := len(n.view().ENIs)
		passes := hours * int(time.Hour/metadataEvery)
		tokens := n.imds.requests("PUT") - puts
		if tokens > 13*hours { // the SDK's last five minutes
			t.Errorf("%d session tokens in a day: they are not used again", tokens)
		}
		// A request with a token that has expired is repeated.
		if got, most := n.imds.requests("GET")-gets, passes*(2+5*interfaces)+tokens; got > most || got < most/2 {
			t.Errorf("%d requests to metadata for %d interfaces, want %d at most", got, interfaces, most)
		}
	})
}

func TestFortyPodsComeAndGoInEighteenCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		time.Sleep(settled)
		before := len(n.made(0))
		n.scale(40)
		time.Sleep(time.Minute)
		n.add()
		time.Sleep(settled)
		n.scale(0)
		began := time.Now()
		for len(n.view().ENIs) > 1 && time.Since(began) < time.Hour {
			time.Sleep(time.Second)
		}
		settledAfter := time.Since(began)
		if settledAfter > 245*time.Second { // the idle time with its jitter, the detachment
			t.Errorf("settled %s after the last pod", settledAfter)
		}
		time.Sleep(settled)
		made := n.made(before)
		t.Logf("%d calls, settled %s after the last pod", len(made), settledAfter)
		if len(made) > 18 {
			t.Errorf("%d calls: %s", len(made), strings.Join(made, ", "))
		}
		for _, c := range n.calls.Since(before, "") {
			if c.Code != "" {
				t.Errorf("EC2 refused %s: %s", c.Action, c.Code)
			}
		}
		for id, i := range n.account.State().Interfaces {
			if i.Attachment == nil {
				t.Errorf("%s leaked", id)
			}
		}
	})
}

// Pods that come back within the idle time cost no change, however the node's jitter is.
func TestPodsThatComeBackWithinTheIdleTimeCostNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		before := 0
		for cycle := range 4 {
			n.scale(40)
			time.Sleep(grown)
			n.add()
			if cycle == 0 { // the interfaces and addresses of the first cycle serve the others
				time.Sleep(settled)
				before = len(n.made(0))
			}
			time.Sleep(time.Minute)
			n.scale(0)
			time.Sleep(ipam.DefaultConfig().IdleAfter - time.Second)
		}
		if made := n.made(before); len(made) > reads(made) {
			t.Errorf("calls %v", made)
		}
	})
}

func TestAnInterfaceThatDetachesSlowlyIsDeletedInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNodeOn(t, 45*time.Second)
		n.scale(20)
		time.Sleep(grown)
		n.add()
		n.scale(0)
		time.Sleep(10 * time.Minute)
		refused := 0
		for _, c := range n.calls.Since(0, "") {
			if c.Action == "DeleteNetworkInterface" && c.Code != "" {
				refused++
			}
		}
		if got := len(n.account.State().Interfaces); got != 1 || refused == 0 || refused > 4 {
			t.Errorf("%d interfaces; EC2 refused to delete %d times", got, refused)
		}
	})
}

// Another principal changes the node's interfaces. Metadata shows it, with a lag.
func TestWhatMetadataShowsOfAnotherPrincipalIsReadFromEC2(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, n *cloudNode)
		done   func(n *cloudNode) string // empty: found and repaired
		within time.Duration
	}{
		"an address in use is unassigned": {
			func(t *testing.T, n *cloudNode) {
				i := n.primary()
				if err := n.account.Interface(i.ID).UnassignIPv4([]netip.Addr{n.used(i.ID)}, nil); err != nil {
					t.Fatal(err)
				}
			},
			func(n *cloudNode) string {
				if i := n.primary(); !slices.Contains(i.IPv4.Addresses, n.used(i.ID)) {
					return "the address is not restored"
				}
				if !strings.Contains(n.drift.all(), "its traffic is lost until EC2 has assigned it again") {
					return "not reported: " + n.drift.all()
				}
				return ""
			}, 2 * time.Minute,
		},
		"an interface with pods is detached": {
			func(t *testing.T, n *cloudNode) {
				if err := n.account.Detach(n.secondary().Attachment.ID); err != nil {
					t.Fatal(err)
				}
			},
			func(n *cloudNode) string {
				i := n.secondary()
				if i.Attachment == nil || i.Attachment.Status != simcloud.Attached {
					return "not attached again"
				}
				if !strings.Contains(n.drift.all(), "is no longer attached to this instance") {
					return "not reported: " + n.drift.all()
				}
				return ""
			}, 2 * time.Minute,
		},
		"an address is assigned": {
			func(t *testing.T, n *cloudNode) {
				if _, err := n.account.Interface(n.fewest().ID).AssignIPv4(simcloud.Want{Count: 1}); err != nil {
					t.Fatal(err)
				}
			},
			func(n *cloudNode) string {
				for _, e := range n.view().ENIs {
					if e.ID == n.fewest().ID && len(e.Addresses) != len(n.fewest().IPv4.Addresses)-1 {
						return "not in the ledger"
					}
					if e.Count(ipam.Unconfirmed) > 0 {
						return "not confirmed by a second observation"
					}
				}
				return ""
			}, 2 * time.Minute,
		},
		"the groups of the primary interface are changed": {
			func(t *testing.T, n *cloudNode) {
				if err := n.account.Interface(n.primary().ID).SetGroups([]vpc.SecurityGroupID{n.group("more")}); err != nil {
					t.Fatal(err)
				}
			},
			func(n *cloudNode) string {
				if got := n.Observer.known().Groups; !slices.Equal(got, []vpc.SecurityGroupID{n.group("more")}) {
					return "groups of new interfaces: " + string(got[0])
				}
				return ""
			}, 2 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newCloudNode(t)
				n.scale(21) // three interfaces, the last with free slots
				time.Sleep(grown)
				n.add()
				time.Sleep(settled)
				if err := n.faults.Set(faults.Plan{MetadataLag: faults.Duration(18 * time.Second)}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				before := len(n.made(0))
				c.change(t, n)
				began := time.Now()
				for c.done(n) != "" && time.Since(began) < c.within {
					time.Sleep(time.Second)
				}
				if why := c.done(n); why != "" {
					t.Fatalf("after %s: %s", c.within, why)
				}
				time.Sleep(settled)
				if got := reads(n.made(before)); got > 8 {
					t.Errorf("%d reads: %v", got, n.made(before))
				}
			})
		})
	}
}

// Metadata can list an interface for hours that EC2 has deleted. Source:
// github.com/aws/amazon-vpc-cni-k8s/issues/2497.
func TestMetadataThatStaysWrongCostsFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		n.scale(20)
		time.Sleep(grown)
		n.add()
		time.Sleep(settled)
		n.scale(0)
		// From now on metadata shows the node with two interfaces.
		frozen := time.Now()
		stop := make(chan struct{})
		go func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					_ = n.faults.Set(faults.Plan{MetadataLag: faults.Duration(time.Since(frozen))})
				}
			}
		}()
		defer close(stop)
		n.account.Retain(24 * time.Hour)
		time.Sleep(30 * time.Minute)
		if got := len(n.view().ENIs); got != 1 {
			t.Fatalf("%d interfaces", got)
		}
		before := len(n.made(0))
		time.Sleep(4 * time.Hour)
		if got := reads(n.made(before)); got > 4*10 {
			t.Errorf("%d reads in four hours", got)
		}
		if got := len(n.view().ENIs); got != 1 {
			t.Errorf("metadata changed the ledger: %d interfaces", got)
		}
	})
}

func TestWithoutMetadataEC2IsReadEveryTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		n.scale(20)
		time.Sleep(grown)
		n.add()
		time.Sleep(settled)
		n.imds.die(true)
		if err := n.account.Detach(n.secondary().Attachment.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(blindEvery + 3*time.Minute)
		if i := n.secondary(); i.Attachment == nil || i.Attachment.Status != simcloud.Attached {
			t.Error("the interface is not attached again")
		}
	})
}

// A node on which metadata fails now and then makes no more reads than others.
func TestAMinuteWithoutMetadataIsNoReasonToReadEC2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		time.Sleep(blindEvery + settled) // EC2 was read longer ago than it is without metadata
		before := len(n.made(0))
		n.imds.die(true)
		time.Sleep(time.Minute)
		n.imds.die(false)
		time.Sleep(time.Minute)
		if made := n.made(before); len(made) > 0 {
			t.Errorf("calls %v", made)
		}
	})
}

// Other nodes take the subnet's addresses meanwhile.
func TestTheSubnetsAreReadBeforeANewInterfaceIfTheirRecordIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		time.Sleep(20 * time.Minute)
		before := len(n.made(0))
		n.scale(20)
		time.Sleep(10 * time.Second)
		made := n.made(before)
		survey, create := slices.Index(made, "DescribeSubnets"), slices.Index(made, "CreateNetworkInterface")
		if survey < 0 || create < survey || reads(made) != 2 {
			t.Errorf("calls %v", made)
		}
		before = len(n.made(0))
		n.scale(34)
		time.Sleep(10 * time.Second)
		if made := n.made(before); reads(made) != 0 || !slices.Contains(made, "CreateNetworkInterface") {
			t.Errorf("calls soon after: %v", made)
		}
	})
}

// The action is repeated until its outcome is known; the reads say meanwhile that EC2 does
// not answer, and then that it does.
func TestEC2IsReadWhileAnActionTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCloudNode(t)
		time.Sleep(grown)
		if err := n.faults.Set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Fail, Code: "InternalError", Count: -1}}}); err != nil {
			t.Fatal(err)
		}
		n.scale(20)
		time.Sleep(slowAfter + 3*time.Minute)
		if n.Observer.failure() == nil {
			t.Errorf("the outage is not found; calls %v", n.made(0))
		}
		if err := n.faults.Set(faults.Plan{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		if err := n.Observer.failure(); err != nil {
			t.Errorf("the end of the outage is not found: %v", err)
		}
		if made := n.made(0); !slices.Contains(made, "AttachNetworkInterface") {
			t.Errorf("the action was not completed: %v", made)
		}
	})
}

// Growth does not depend on reads, which EC2 throttles by themselves: a read that is refused
// for a cause that stays ends the wait, and one that is repeated for a minute does not extend it.
func TestThePoolGrowsIfTheSubnetsCannotBeRead(t *testing.T) {
	for code, within := range map[string]time.Duration{
		"UnauthorizedOperation": 3 * time.Second, "RequestLimitExceeded": 8 * time.Second, "InternalError": 8 * time.Second,
	} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newCloudNode(t)
				time.Sleep(20 * time.Minute)
				if err := n.faults.Set(faults.Plan{Calls: []faults.Call{{Action: "DescribeSubnets", Do: faults.Fail, Code: code, Count: -1}}}); err != nil {
					t.Fatal(err)
				}
				before := len(n.made(0))
				n.scale(20)
				time.Sleep(within)
				if made := n.made(before); made[0] != "DescribeSubnets" || !slices.Contains(made, "CreateNetworkInterface") {
					t.Errorf("calls in %s: %v", within, made)
				}
				time.Sleep(time.Minute)
				if got := n.view().ENIs; len(got) != 2 {
					t.Errorf("%d interfaces", len(got))
				}
				if err := n.faults.Set(faults.Plan{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Minute) // the read that is repeated ends
			})
		})
	}
}

func (n *cloudNode) primary() *simcloud.Interface { return n.account.State().Primary(n.self) }

// secondary is the node's other interface.
func (n *cloudNode) secondary() *simcloud.Interface {
	for _, i := range simcloud.Sorted(n.account.State().Interfaces) {
		if i.ID != n.primary().ID {
			return i
		}
	}
	n.t.Fatal("there is no other interface")
	return nil
}

// fewest is the interface with the fewest addresses.
func (n *cloudNode) fewest() *simcloud.Interface {
	return slices.MinFunc(simcloud.Sorted(n.account.State().Interfaces), func(a, b *simcloud.Interface) int {
		return len(a.IPv4.Addresses) - len(b.IPv4.Addresses)
	})
}

// used is the first address of an interface that a pod has.
func (n *cloudNode) used(id vpc.ENIID) netip.Addr {
	for _, e := range n.view().ENIs {
		for _, a := range e.Addresses {
			if e.ID == id && a.State == ipam.Assigned {
				return a.Addr
			}
		}
	}
	n.t.Fatalf("no pod has an address of %s", id)
	return netip.Addr{}
}

func (n *cloudNode) group(name string) vpc.SecurityGroupID {
	for id, g := range n.account.State().Groups {
		if g.Name == name {
			return id
		}
	}
	n.t.Fatalf("no group %s", name)
	return ""
}
