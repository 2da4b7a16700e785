package podeni_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

const (
	node = vpc.InstanceID("i-0123456789abcdef0")
	pod  = types.UID("uid-web")
)

// records are those of the two branches of the text two, and of another pod's.
func records(t *testing.T) []podeni.Record {
	t.Helper()
	entries, err := podeni.Decode(two)
	if err != nil {
		t.Fatal(err)
	}
	other, err := podeni.Decode(strings.NewReplacer("eni-0bf8102e8bf0fa369", "eni-0000000000000000f", "02:78:59:8f:ee:b2", "02:00:00:00:00:0f", "10.243.50.203", "10.243.50.210", `"vlanId":1`, `"vlanId":9`, "abcdef0", "abcdeff").Replace(one))
	if err != nil {
		t.Fatal(err)
	}
	return []podeni.Record{{node, pod, entries[0]}, {node, pod, entries[1]}, {node, "uid-db", other[0]}}
}

func TestAnAnnotationIsTakenOnlyAsItsControllerRecordedIt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(entries []podeni.Entry, records []podeni.Record) ([]podeni.Entry, []podeni.Record)
		want   error // nil is taken
	}{
		{"as recorded", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) { return e, r }, nil},
		{"in another order", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			return []podeni.Entry{e[1], e[0]}, r
		}, nil},
		{"from a version without associations", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].Association = ""
			return e, r
		}, nil},
		{"without any record", func(e []podeni.Entry, _ []podeni.Record) ([]podeni.Entry, []podeni.Record) { return e, nil }, podeni.ErrForged},
		{"an interface that is not recorded", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].ENI = "eni-0123456789abcdef0"
			return e, r
		}, podeni.ErrForged},
		{"another pod's branch", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			return append(e, r[2].Entry), r
		}, podeni.ErrOtherPod},
		{"the branch of an earlier pod of the same name", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			r[0].Pod = "uid-web-before"
			return e, r
		}, podeni.ErrOtherPod},
		{"a branch of another node", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			r[0].Instance = "i-0123456789abcdef9"
			return e, r
		}, podeni.ErrOtherNode},
		{"another VLAN", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].VLAN = 3
			return e, r
		}, podeni.ErrOtherVLAN},
		{"the VLANs of its branches exchanged", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].VLAN, e[1].VLAN = e[1].VLAN, e[0].VLAN
			return e, r
		}, podeni.ErrOtherVLAN},
		{"another address", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].IPv4 = netip.MustParseAddr("10.243.50.205")
			return e, r
		}, podeni.ErrForged},
		{"another MAC", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].MAC[5]++
			return e, r
		}, podeni.ErrForged},
		{"a wider subnet", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].Subnet4 = netip.MustParsePrefix("10.0.0.0/8")
			return e, r
		}, podeni.ErrForged},
		{"another association", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			e[0].Association = "trunk-assoc-1"
			return e, r
		}, podeni.ErrForged},
		{"one of two branches", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) { return e[:1], r }, podeni.ErrMissing},
		{"one branch, beside one on an earlier node", func(e []podeni.Entry, r []podeni.Record) ([]podeni.Entry, []podeni.Record) {
			r[1].Instance = "i-0123456789abcdef9"
			return e[:1], r
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			entries, err := podeni.Decode(two)
			if err != nil {
				t.Fatal(err)
			}
			entries, recorded := tt.change(entries, records(t))
			if err := podeni.Verify(node, pod, entries, recorded); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func TestTwoPodsOfANodeNeverShareABranch(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*podeni.Entry)
		names  string // "" is no conflict
	}{
		"the same VLAN":                {func(e *podeni.Entry) { e.VLAN = 1 }, "VLAN 1"},
		"the same interface":           {func(e *podeni.Entry) { e.ENI = "eni-0bf8102e8bf0fa369" }, "eni-0bf8102e8bf0fa369"},
		"the same MAC":                 {func(e *podeni.Entry) { e.MAC = vpc.MAC{0x02, 0x78, 0x59, 0x8f, 0xee, 0xb2} }, "MAC 02:78:59:8f:ee:b2"},
		"the same address":             {func(e *podeni.Entry) { e.IPv4 = netip.MustParseAddr("10.243.50.203") }, "10.243.50.203"},
		"the same association":         {func(e *podeni.Entry) { e.Association = "trunk-assoc-0123456789abcdef0" }, "association"},
		"nothing in common":            {func(*podeni.Entry) {}, ""},
		"the same subnet":              {func(e *podeni.Entry) { e.Subnet4 = netip.MustParsePrefix("10.243.48.0/20") }, ""},
		"neither with an association":  {func(e *podeni.Entry) { e.Association = "" }, ""},
		"neither with an IPv6 address": {func(e *podeni.Entry) { e.IPv6 = netip.Addr{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			held, err := podeni.Decode(one)
			if err != nil {
				t.Fatal(err)
			}
			if name == "neither with an association" {
				held[0].Association = ""
			}
			e := records(t)[2].Entry
			tt.change(&e)
			err = podeni.Conflict(pod, []podeni.Entry{e}, []podeni.Held{{Pod: "uid-db", Entries: held}})
			if tt.names == "" && err != nil || tt.names != "" && (!errors.Is(err, podeni.ErrOtherPod) || !strings.Contains(err.Error(), tt.names)) {
				t.Errorf("%v, want %q", err, tt.names)
			}
			if err := podeni.Conflict(pod, []podeni.Entry{e}, []podeni.Held{{Pod: pod, Entries: held}}); err != nil {
				t.Errorf("a repeated ADD of the same pod: %v", err)
			}
		})
	}
}

func TestOnlyControllersWriteTheAnnotation(t *testing.T) {
	const ours = "system:serviceaccount:kube-system:trunkline-controller"
	with := func(text string) map[string]string { return map[string]string{vpc.AnnotationPodENI: text, "a": "b"} }
	writers := append(podeni.AWSWriters(), ours)
	for _, tt := range []struct {
		name          string
		before, after map[string]string
		user          string
		want          error
	}{
		{"a user changes other annotations", with(one), map[string]string{vpc.AnnotationPodENI: one}, "alice", nil},
		{"a user changes a pod without it", nil, map[string]string{"a": "b"}, "alice", nil},
		{"a user adds it", nil, with(one), "alice", podeni.ErrNotWriter},
		{"a user adds it empty", nil, with(""), "alice", podeni.ErrNotWriter},
		{"a user changes it", with(one), with(two), "alice", podeni.ErrNotWriter},
		{"a user removes it", with(one), nil, "alice", podeni.ErrNotWriter},
		{"an administrator adds it", nil, with(one), "kubernetes-admin", podeni.ErrNotWriter},
		{"the kubelet adds it", nil, with(one), "system:node:n1", podeni.ErrNotWriter},
		{"a service account of the same name in another namespace adds it", nil, with(one), "system:serviceaccount:shop:vpc-resource-controller", podeni.ErrNotWriter},
		{"AWS's controller adds it", nil, with(one), "eks:vpc-resource-controller", nil},
		{"AWS's controller with its service account adds it", nil, with(one), "system:serviceaccount:kube-system:eks-vpc-resource-controller", nil},
		{"our controller changes it", with(one), with(two), ours, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := podeni.AdmitUpdate(tt.before, tt.after, tt.user, writers); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	if err := podeni.AdmitUpdate(nil, with(one), "", nil); !errors.Is(err, podeni.ErrNotWriter) {
		t.Errorf("without writers: %v", err)
	}
	if err := podeni.AdmitCreate(with("")); !errors.Is(err, podeni.ErrAtCreation) {
		t.Errorf("a pod created with it: %v", err)
	}
	if err := podeni.AdmitCreate(map[string]string{"a": "b"}); err != nil {
		t.Errorf("a pod created without it: %v", err)
	}
}
