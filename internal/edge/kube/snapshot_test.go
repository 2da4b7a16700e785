package kube_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/test/ondisk"
)

// A process that is killed during a save leaves a temporary file. They must not
// accumulate.
func TestKilledSavesLeaveNoFilesBehind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cluster.json")
	save := func() {
		t.Helper()
		if err := kube.SaveSnapshot(path, kube.Snapshot{Pods: []kube.Pod{{UID: "u1"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".cluster.json42"), make([]byte, 1<<16), 0o600); err != nil { // killed before the rename
		t.Fatal(err)
	}
	save()
	if s, err := kube.LoadSnapshot(path); err != nil || len(s.Pods) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v: want the snapshot alone", left, err)
	}
}

// After a power loss without the snapshot, an agent without a server knows no pod.
func TestASavedSnapshotIsOnTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.json")
	if err := kube.SaveSnapshot(path, kube.Snapshot{Pods: []kube.Pod{{UID: "u1"}}}); err != nil {
		t.Fatal(err)
	}
	ondisk.Check(t, path)
}

// A crash during a save leaves the old snapshot, because it is not written in place.
func TestASaveReplacesTheSnapshotWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.json")
	for _, uid := range []string{"old", "new"} {
		if err := kube.SaveSnapshot(path, kube.Snapshot{Pods: []kube.Pod{{UID: uid}}}); err != nil {
			t.Fatal(err)
		}
		if uid == "new" {
			continue
		}
		reader, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			defer reader.Close()
			if text, err := io.ReadAll(reader); err != nil || !strings.Contains(string(text), `"old"`) {
				t.Errorf("the file of the old snapshot has %q, %v", text, err)
			}
		})
	}
	if s, err := kube.LoadSnapshot(path); err != nil || len(s.Pods) != 1 || s.Pods[0].UID != "new" {
		t.Errorf("%+v, %v", s, err)
	}
}

// Versions before the backend podcidr wrote none.
func TestASnapshotWithoutPodCIDRsIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.json")
	if err := os.WriteFile(path, []byte(`{"version":1,"node":{"name":"n1","maxPods":58},"pods":[{"uid":"u1"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := kube.LoadSnapshot(path); err != nil || s.Node.MaxPods != 58 || len(s.Node.PodCIDRs) != 0 || len(s.Pods) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}
