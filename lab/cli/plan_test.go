package cli

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/spec"
)

func TestFlagsOverrideTheFile(t *testing.T) {
	for name, tc := range map[string]struct {
		c     choices
		nodes []string // name and type
		lab   string
	}{
		"no flags":                    {choices{}, []string{"node1 m5.xlarge", "node2 m5.xlarge", "node3 m5.xlarge"}, "lab"},
		"fewer nodes":                 {choices{nodes: 1}, []string{"node1 m5.xlarge"}, "lab"},
		"a type for all":              {choices{instanceType: "t3.medium", nodes: 2}, []string{"node1 t3.medium", "node2 t3.medium"}, "lab"},
		"a file's name":               {choices{file: "../../examples/one-node.yaml"}, []string{"node1 m5.large"}, "one"},
		"another name":                {choices{file: "../../examples/one-node.yaml", name: "two"}, []string{"node1 m5.large"}, "two"},
		"more nodes than in the file": {choices{file: "../../examples/one-node.yaml", nodes: 2}, []string{"node1 m5.large", "node2 m5.xlarge"}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := tc.c.resolve()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range r.Nodes {
				got = append(got, n.Name+" "+n.Type)
			}
			if diff := cmp.Diff(tc.nodes, got); diff != "" || r.Name != tc.lab {
				t.Errorf("lab %s, nodes (-want +got):\n%s", r.Name, diff)
			}
		})
	}
}

func samplePlan(t *testing.T) (daemon.Lab, parts) {
	t.Helper()
	return planOf(t, spec.Default())
}

func planOf(t *testing.T, s spec.Spec) (daemon.Lab, parts) {
	t.Helper()
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	archive := func(name string) image.Archive {
		return image.Archive{Path: "/c/" + name, Refs: []string{"trunkline.dev/" + name + ":dev-1", "trunkline.dev/" + name + ":dev"}}
	}
	p := parts{source: source, set: cache.Set{Kube: "/c/kube", Containerd: "/c/bin", Runc: "/c/runc", CNI: "/c/cni"}, images: image.Lab{
		Trunkline: archive("trunkline"), Workload: archive("workload"), CoreDNS: archive("coredns"), Pause: archive("pause"),
	}}
	want, err := plan(r, p, "/var/lib/trunkline-lab/lab", true)
	if err != nil {
		t.Fatal(err)
	}
	return want, p
}

