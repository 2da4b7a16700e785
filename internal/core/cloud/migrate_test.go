package cloud_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// version1 reads testdata/journal-v1.log, which the agent of commit
// d06a4cb wrote: actions by id, and the second records of those it had one for.
func version1(t *testing.T) (actions map[cloud.ActionID]cloud.Action, intents map[cloud.ActionID]json.RawMessage) {
	t.Helper()
	raw, err := os.ReadFile("testdata/journal-v1.log")
	if err != nil {
		t.Fatal(err)
	}
	actions, intents = map[cloud.ActionID]cloud.Action{}, map[cloud.ActionID]json.RawMessage{}
	for line := range bytes.Lines(raw) {
		_, line, _ = bytes.Cut(line, []byte(" ")) // the checksum
		var written struct {
			Records []struct {
				Key   string          `json:"k"`
				Value json.RawMessage `json:"v"`
			} `json:"r"`
		}
		if err := json.Unmarshal(line, &written); err != nil {
			t.Fatal(err)
		}
		for _, r := range written.Records {
			if id, ok := strings.CutPrefix(r.Key, "ec2/"); ok {
				intents[cloud.ActionID(id)] = r.Value
			}
			if id, ok := strings.CutPrefix(r.Key, "ipam/ipam/action/"); ok && r.Value != nil {
				var row struct{ Action cloud.Action }
				if err := json.Unmarshal(r.Value, &row); err != nil {
					t.Fatal(err)
				}
				actions[cloud.ActionID(id)] = row.Action
			}
		}
	}
	return actions, intents
}

func TestActionsOfVersion1CanBeCarriedOut(t *testing.T) {
	actions, intents := version1(t)
	node := cloud.Node{Instance: "i-0123456789abcdef0", Cluster: "renamed-since"}
	kinds := map[cloud.Kind]bool{}
	for id, a := range actions {
		if a.Kind == cloud.SetUp {
			continue // forgotten at a restart
		}
		migrated := a
		if intent, ok := intents[id]; ok {
			var err error
			if migrated, err = cloud.Migrate(a, intent); err != nil {
				t.Fatal(err)
			}
		}
		migrated = node.Complete(migrated, migrated.Began)
		if err := migrated.Validate(); err != nil || migrated.Instance != node.Instance {
			t.Errorf("%s: %+v: %v", id, migrated, err)
		}
		kinds[a.Kind] = true
		migrated.Instance, migrated.Description, migrated.Tags = "", "", nil
		if diff := cmp.Diff(a, migrated, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s: more than the missing fields changed (-had +has):\n%s", id, diff)
		}
	}
	if len(kinds) != 5 {
		t.Errorf("the journal has the kinds %v: too few to prove anything", kinds)
	}
}

func TestAClientTokenKeepsTheTagsItWasFirstSentWith(t *testing.T) {
	actions, intents := version1(t)
	asked, err := cloud.Migrate(actions["tl-create-asked"], intents["tl-create-asked"])
	if err != nil {
		t.Fatal(err)
	}
	asked = cloud.Node{Instance: "i-0123456789abcdef0", Cluster: "renamed-since"}.Complete(asked, asked.Began)
	want := map[string]string{
		vpc.TagClusterName: "lab", vpc.TagOwner: vpc.OwnerVPCCNI, vpc.TagCreatedAt: "2026-11-22T12:11:58Z",
		vpc.TagInstanceID: "i-0123456789abcdef0", vpc.TagManagedBy: "trunkline",
	}
	if diff := cmp.Diff(want, asked.Tags); diff != "" || asked.Description != "aws-K8S-i-0123456789abcdef0" {
		t.Errorf("%q, tags (-first +now):\n%s", asked.Description, diff)
	}
}

func TestAnInvalidIntentIsRefused(t *testing.T) {
	if _, err := cloud.Migrate(cloud.Action{ID: "a"}, json.RawMessage(`{"intent": 7}`)); err == nil {
		t.Error("taken")
	}
}

func TestAnActionThatHasItsInstanceIsKeptAsItIs(t *testing.T) {
	a := cloud.Action{ID: "a", Instance: "i-1", Description: "mine", Tags: map[string]string{"k": "v"}}
	got, err := cloud.Migrate(a, json.RawMessage(`{"intent": {"instance": "i-2", "description": "other"}}`))
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("%+v, %v, want it as it was: %+v", got, err, a)
	}
}
