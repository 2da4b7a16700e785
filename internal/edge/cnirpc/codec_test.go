package cnirpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func FuzzDecodeRequestNeverPanicsAndRoundTrips(f *testing.F) {
	f.Add([]byte(`{"version":1,"minVersion":1,"command":"ADD","config":{"a":[1]},"waitMillis":5}`))
	f.Add([]byte(`{"version":1,"command":"GC","config":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := DecodeRequest(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(req)
		if err != nil {
			t.Fatalf("encode the decoded request: %v", err)
		}
		second, err := DecodeRequest(again)
		if err != nil {
			t.Fatalf("decode the encoded request: %v", err)
		}
		second.Config, req.Config = nil, nil // spacing may differ
		if diff := cmp.Diff(req, second); diff != "" {
			t.Fatalf("round trip:\n%s", diff)
		}
	})
}

// EncodeRequest and encoding/json agree on every field of a request.
func FuzzARequestIsEncodedAsByEncodingJSON(f *testing.F) {
	f.Add("v1", "c1", "eth0", "/run/netns/a", `K8S_POD_NAME="a\b`, "{ \"a\": [1,\n 2] }", int64(5), int64(7), 2)
	f.Add("\x00\xff", "<&>", "\u2028", "é", "", "", int64(0), int64(-1), 0)
	f.Fuzz(func(t *testing.T, plugin, container, ifName, netns, args, config string, wait, spooled int64, version int) {
		req := Request{
			Version: version, MinVersion: version / 2, Plugin: plugin, Command: "ADD", ContainerID: container, IfName: ifName,
			Netns: netns, Args: args, WaitMillis: wait, SpooledAt: spooled,
		}
		if config != "" {
			req.Config = json.RawMessage(config)
		}
		if fields := reflect.TypeFor[Request]().NumField(); fields != 11 {
			t.Fatalf("a request has %d fields, this test sets 11", fields)
		}
		want, wantErr := json.Marshal(req)
		line, err := EncodeRequest(&req)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, encoding/json: %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if n := bytes.Count(line, []byte("\n")); n != 1 || line[len(line)-1] != '\n' {
			t.Fatalf("%d newlines in %q", n, line)
		}
		var ours, theirs Request
		var ourConfig, theirConfig any
		err = errors.Join(json.Unmarshal(line, &ours), json.Unmarshal(want, &theirs))
		if err == nil {
			err = errors.Join(json.Unmarshal(ours.Config, &ourConfig), json.Unmarshal(theirs.Config, &theirConfig))
		}
		if err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		ours.Config, theirs.Config = nil, nil // spacing and escapes may differ
		if diff := cmp.Diff(theirs, ours) + cmp.Diff(theirConfig, ourConfig); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestATextIsQuotedSoThatAnyReaderGetsIt(t *testing.T) {
	for _, s := range []string{"", "plain text ~", `a"b`, `a\b`, "a\tb", "a\nb", "é", "\x7f", "<&>"} {
		quoted, err := quote(s)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil || back != s {
			t.Errorf("%q is quoted as %s, which is read as %q (%v)", s, quoted, back, err)
		}
	}
	if quoted, err := quote("a\xff"); err != nil || !utf8.Valid(quoted) {
		t.Errorf("a text that is not UTF-8 is quoted as %q (%v)", quoted, err)
	}
}

func TestAValueThatCannotBeEncodedIsAnError(t *testing.T) {
	if line, err := EncodeLine(func() {}); err == nil {
		t.Errorf("a function is encoded as %q", line)
	}
}

// upper is a value with rules of its own.
type upper struct{}

var errUpper = errors.New("not in upper case")

func (*upper) UnmarshalJSON([]byte) error { return errUpper }

func TestAValueOfTheWrongTypeIsNamedByItsKey(t *testing.T) {
	var n int
	var wrong *json.UnmarshalTypeError
	if err := DecodeKeys([]byte(`{"a":1,"b":"x"}`), Key{"a", &n}, Key{"b", &n}); !errors.As(err, &wrong) || wrong.Field != "b" || n != 1 {
		t.Errorf("a text for a number: %v, field of %+v, read %d", err, wrong, n)
	}
	if err := DecodeKeys([]byte(`{"a":"x"}`), Key{"a", &upper{}}); !errors.Is(err, errUpper) {
		t.Errorf("a value that its type refuses: %v", err)
	}
}

// padded is a request with as many bytes as asked for, newline included.
func padded(t *testing.T, size int) []byte {
	t.Helper()
	req := Request{Version: Version, Command: "GC", Config: json.RawMessage(`""`)}
	raw, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	req.Config = json.RawMessage(`"` + strings.Repeat("x", size-len(raw)-1) + `"`)
	if raw, err = json.Marshal(req); err != nil || len(raw) != size-1 {
		t.Fatalf("%d bytes, %v; want %d", len(raw), err, size-1)
	}
	return append(raw, '\n')
}

func TestAMessageOfTheMaximumLengthPassesAndALongerOneDoesNot(t *testing.T) {
	longest := padded(t, MaxMessage)
	line, err := ReadLine(bytes.NewReader(longest), nil)
	if err != nil || len(line) != MaxMessage-1 {
		t.Fatalf("%d bytes, %v; want %d", len(line), err, MaxMessage-1)
	}
	req, err := DecodeRequest(line)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := EncodeLine(req); err != nil || !bytes.Equal(again, longest) {
		t.Errorf("encoded again: %d bytes, %v; want the same %d", len(again), err, len(longest))
	}
	req.Plugin = "x"
	if _, err := EncodeLine(req); !errors.Is(err, ErrTooLong) {
		t.Errorf("encoded with one byte more: %v, want ErrTooLong", err)
	}
	if _, err := EncodeRequest(req); !errors.Is(err, ErrTooLong) {
		t.Errorf("encoded as a request with one byte more: %v, want ErrTooLong", err)
	}
	req.Plugin = ""
	if again, err := EncodeRequest(req); err != nil || len(again) != MaxMessage {
		t.Errorf("encoded as a request: %d bytes, %v; want %d", len(again), err, MaxMessage)
	}
	if _, err := ReadLine(bytes.NewReader(padded(t, MaxMessage+1)), nil); !errors.Is(err, ErrTooLong) {
		t.Errorf("read with one byte more: %v, want ErrTooLong", err)
	}
	if _, err := DecodeRequest(longest); err != nil { // with its newline
		t.Errorf("decode a request of %d bytes: %v", len(longest), err)
	}
	if _, err := DecodeRequest(make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("decoded with one byte more: %v, want ErrTooLong", err)
	}
}

func TestALineIsReadFromAnyPieces(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		head string
		rest io.Reader
		want string
		err  error
	}{
		{"at once", "", strings.NewReader("{}\n"), "{}", nil},
		{"byte by byte", "", iotest.OneByteReader(strings.NewReader(strings.Repeat("x", 10000) + "\n")), strings.Repeat("x", 10000), nil},
		{"with the end of the file", "", iotest.DataErrReader(strings.NewReader("{}\n")), "{}", nil},
		{"a part before", "{", strings.NewReader("}\n"), "{}", nil},
		{"all before", "{}\n", iotest.ErrReader(broken), "{}", nil},
		{"more after the newline", "", strings.NewReader("{}\n{}\n"), "{}", nil},
		{"no newline", "", strings.NewReader("{}"), "", io.ErrUnexpectedEOF},
		{"nothing", "", strings.NewReader(""), "", io.ErrUnexpectedEOF},
		{"an error", "{", iotest.ErrReader(broken), "", broken},
	} {
		line, err := ReadLine(c.rest, []byte(c.head))
		if string(line) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %d bytes, %v; want %d, %v", c.name, len(line), err, len(c.want), c.err)
		}
	}
}

func TestAnInvalidRequestIsRefusedWithItsReason(t *testing.T) {
	for raw, want := range map[string]string{
		`{"version":1,"command":"ADD"`:                     "unexpected end of JSON",
		`{"version":0,"command":"ADD"}`:                    "run the agent's init container",
		`{"version":9,"minVersion":2,"command":"ADD"}`:     "upgrade the agent",
		`{"version":1}`:                                    "command is empty",
		`{"version":1,"command":"ADD","waitMillis":-1}`:    "waitMillis -1: must not be negative",
		`{"version":1,"command":"ADD","waitMillis":"1"}`:   "waitMillis",
		`{"version":9,"minVersion":1,"command":"ADD"}`:     "",
		`{"version":1,"minVersion":0,"command":"ADD"}`:     "",
		`{"version":1,"command":"ADD","unknown":{"a":[]}}`: "",
	} {
		req, err := DecodeRequest([]byte(raw))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v; want %q", raw, req, err, want)
		}
		if skew := strings.Contains(want, "agent"); skew != errors.Is(err, ErrSkew) {
			t.Errorf("%s: %v, want ErrSkew: %v", raw, err, skew)
		}
	}
}

func TestAnAnswerIsAResultOrAnError(t *testing.T) {
	for raw, want := range map[string]string{
		`{"version":1,"result":{"ips":[]}}`: "",
		`{"version":1}`:                     "",
		`{"version":1,"error":{"code":11,"msg":"no address","details":"later"}}`: "no address: later",
		`{"version":1,"error":{"code":7,"msg":"invalid"}}`:                       "invalid",
		`{"version":1,"result":{"ips":[]},"error":null,"later":{"than":"us"}}`:   "",
	} {
		resp, err := DecodeResponse([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		got := ""
		if resp.Error != nil {
			got = resp.Error.Error()
		}
		if got != want {
			t.Errorf("%s: error %q, want %q", raw, got, want)
		}
	}
	for _, raw := range []string{`{`, `[]`, `{"error":"no object"}`, `{"version":1,"result":{},"error":{"code":7,"msg":"x"}}`} {
		if resp, err := DecodeResponse([]byte(raw)); err == nil {
			t.Errorf("%s: %+v, want an error", raw, resp)
		}
	}
}
