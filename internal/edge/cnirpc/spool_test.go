package cnirpc

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/test/ondisk"
)

func TestReadSpoolReturnsEachDELOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	if got, err := ReadSpool(dir); err != nil || len(got) != 0 {
		t.Fatalf("a missing spool: %v, %v", got, err)
	}
	now := time.UnixMilli(1_700_000_000_000)
	for _, req := range []Request{
		{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{}`)},
		{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{"again":true}`)},
		{Command: "DEL", ContainerID: "c1", IfName: "eth1", Config: json.RawMessage(`{}`)},
		{Command: "DEL", ContainerID: strings.Repeat("../x", 200), IfName: "eth0", Config: json.RawMessage(`{}`)},
	} {
		if err := Spool(dir, req, now); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"torn" + spoolSuffix: `{"version":1,"comm`,
		"add" + spoolSuffix:  `{"version":1,"command":"ADD","containerID":"c","ifName":"e"}` + "\n",
		".tmp-123":           "left by a crash",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadSpool(dir)
	if err == nil || !strings.Contains(err.Error(), "torn.del") || !strings.Contains(err.Error(), "add.del") {
		t.Errorf("bad files reported as: %v", err)
	}
	if len(got) != 3 {
		t.Fatalf("%d DELs in the spool, want 3", len(got))
	}
	for _, s := range got {
		if s.Request.SpooledAt != now.UnixMilli() {
			t.Errorf("spooled at %d", s.Request.SpooledAt)
		}
		if s.Request.IfName == "eth0" && s.Request.ContainerID == "c1" && !strings.Contains(string(s.Request.Config), "again") {
			t.Error("the earlier of two DELs of an attachment was returned")
		}
		for range 2 {
			if err := s.Remove(); err != nil {
				t.Error(err)
			}
		}
	}
	if got, err := ReadSpool(dir); err != nil || len(got) != 0 {
		t.Errorf("after removal: %v, %v", got, err)
	}
}

// The runtime forgets a pod once its DEL has succeeded, so a DEL that a power failure
// removes from the spool leaks the pod's address.
func TestASpooledDELIsSyncedBeforeItHasItsNameAndItsNameAfterwards(t *testing.T) {
	dir := t.TempDir()
	req := Request{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{}`)}
	var synced []string
	err := spoolInto(dir, req, time.Now(), func(f *os.File) error {
		named, err := filepath.Glob(filepath.Join(dir, "*"+spoolSuffix))
		switch {
		case f.Name() == dir && len(named) == 1:
			synced = append(synced, "directory")
		case strings.HasPrefix(filepath.Base(f.Name()), tempPrefix) && len(named) == 0:
			text, err := os.ReadFile(f.Name())
			if err != nil || !strings.HasSuffix(string(text), "}\n") {
				t.Errorf("synced before it was written: %q, %v", text, err)
			}
			synced = append(synced, "file")
		default:
			t.Errorf("synced %s; DELs under their names: %v, %v", f.Name(), named, err)
		}
		return nil
	})
	if err != nil || !slices.Equal(synced, []string{"file", "directory"}) {
		t.Errorf("synced %v, %v; want the file and then the directory", synced, err)
	}
}

func TestASpooledDELIsOnTheDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	if err := Spool(dir, Request{Command: "DEL", ContainerID: "c1", IfName: "eth0"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	named, err := filepath.Glob(filepath.Join(dir, "*"+spoolSuffix))
	if err != nil || len(named) != 1 {
		t.Fatalf("spooled %v, %v; want one", named, err)
	}
	ondisk.Check(t, named[0])
}

func TestADELThatCannotBeSyncedIsNotSpooled(t *testing.T) {
	broken := errors.New("input/output error")
	for failing, left := range map[int]int{1: 0, 2: 1} {
		dir, n := t.TempDir(), 0
		err := spoolInto(dir, Request{Command: "DEL", ContainerID: "c1", IfName: "eth0"}, time.Now(), func(*os.File) error {
			if n++; n == failing {
				return broken
			}
			return nil
		})
		if !errors.Is(err, broken) {
			t.Errorf("sync %d fails: %v, want its error", failing, err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != left {
			t.Errorf("sync %d fails: %v left, %v; want %d", failing, files, err, left)
		}
	}
}

func TestSweepSpoolDeletesOldTemporaryFiles(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	for name, age := range map[string]time.Duration{".tmp-old": time.Hour, ".tmp-young": 0, "other": time.Hour} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("{"), 0o600), os.Chtimes(path, now, now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if err := SweepSpool(dir, now.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != ".tmp-young" || left[1].Name() != "other" {
		t.Errorf("left %v, %v; want the recent temporary file and the file that is not ours", left, err)
	}
}

func TestOnlyTheDELOfTheAttachmentIsFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	if _, ok, err := FindSpooled(dir, "c1", "eth0"); ok || err != nil {
		t.Fatalf("in a missing spool: %v, %v", ok, err)
	}
	if err := Spool(dir, Request{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{}`)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, other := range [][2]string{{"c1", "eth1"}, {"c2", "eth0"}, {"c1-eth0", ""}} {
		if s, ok, err := FindSpooled(dir, other[0], other[1]); ok || err != nil {
			t.Errorf("%v: found %+v, %v", other, s, err)
		}
	}
	s, ok, err := FindSpooled(dir, "c1", "eth0")
	if err != nil || !ok {
		t.Fatalf("not found: %v", err)
	}
	if pending, err := s.Pending(); !pending || err != nil {
		t.Errorf("pending %v, %v", pending, err)
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if pending, err := s.Pending(); pending || err != nil {
		t.Errorf("after its removal: pending %v, %v", pending, err)
	}
}

// Without an agent since the boot, no attachment of this boot exists.
func TestTheVolatileSpoolIsMadeBesideTheSocketOnly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	del := Request{Command: "DEL", ContainerID: "c1", IfName: "eth0", Config: json.RawMessage(`{}`)}
	if err := SpoolVolatile(socket, del, time.Now()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the socket's directory: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := SpoolVolatile(socket, del, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ReadSpool(VolatileSpool(socket)); err != nil || len(got) != 1 {
		t.Errorf("%d DELs, %v", len(got), err)
	}
}

// What each ADD costs.
func BenchmarkFindSpooledOfNone(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, ok, err := FindSpooled(dir, "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0", "eth0"); ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
