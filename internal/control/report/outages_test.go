package report

import (
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
)

func TestAServiceThatDoesNotAnswerIsReportedWithWhatItPrevents(t *testing.T) {
	r := &Reporter{Deps: Deps{State: statetest.Open(t, t.TempDir())}}
	now := time.Now()
	failed := now.Add(-time.Hour)
	state.Set(r.State, r.State.BackendTables().Sources,
		state.Source{Name: state.EC2, Since: failed, Answered: failed},
		state.Source{Name: state.Metadata, Since: failed, Failure: "i/o timeout"})
	if got := r.outages(now); len(got) != 1 || got[0].Service != "instance metadata" || !got[0].Since.Equal(failed) || got[0].Why != "i/o timeout" || got[0].Prevents == "" {
		t.Errorf("%+v", got)
	}
	r.server = state.Source{Name: state.APIServer, Since: now}
	r.noteServer(errors.New("503"))
	all := r.outages(now)
	if len(all) != 2 || all[1].Service != "API server" {
		t.Errorf("%+v", all)
	}
	for _, c := range []struct {
		got    metav1.Condition
		status metav1.ConditionStatus
	}{
		{answering(trunkline.ConditionMetadataReachable, state.Metadata, all), metav1.ConditionFalse},
		{answering(trunkline.ConditionCredentialsValid, state.Credentials, all), metav1.ConditionTrue},
		{reachable(state.Pool{}, all), metav1.ConditionTrue},
	} {
		if c.got.Status != c.status {
			t.Errorf("%s is %s: %s", c.got.Type, c.got.Status, c.got.Message)
		}
	}
	r.noteServer(nil)
	if got := r.outages(now); len(got) != 1 {
		t.Errorf("the API server answers: %+v", got)
	}
}

func TestFactsSaySinceWhenTheyAreKnown(t *testing.T) {
	at := time.Now()
	n := state.Node{}.With(at, state.FactLimits, state.FactIdentity)
	got := facts(n)
	if len(got) != 2 || got[0].What != "identity" || got[1].What != "limits" || slices.ContainsFunc(got, func(f introspection.Fact) bool { return !f.Read.Equal(at) }) {
		t.Errorf("%+v", got)
	}
}
