package cnirpc

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func del(container, ifName string) Request {
	return Request{Command: "DEL", ContainerID: container, IfName: ifName, Config: json.RawMessage(`{}`)}
}

// The runtime forgets a pod once its DEL has succeeded: every error must reach it.
func TestADELThatCannotBeSpooledIsAnError(t *testing.T) {
	dir := t.TempDir()
	file, taken := filepath.Join(dir, "file"), filepath.Join(dir, "taken")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.MkdirAll(filepath.Join(taken, spoolName("c1", "eth0"), "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	long := del("c1", "eth0")
	long.Args = strings.Repeat("x", MaxMessage)
	invalid := del("c1", "eth0")
	invalid.Config = json.RawMessage("{")
	now := time.Now()
	for want, err := range map[string]error{
		"create spool":           Spool(filepath.Join(file, "spool"), del("c1", "eth0"), now),
		"create spool: mkdir":    SpoolVolatile(filepath.Join(file, "agent.sock"), del("c1", "eth0"), now),
		"encode DEL":             Spool(filepath.Join(dir, "spool"), long, now),
		"encode DEL: unexpected": Spool(filepath.Join(dir, "spool"), invalid, now),
		"spool DEL: open":        spoolInto(filepath.Join(dir, "missing"), del("c1", "eth0"), now, (*os.File).Sync),
		"spool DEL: rename":      Spool(taken, del("c1", "eth0"), now),
		"remove spooled DEL":     Spooled{path: taken}.Remove(),
		"sync " + dir + "/gone":  Spooled{path: filepath.Join(dir, "gone", "x.del")}.Remove(),
		"sweep spool":            SweepSpool(file, now),
		"sweep spool: remove":    sweepDirectory(t),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want an error that begins with %q", err, want)
		}
	}
	if left, err := os.ReadDir(taken); err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v; want no temporary file", left, err)
	}
	if err := SweepSpool(filepath.Join(dir, "missing"), now); err != nil {
		t.Errorf("sweep of a missing spool: %v", err)
	}
}

// sweepDirectory sweeps a spool in which a directory has the name of a temporary file.
func sweepDirectory(t *testing.T) error {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, tempPrefix+"1", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	return SweepSpool(dir, time.Now().Add(time.Hour))
}

