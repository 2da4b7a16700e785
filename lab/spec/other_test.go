package spec

import (
	"strings"
	"testing"
)

func TestANodeOfAnotherNetworkHasAPrefixAndNoAgent(t *testing.T) {
	s, err := Parse([]byte("nodes: [{network: other, labels: {role: store}}, {}]"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	labels := r.Nodes[0].Labels
	if r.Cloud.Instances[0].Prefixes != 1 || labels[LabelComputeType] != ComputeHybrid || labels["role"] != "store" {
		t.Errorf("%d prefixes, labels %v", r.Cloud.Instances[0].Prefixes, labels)
	}
	if r.Cloud.Instances[1].Prefixes != 0 || r.Nodes[1].Labels != nil {
		t.Errorf("the other node has %d prefixes, labels %v", r.Cloud.Instances[1].Prefixes, r.Nodes[1].Labels)
	}
	for yaml, problem := range map[string]string{
		"nodes: [{network: calico}]":                   "must be other, or empty for Trunkline",
		"nodes: [{network: other, before: aws-node}]":  "before is aws-node",
		"nodes: [{network: other, cniPlugins: false}]": "needs the reference plugins",
		"{cloud: none, nodes: [{network: other}]}":     "a prefix of EC2",
	} {
		s, err := Parse([]byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Resolve(); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", yaml, err, problem)
		}
	}
}
