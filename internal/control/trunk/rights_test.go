package trunk_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// life is what the controller does for a node from its first pod to its termination, with
// faults that make it read more.
func (w *world) life() {
	w.t.Helper()
	w.policy("web", "web", "web")
	w.start("one", "web")
	w.elapse(10 * time.Second)
	w.policy("web", "web", "web", "db")
	w.elapse(10 * time.Second)
	customWorld{w}.eniConfig("a", "a")
	customWorld{w}.customize("a")
	w.start("two", "web")
	lost := false
	w.wire.inject(func(action string) string { // the VLAN is in use then, by a branch that the record does not know
		if action == "AssociateTrunkInterface" && !lost {
			lost = true
			return "InvalidVlanId.Duplicate"
		}
		return ""
	})
	w.elapse(10 * time.Second)
	w.wire.inject(nil)
	w.touch() // another program writes the CNINode: the next write is refused once
	w.end("one")
	w.elapse(3 * time.Minute)
	w.leave()
	w.end("two")
	w.terminate()
	w.elapse(5 * time.Minute)
}

func TestTheControllerUsesExactlyTheRightsOfItsComponent(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.life()
		w.stop()
		want := append(kubetest.Granted(t, "../../../deploy/components/trunks/rbac.yaml"), "create events")
		slices.Sort(want)
		used := slices.DeleteFunc(w.Used(), func(right string) bool { return right == "patch events" }) // of a repeated event
		if !slices.Equal(used, want) {
			w.t.Errorf("used    %q\ngranted %q", used, want)
		}
	})
}

// Without any one grant of the policy, IAM refuses a call of that action.
func TestThePolicyOfTrunksGrantsExactlyWhatIsNeeded(t *testing.T) {
	const name = "controller-trunks-policy"
	type document struct {
		Version   string
		Statement []map[string]any
	}
	read := func() (d document) {
		if err := json.Unmarshal(shipped(t)[name], &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	inWorld(t, nil, func(w *world) {
		w.life()
		if len(w.wire.denied) > 0 {
			w.t.Errorf("refused: %v", slices.Sorted(maps.Keys(w.wire.denied)))
		}
	})
	for i, s := range read().Statement {
		actions, resources := list(s["Action"]), list(s["Resource"])
		for _, action := range actions {
			for _, resource := range resources {
				t.Run(fmt.Sprintf("%s %s %s", s["Sid"], action, resource), func(t *testing.T) {
					d := read()
					d.Statement[i]["Action"] = slices.DeleteFunc(slices.Clone(actions), func(a string) bool { return a == action })
					if rest := slices.DeleteFunc(slices.Clone(resources), func(r string) bool { return r == resource }); len(rest) > 0 {
						d.Statement = append(d.Statement, maps.Clone(s))
						last := d.Statement[len(d.Statement)-1]
						last["Action"], last["Resource"] = action, rest
					}
					if len(actions) == 1 {
						d.Statement = slices.Delete(d.Statement, i, i+1)
					}
					policies := shipped(t)
					var err error
					if policies[name], err = json.Marshal(d); err != nil {
						t.Fatal(err)
					}
					inWorld(t, policies, func(w *world) {
						w.life()
						call := strings.TrimPrefix(action, "ec2:")
						whileCreating := call == "CreateTags" && w.wire.denied["CreateNetworkInterface"]
						if !w.wire.denied[call] && !whileCreating {
							w.t.Errorf("refused: %v, want %s", slices.Sorted(maps.Keys(w.wire.denied)), call)
						}
					})
				})
			}
		}
	}
}

func list(v any) (out []string) {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		for _, e := range v {
			out = append(out, fmt.Sprint(e))
		}
	}
	return out
}
