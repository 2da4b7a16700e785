package connectivity_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
)

func TestJUnitReport(t *testing.T) {
	r := connectivity.Report{
		Passed: 1, Failed: 1, Skipped: 1, Aborted: 1, Seconds: 12.5, Started: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Cases: []connectivity.Outcome{
			{Name: "dns/service", Asserts: "a pod resolves", Status: connectivity.Passed, Millis: 12},
			{Name: "pod-to-pod/other-node/1B", Asserts: "1 B arrives", Status: connectivity.Failed, Reason: "sent <1 B>; got \"timeout\"\ninspect: ip rule", Millis: 5000},
			{Name: "outside/source", Asserts: "the node's address", Status: connectivity.Skipped, Reason: "no host outside"},
			{Name: "health", Asserts: "all is ready", Status: connectivity.Aborted, Reason: "the run was stopped"},
		},
	}
	var out bytes.Buffer
	if err := r.JUnit(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "junit.xml", out.String())
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", name, diff)
	}
}
