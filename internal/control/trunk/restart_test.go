package trunk_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// stale is an API server of which lists lack the pods of hide, and gets do not find those of gone.
type stale struct {
	next       http.RoundTripper
	hide, gone string // part of the names
}

// RoundTrip implements http.RoundTripper.
func (s stale) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.gone != "" && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/pods/"+s.gone) {
		rec := httptest.NewRecorder()
		rec.Header().Set("Content-Type", "application/json")
		rec.WriteHeader(http.StatusNotFound)
		fmt.Fprint(rec, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
		return rec.Result(), nil
	}
	reply, err := s.next.RoundTrip(r)
	if err != nil || s.hide == "" || r.URL.Path != podsAt || r.URL.Query().Get("watch") != "" {
		return reply, err
	}
	defer reply.Body.Close()
	raw, err := io.ReadAll(reply.Body)
	if err != nil {
		return nil, err
	}
	var list map[string]any
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	kept := []any{}
	items, _ := list["items"].([]any)
	for _, item := range items {
		if text, err := json.Marshal(item); err == nil && !bytes.Contains(text, []byte(`"name":"`+s.hide)) {
			kept = append(kept, item)
		}
	}
	list["items"] = kept
	if raw, err = json.Marshal(list); err != nil {
		return nil, err
	}
	reply.Body = io.NopCloser(bytes.NewReader(raw))
	return reply, nil
}

// restarted restarts the controller at an API server that is stale, and returns the deletions that it
// makes in an hour, and its describes of the first five minutes.
func restarted(w *world, s stale) (deletions, describes int) {
	w.t.Helper()
	w.policy("web", "web", "web")
	for _, name := range names(20) {
		w.start(name, "web")
	}
	w.elapse(time.Minute)
	if n := len(w.branches()); n != 20 {
		w.t.Fatalf("%d branches, want 20", n)
	}
	w.stop()
	w.api.stale = s
	frees := func() int { return w.wire.count("DisassociateTrunkInterface", "DeleteNetworkInterface") }
	before, reads := frees(), w.wire.describes()
	w.boot()
	w.elapse(5 * time.Minute)
	describes = w.wire.describes() - reads
	w.elapse(time.Hour)
	return frees() - before, describes
}

func TestARestartDescribesAndDeletesNothing(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		if deletions, describes := restarted(w, stale{}); deletions != 0 || describes != 0 {
			t.Errorf("%d deletions, %d describes in five minutes", deletions, describes)
		}
	})
}

// A list that lacks live pods is not believed: AWS's controller deleted the branches of such pods.
// Source: github.com/aws/amazon-vpc-resource-controller-k8s/issues/412.
func TestARestartFromAListWithoutSomePodsDeletesNothing(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		if deletions, describes := restarted(w, stale{hide: "pod-1"}); deletions != 0 || describes != 0 {
			t.Errorf("%d deletions, %d describes in five minutes", deletions, describes)
		}
		w.distinct(names(20))
		for _, name := range names(20) {
			w.carries(name, "web")
		}
	})
}

// The counts above are not zero by themselves: if live reads do not find the pods either, their ten
// branches are deleted.
func TestDeletionsAfterARestartAreCounted(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		if deletions, _ := restarted(w, stale{hide: "pod-1", gone: "pod-1"}); deletions < 20 {
			t.Errorf("%d deletions, want ten disassociations and ten deletions", deletions)
		}
	})
}
