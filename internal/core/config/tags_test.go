package config

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestTagsOfInterfacesAreThoseThatEC2Takes(t *testing.T) {
	c, err := Load(Sources{Env: env(map[string]string{"ADDITIONAL_ENI_TAGS": `{"team": "a", "cost:center": ""}`})})
	if want := map[string]string{"team": "a", "cost:center": ""}; err != nil || !maps.Equal(c.ENITags, want) {
		t.Errorf("%v, %v, want %v", c.ENITags, err, want)
	}
	longest := strings.Repeat("é", 128)
	if c, err := Load(Sources{Flags: map[string]string{"eni-tags": `{"` + longest + `": "a"}`}}); err != nil || c.ENITags[longest] != "a" {
		t.Errorf("a key of 128 characters: %v, %v", c.ENITags, err)
	}
	for value, want := range map[string]string{
		`team=a`:                                `eni-tags: "team=a" from environment ADDITIONAL_ENI_TAGS: must be a JSON object of strings`,
		`["team"]`:                              "must be a JSON object of strings",
		`{"team": 1}`:                           "must be a JSON object of strings",
		`{"": "a"}`:                             `key "" must have from 1 to 128 characters`,
		`{"Aws:x": "a"}`:                        `key "Aws:x" is reserved by AWS`,
		`{"a\u0007": "a"}`:                      "must not contain control characters",
		`{"a": "\u0007"}`:                       `value of "a" must not contain control characters`,
		`{"trunkline.dev/x": "a"}`:              `key "trunkline.dev/x" is reserved`,
		`{"eks:eni:owner": "a"}`:                `key "eks:eni:owner" is reserved`,
		`{"vpcresources.k8s.aws/vlan-id": "1"}`: "is reserved",
		`{"node.k8s.amazonaws.com/no_manage": "true"}`: "is reserved",
		`{"` + strings.Repeat("k", 129) + `": "a"}`:    "must have from 1 to 128 characters",
		`{"a": "` + strings.Repeat("v", 257) + `"}`:    "must have at most 256 characters",
		tagsOf(mostTags + 1):                           "must have at most 44 tags: EC2 takes 50, with Trunkline's own",
	} {
		if _, err := Load(Sources{Env: env(map[string]string{"ADDITIONAL_ENI_TAGS": value})}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}

func TestNoTagsAreShownAsAnEmptyValue(t *testing.T) {
	for _, value := range []string{"", " ", "{}"} {
		c, err := Load(Sources{Flags: map[string]string{"eni-tags": value}})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range c.Describe() {
			if row.Name == "eni-tags" && row.Value != "" {
				t.Errorf("%q is shown as %q", value, row.Value)
			}
		}
	}
}

// tagsOf is the value with n tags.
func tagsOf(n int) string {
	list := map[string]string{}
	for i := range n {
		list["k"+strconv.Itoa(i)] = "v"
	}
	text, _ := json.Marshal(list)
	return string(text)
}

// With as many tags as are accepted, an interface has as many as EC2 takes.
func TestTheTagsOfAnInterfaceFit(t *testing.T) {
	c, err := Load(Sources{Flags: map[string]string{"eni-tags": tagsOf(mostTags)}})
	if err != nil {
		t.Fatal(err)
	}
	n := cloud.Node{Instance: "i-1", Cluster: "prod", Tags: c.ENITags}
	made := n.Complete(cloud.Action{Kind: cloud.CreateENI}, time.Unix(0, 0)).Tags
	made[vpc.TagIntent] = "tl-1" // by the executor
	if len(made) != vpc.MaxTags {
		t.Errorf("%d tags, want %d", len(made), vpc.MaxTags)
	}
}
