package spec

import (
	"strings"
	"testing"
)

func TestNodesStartWithAWSsDaemonOrWithNone(t *testing.T) {
	for yaml, problem := range map[string]string{
		"nodes: [{before: aws-node}, {before: aws-node/prefix}]": "",
		"nodes: [{before: calico}]":                              `nodes[0].before: "calico": must be aws-node or aws-node/prefix`,
		"nodes: [{before: aws-node}, {}]":                        `nodes: "node2": has no before, and node1 has`,
		"nodes: [{before: aws-node, interfaces: [{device: 1}]}]": "AWS's daemon makes the node's interfaces",
		"{cloud: none, nodes: [{before: aws-node}]}":             "AWS's daemon needs EC2",
		"nodes: [{before: aws-node, image: al2023}]":             "",
		"nodes: [{before: aws-node, image: bottlerocket}]":       "scripts, which image bottlerocket does not interpret",
	} {
		s, err := Parse([]byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Resolve()
		if problem == "" && err != nil || problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%s: %v, want %q", yaml, err, problem)
		}
	}
}
