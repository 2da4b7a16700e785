package grouprules_test

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/grouprules"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// scaled is an engine of a node with one pod in db, which refers to web.
type scaled struct {
	engine *policy.Engine
	tables *policy.Tables
	web    grouprules.Group
	db     grouprules.Group
}

func newScaled(members int) *scaled {
	s := &scaled{engine: policy.NewEngine(policy.DefaultLimits()), tables: policy.NewTables(), web: grouprules.Group{ID: "sg-0000000a"}}
	s.db = grouprules.Group{ID: "sg-0000000b", Rules: []grouprules.Rule{
		{ID: "sgr-1", Direction: policy.Ingress, Protocol: 6, From: 5432, To: 5432, Group: s.web.ID},
		{ID: "sgr-2", Direction: policy.Ingress, Protocol: 6, From: 22, To: 22, Group: s.web.ID},
	}}
	for i := range members {
		s.web.Members = append(s.web.Members, netip.PrefixFrom(s.member(i), 32))
	}
	s.engine.SetNamespace("shop", nil)
	s.engine.SetEndpoint(1, policy.PodRef{Namespace: "shop", Name: "db"})
	s.setPod("db", netip.MustParseAddr("10.200.0.1"), "sg-0000000b")
	s.setPolicies()
	return s
}

// member is every other address, so that none can be joined.
func (s *scaled) member(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
}

func (s *scaled) setPolicies() {
	for _, c := range grouprules.Compile([]grouprules.Group{s.web, s.db}) {
		s.engine.SetPolicy(c.Policy)
	}
}

func (s *scaled) setPod(name string, a netip.Addr, groups ...vpc.SecurityGroupID) {
	s.engine.SetPod(policy.Pod{Namespace: "shop", Name: name, Addresses: []netip.Addr{a}, Labels: grouprules.Labels(labels.Set{}, grouprules.Groups{Isolated: true, Own: groups})})
}

func (s *scaled) commit() policy.Change {
	change := s.engine.Commit()
	s.tables.Apply(change.All()...)
	return change
}

func (s *scaled) allows(a netip.Addr) bool {
	allowed, _, _ := s.tables.Judge(endpoint.ID(1), policy.Ingress, a, policy.TCP, 5432)
	return allowed
}

func TestAPodMoreInAGroupIsOneWrite(t *testing.T) {
	s := newScaled(100)
	for i := range 1000 {
		s.setPod(fmt.Sprint("web", i), netip.AddrFrom4([4]byte{10, 201, byte(i >> 8), byte(i)}), s.web.ID)
	}
	s.commit()
	a := netip.MustParseAddr("10.202.0.1")
	if s.allows(a) {
		t.Fatal("an address of no pod is a member")
	}
	s.setPod("late", a, s.web.ID)
	if n := s.commit().Len(); n != 1 {
		t.Errorf("%d writes for a pod more, want 1", n)
	}
	if !s.allows(a) || !s.allows(s.member(99)) {
		t.Error("members are denied")
	}
}

// A change of 10,000 members that no ranges join.
func BenchmarkChangeOfMembers(b *testing.B) {
	s := newScaled(10_000)
	s.commit()
	for n := 0; b.Loop(); n++ {
		s.web.Members[n%len(s.web.Members)] = netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(n >> 8), byte(n)}), 32)
		s.setPolicies()
		s.commit()
	}
	b.ReportMetric(float64(s.engine.Size().Classes), "classes")
	b.ReportMetric(float64(s.engine.Size().Rows), "rows")
}