func TestThePlanIsValidForTheDaemon(t *testing.T) {
	want, _ := samplePlan(t)
	if err := want.Validate(); err != nil {
		t.Fatal(err)
	}
	if want.Images[0].Refs[0] != want.Parts.PauseImage {
		t.Errorf("the sandbox image %s is not the first imported (%v)", want.Parts.PauseImage, want.Images[0].Refs)
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var again daemon.Lab
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	same := []cmp.Option{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(want, again, same...); diff != "" {
		t.Errorf("it differs after JSON encoding and decoding:\n%s", diff)
	}
}

func TestRolesOfTheFileJoinOrReplaceThoseOfTheLab(t *testing.T) {
	policy := []spec.Policy{{Name: "own", Document: map[string]any{"Version": "2012-10-17", "Statement": map[string]any{"Effect": "Deny", "Action": "*", "Resource": "*"}}}}
	for name, tc := range map[string]struct {
		own  map[string]spec.Role
		want []string // role and its policy
	}{
		"none":               {nil, []string{"trunkline-node node-policy", "trunkline-controller controller-policy"}},
		"another":            {map[string]spec.Role{"web": {Policies: policy}}, []string{"trunkline-node node-policy", "web own", "trunkline-controller controller-policy"}},
		"that of every node": {map[string]spec.Role{"trunkline-node": {Policies: policy}}, []string{"trunkline-node own", "trunkline-controller controller-policy"}},
	} {
		want, _ := planOf(t, spec.Spec{Roles: tc.own})
		var got []string
		for _, r := range want.Roles {
			got = append(got, r.Name+" "+strings.Join(slices.Sorted(maps.Keys(r.Policies)), " "))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestChangesOfFixedFieldsAreListed(t *testing.T) {
	have, _ := samplePlan(t)
	text, err := json.Marshal(have)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*daemon.Lab){
		"": func(l *daemon.Lab) {
			l.Nodes, l.World.Instances, l.Images, l.Deploy, l.Parts = nil, nil, nil, "", daemon.Parts{}
		},
		"subnets":      func(l *daemon.Lab) { l.World.Subnets = l.World.Subnets[1:] },
		"kubernetes":   func(l *daemon.Lab) { l.APIPort = 6443 },
		"region, seed": func(l *daemon.Lab) { l.World.Region, l.World.Seed = "eu-west-1", 7 },
		"latency":      func(l *daemon.Lab) { l.Latency = 0 },
		"faults":       func(l *daemon.Lab) { l.Faults.LinkDown = []string{"eni-0123456789abcdef0"} },
	} {
		var next daemon.Lab // as it comes back from lab.json
		if err := json.Unmarshal(text, &next); err != nil {
			t.Fatal(err)
		}
		change(&next)
		if got, err := next.FixedIn(have); err != nil || strings.Join(got, ", ") != want {
			t.Errorf("differs in %q (%v), want %q", got, err, want)
		}
	}
}

func TestAChangeThatARunningLabCannotMakeIsRefusedAndTheRecordKept(t *testing.T) {
	want, p := samplePlan(t)
	s := &session{labs: labs{root: t.TempDir(), self: "bin/trunkline-lab"}}
	if err := os.MkdirAll(s.labs.stateDir(want.Name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (record{Lab: want}).save(s.labs.stateDir(want.Name)); err != nil {
		t.Fatal(err)
	}
	if err := (record{Lab: want}).accept(want, ""); err != nil {
		t.Errorf("the same lab again: %v", err)
	}
	other := spec.Default()
	other.VPC.CIDR, other.Subnets = "10.8.0.0/16", nil
	r, err := other.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&bringUp{}).record(s, r, p, false)
	if own := (coded{}); !errors.As(err, &own) || own.code != ExitRefused || !strings.Contains(err.Error(), "differs in subnets, vpc: only nodes can change") {
		t.Errorf("another VPC: %v", err)
	}
	if kept, err := s.labs.load(want.Name); err != nil || kept.Lab.World.VPC.CIDRs[0] != want.World.VPC.CIDRs[0] {
		t.Errorf("the record changed: %v, %v", kept.Lab.World.VPC, err)
	}
}

func TestALabWithoutACloudHasNeitherRolesNorAddressesOfAWS(t *testing.T) {
	want, p := planOf(t, spec.Spec{Cloud: spec.CloudNone})
	if err := want.Validate(); err != nil || !want.NoCloud || len(want.Roles) > 0 || want.PodCIDR.String() != spec.DefaultPodCIDR || strings.Contains(want.Issuer(), "amazonaws") {
		t.Errorf("%v: no cloud %v, roles %v, pod CIDR %s, issuer %s", err, want.NoCloud, want.Roles, want.PodCIDR, want.Issuer())
	}
	text, err := manifests{product: true, dns: true}.kustomization(want, p, "/var/lib/trunkline-lab/lab/deploy")
	if err != nil {
		t.Fatal(err)
	}
	for _, lacks := range []string{"AWS_", "amazonaws", "trunkline-controller", "overlays/lab"} {
		if strings.Contains(string(text), lacks) {
			t.Errorf("the kustomization has %s:\n%s", lacks, text)
		}
	}
	for _, has := range []string{"deploy/overlays/no-cloud", "TRUNKLINE_EXCLUDE_SNAT_CIDRS=10.244.0.0/16", "TRUNKLINE_MTU=9001"} {
		if !strings.Contains(string(text), has) {
			t.Errorf("the kustomization lacks %s:\n%s", has, text)
		}
	}
}