// What cannot be read now may be a valid DEL: it stays where it is.
func TestASpoolThatCannotBeReadIsReported(t *testing.T) {
	dir := t.TempDir()
	unread := filepath.Join(dir, spoolName("c1", "eth0"))
	if err := os.Mkdir(unread, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSpool(dir); len(got) != 0 || err == nil || !strings.Contains(err.Error(), "spooled DEL "+filepath.Base(unread)) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := os.Stat(unread); err != nil {
		t.Errorf("it was set aside: %v", err)
	}
	if s, ok, err := FindSpooled(dir, "c1", "eth0"); ok || err == nil || !strings.HasPrefix(err.Error(), "read spooled DEL") {
		t.Errorf("%+v, %v, %v", s, ok, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSpool(file); err == nil || !strings.HasPrefix(err.Error(), "read spool") {
		t.Errorf("a spool that is a file: %v, %v", got, err)
	}
	if pending, err := (Spooled{path: filepath.Join(file, "x.del")}).Pending(); pending || err == nil {
		t.Errorf("pending below a file: %v, %v", pending, err)
	}
}

func TestAFileWithoutTheAttachmentIsNoDEL(t *testing.T) {
	for what, content := range map[string]string{
		"no container": `{"version":1,"command":"DEL","ifName":"eth0"}` + "\n",
		"no interface": `{"version":1,"command":"DEL","containerID":"c1"}` + "\n",
		"an ADD":       `{"version":1,"command":"ADD","containerID":"c1","ifName":"eth0"}` + "\n",
		"no JSON":      "DEL\n",
		"too long":     strings.Repeat("x", MaxMessage+1) + "\n",
		"half a line":  `{"version":1,"command":"DEL","containerID":"c1","ifName":"eth0"}`,
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, spoolName("c1", "eth0"))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, ok, err := FindSpooled(dir, "c1", "eth0"); ok || err != nil {
			t.Errorf("%s: found %+v, %v", what, s, err)
		}
		if got, err := ReadSpool(dir); len(got) != 0 || !errors.Is(err, errInvalidDEL) {
			t.Errorf("%s: %v, %v; want that it is invalid", what, got, err)
		}
		if _, err := os.Stat(path + badSuffix); err != nil {
			t.Errorf("%s: it was not set aside: %v", what, err)
		}
	}
}

func TestTheNameOfASpooledDELIsOfItsAttachmentOnly(t *testing.T) {
	name := spoolName("azAZ09/:@[`{", "eth0")
	if !strings.HasPrefix(name, "azAZ09______-eth0-") || !strings.HasSuffix(name, spoolSuffix) {
		t.Errorf("%s", name)
	}
	names := map[string]bool{}
	for _, of := range [][2]string{{"a/b", "eth0"}, {"a:b", "eth0"}, {"a/b", "eth1"}, {"a", "b-eth0"}, {"a-b", "eth0"}} {
		names[spoolName(of[0], of[1])] = true
	}
	if len(names) != 5 {
		t.Errorf("five attachments have the names %v", names)
	}
	if name := spoolName(strings.Repeat("x", 500), strings.Repeat("y", 500)); len(name) > 255 {
		t.Errorf("%d characters, a file's name has 255", len(name))
	}
}

// The content decides, where two attachments have the same name of a file.
func TestAFileOfAnotherAttachmentIsNotItsDEL(t *testing.T) {
	for what, other := range map[string]Request{"another container": del("c2", "eth0"), "another interface": del("c1", "eth1")} {
		dir := t.TempDir()
		if err := Spool(dir, other, time.Now()); err != nil {
			t.Fatal(err)
		}
		if s, ok, err := FindSpooled(dir, other.ContainerID, other.IfName); !ok || err != nil || s.Request.ContainerID != other.ContainerID || s.Request.Command != "DEL" {
			t.Errorf("%s: its own DEL: %+v, %v, %v", what, s, ok, err)
		}
		path := filepath.Join(dir, spoolName("c1", "eth0"))
		if err := os.Rename(filepath.Join(dir, spoolName(other.ContainerID, other.IfName)), path); err != nil {
			t.Fatal(err)
		}
		if s, ok, err := FindSpooled(dir, "c1", "eth0"); ok || err != nil {
			t.Errorf("%s: found %+v, %v", what, s, err)
		}
	}
}

func TestAVolatileSpoolReportsWhatItCannotWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "spool"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SpoolVolatile(filepath.Join(dir, "agent.sock"), del("c1", "eth0"), time.Now()); err == nil || !strings.HasPrefix(err.Error(), "spool DEL: ") {
		t.Errorf("into a spool that is a file: %v", err)
	}
}

func TestALineEndsAtItsNewline(t *testing.T) {
	for _, c := range []struct {
		content, line string
		err           error
	}{
		{"a\nb\n", "a", nil},
		{"\n", "", nil},
		{"", "", io.ErrUnexpectedEOF},
		{"a", "", io.ErrUnexpectedEOF},
		{strings.Repeat("x", MaxMessage-1) + "\n", strings.Repeat("x", MaxMessage-1), nil},
		{strings.Repeat("x", MaxMessage) + "\n", "", ErrTooLong},
	} {
		for name, head := range map[string]int{"read": 0, "read in part": min(1, len(c.content))} {
			line, err := ReadLine(iotest.HalfReader(strings.NewReader(c.content[head:])), []byte(c.content[:head]))
			if string(line) != c.line || !errors.Is(err, c.err) {
				t.Errorf("%s %.10q of %d bytes: %d bytes, %v; want %d, %v", name, c.content, len(c.content), len(line), err, len(c.line), c.err)
			}
		}
	}
	broken := errors.New("broken")
	if line, err := ReadLine(iotest.ErrReader(broken), nil); !errors.Is(err, broken) || line != nil {
		t.Errorf("%q, %v", line, err)
	}
	// A reader may return nothing without an error.
	if line, err := ReadLine(iotest.DataErrReader(strings.NewReader("a\n")), nil); string(line) != "a" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if line, err := ReadLine(&empty{left: 3, then: strings.NewReader("a\n")}, nil); string(line) != "a" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
}

// empty is a reader that reads nothing for a number of times.
type empty struct {
	left int
	then io.Reader
}

func (e *empty) Read(p []byte) (int, error) {
	if e.left--; e.left >= 0 {
		return 0, nil
	}
	return e.then.Read(p)
}
