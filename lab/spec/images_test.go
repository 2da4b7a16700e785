package spec

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/lab/osimage"
)

func resolveText(t *testing.T, yaml string) (Resolved, error) {
	t.Helper()
	s, err := Parse([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return s.Resolve()
}

func TestAnImageDecidesPluginsAndCgroupVersionUnlessTheNodeDoes(t *testing.T) {
	for yaml, want := range map[string]ResolvedNode{
		"nodes: [{}]":                                    {Image: osimage.Bare, Cgroup: CgroupV1},
		"nodes: [{image: bare}]":                         {Image: osimage.Bare, Cgroup: CgroupV1},
		"nodes: [{image: al2023}]":                       {Image: osimage.AL2023, Cgroup: CgroupV2, NoCNIPlugins: true},
		"nodes: [{image: bottlerocket}]":                 {Image: osimage.Bottlerocket, Cgroup: CgroupV2},
		"nodes: [{image: ubuntu}]":                       {Image: osimage.Ubuntu, Cgroup: CgroupV2, NoCNIPlugins: true},
		"nodes: [{image: al2023, cniPlugins: true}]":     {Image: osimage.AL2023, Cgroup: CgroupV2},
		"nodes: [{image: bottlerocket, cgroup: v1}]":     {Image: osimage.Bottlerocket, Cgroup: CgroupV1},
		"nodes: [{image: bare, cniPlugins: false}]":      {Image: osimage.Bare, Cgroup: CgroupV1, NoCNIPlugins: true},
		"cloud: none\nnodes: [{image: bare}]":            {Image: osimage.Bare, Cgroup: CgroupV1},
		"nodes: [{image: ubuntu, cniPlugins: true}, {}]": {Image: osimage.Ubuntu, Cgroup: CgroupV2},
	} {
		r, err := resolveText(t, yaml)
		if err != nil {
			t.Errorf("%s: %v", yaml, err)
			continue
		}
		got := ResolvedNode{Image: r.Nodes[0].Image, Cgroup: r.Nodes[0].Cgroup, NoCNIPlugins: r.Nodes[0].NoCNIPlugins}
		if got.Image != want.Image || got.Cgroup != want.Cgroup || got.NoCNIPlugins != want.NoCNIPlugins {
			t.Errorf("%s: image %s, cgroup %s, without plugins %t; want %s, %s, %t",
				yaml, got.Image, got.Cgroup, got.NoCNIPlugins, want.Image, want.Cgroup, want.NoCNIPlugins)
		}
	}
}

func TestAnImageThatANodeCannotBootIsAProblem(t *testing.T) {
	for yaml, want := range map[string]string{
		"nodes: [{}, {image: al2}]":             `nodes[1].image: "al2": must be one of [al2023 bare bottlerocket ubuntu]`,
		"cloud: none\nnodes: [{image: al2023}]": `nodes[0].image: "al2023": is an image of EC2`,
	} {
		if _, err := resolveText(t, yaml); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", yaml, err, want)
		}
	}
}
