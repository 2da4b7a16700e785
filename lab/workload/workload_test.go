package workload

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pod holds the addresses of a server on 127.0.0.1.
type pod struct{ http, tcp, udp string }

func startPod(t *testing.T) pod {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := listen(ctx, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{pod: "web-1", namespace: "default", node: "node1"}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server ended with %v", err)
		}
	})
	return pod{http: l.http.Addr().String(), tcp: l.tcp.Addr().String(), udp: l.udp.LocalAddr().String()}
}

// call runs the program and returns its exit code and output.
func call(t *testing.T, stdin string, argv ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), append([]string{"/workload"}, argv...), Process{
		Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Environ: []string{"A=b"},
	})
	return code, out.String(), errs.String()
}

func result(t *testing.T, stdout string) Result {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	var r Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	return r
}

func TestDialTransfersAllSizesAndReportsTheSourceSeenByTheServer(t *testing.T) {
	p := startPod(t)
	for _, tc := range []struct{ probe, target string }{{"http", p.http}, {"tcp", p.tcp}, {"udp", p.udp}} {
		for _, size := range []int{0, 1, 8900, 1 << 20} {
			t.Run(tc.probe+" "+strconv.Itoa(size), func(t *testing.T) {
				code, out, _ := call(t, "", "dial", tc.probe, tc.target, "--size", strconv.Itoa(size))
				r := result(t, out)
				if code != 0 || !r.OK || r.Bytes != size {
					t.Fatalf("exit %d: %s", code, out)
				}
				if r.Source != r.Local || !r.Source.Addr().IsLoopback() {
					t.Errorf("source %s, local %s", r.Source, r.Local)
				}
				if r.Server.Pod != "web-1" || r.Server.Node != "node1" {
					t.Errorf("server %+v", r.Server)
				}
			})
		}
	}
}

func TestDialReportsTheKindOfFailure(t *testing.T) {
	p := startPod(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := closed.Addr().String()
	closed.Close()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, tc := range map[string]struct {
		args []string
		want Kind
	}{
		"no listener on tcp":           {[]string{"tcp", unused}, KindRefused},
		"no listener on http":          {[]string{"http", unused}, KindRefused},
		"no listener on udp":           {[]string{"udp", unused}, KindRefused},
		"no answer":                    {[]string{"udp", silent.LocalAddr().String(), "--timeout", "80ms"}, KindTimeout},
		"http to a tcp echo":           {[]string{"http", p.tcp}, KindOther},
		"tcp to a web server":          {[]string{"tcp", p.http, "--timeout", "80ms"}, KindTimeout},
		"the largest datagram with df": {[]string{"udp", p.udp, "--df", "--size", "65507", "--chunk", "65507"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, _ := call(t, "", append([]string{"dial"}, tc.args...)...)
			r := result(t, out)
			if tc.want == "" {
				if !r.OK {
					t.Errorf("%s", out)
				}
				return
			}
			if code != 1 || r.OK || r.Kind != tc.want || r.Error == "" {
				t.Errorf("exit %d, kind %q, want %q: %s", code, r.Kind, tc.want, out)
			}
		})
	}
}

func TestPMTUFindsTheMTUOfLoopback(t *testing.T) {
	p := startPod(t)
	_, out, _ := call(t, "", "dial", "pmtu", p.udp)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	want := min(lo.MTU, 65535)
	if r := result(t, out); !r.OK || r.MTU != want {
		t.Errorf("want MTU %d: %s", want, out)
	}
}

func TestStreamReportsNoLossWithoutDrops(t *testing.T) {
	p := startPod(t)
	for proto, target := range map[string]string{"tcp": p.tcp, "udp": p.udp} {
		t.Run(proto, func(t *testing.T) {
			code, out, _ := call(t, "", "dial", "stream", target, "--proto", proto, "--duration", "200ms", "--interval", "2ms")
			r := result(t, out)
			if code != 0 || r.Stream.Sent == 0 || r.Stream.Received != r.Stream.Sent || r.Stream.Lost != 0 {
				t.Errorf("exit %d: %s", code, out)
			}
			if r.Server == nil || r.Server.Pod != "web-1" {
				t.Errorf("no answer: %s", out)
			}
		})
	}
}

func TestStreamReportsDroppedNumbers(t *testing.T) {
	p := startPod(t)
	relay := startDroppingRelay(t, p.udp, 3)
	code, out, _ := call(t, "", "dial", "stream", relay, "--proto", "udp", "--duration", "1s", "--interval", "2ms")
	r := result(t, out)
	if code != 1 || r.OK || r.Stream.Lost == 0 || r.Stream.FirstLost[0] != 3 {
		t.Errorf("exit %d: %s", code, out)
	}
}

// startDroppingRelay forwards datagrams to a server, except every n-th.
func startDroppingRelay(t *testing.T, server string, n int) string {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	back, err := net.Dial("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close(); back.Close() })
	client := make(chan net.Addr, 1)
	go func() {
		buf := make([]byte, 2048)
		for count := 1; ; count++ {
			size, from, err := front.ReadFrom(buf)
			if err != nil {
				return
			}
			if count == 1 {
				client <- from
			}
			if count%n != 0 {
				_, _ = back.Write(buf[:size])
			}
		}
	}()
	go func() {
		to, buf := <-client, make([]byte, 2048)
		for {
			size, err := back.Read(buf)
			if err != nil {
				return
			}
			_, _ = front.WriteTo(buf[:size], to)
		}
	}()
	return front.LocalAddr().String()
}

func TestStreamReportsAClosedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("{\"pod\":\"x\"}\n"))
		_, _ = io.CopyN(conn, conn, 5*recordSize)
		conn.Close()
	}()
	code, out, _ := call(t, "", "dial", "stream", l.Addr().String(), "--duration", "5s", "--interval", "1ms")
	r := result(t, out)
	if code != 1 || !r.Stream.Interrupted || r.Kind != KindReset {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestCountsOfLostPendingAndDuplicateNumbers(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	l := newCounts(at(0))
	for i := range 4 {
		l.sent(at(i * 10))
	}
	for _, step := range []struct {
		number uint64
		ms     int
	}{{1, 1}, {3, 25}, {3, 26}} {
		if err := l.returned(step.number, at(step.ms)); err != nil {
			t.Fatal(err)
		}
	}
	s := l.result(at(40), 15*time.Millisecond)
	if s.Lost != 1 || s.FirstLost[0] != 2 || s.Duplicates != 1 || s.Received != 2 {
		t.Errorf("%+v: want 2 lost, 4 pending within the grace period, 3 a duplicate", s)
	}
	if s.LongestGapMicros != 24000 || s.LongestGapAt != 3 {
		t.Errorf("gap %d µs before %d, want 24000 before 3", s.LongestGapMicros, s.LongestGapAt)
	}
	if err := l.returned(9, at(41)); err == nil {
		t.Error("a number that was never sent was accepted")
	}
}

func TestAnInvalidCommandLineExitsWithTwoAndWithoutJSON(t *testing.T) {
	for _, argv := range [][]string{
		{},
		{"fly"},
		{"dial"},
		{"dial", "smoke", "x:1"},
		{"dial", "tcp"},
		{"dial", "tcp", "no-port"},
		{"dial", "tcp", "x:1", "--size", "-1"},
		{"dial", "tcp", "x:1", "extra"},
		{"dial", "tcp", "x:1", "--bogus"},
		{"dial", "stream", "x:1", "--proto", "sctp"},
		{"dial", "udp", "x:1", "--chunk", "0"},
		{"sleep"},
		{"sleep", "long"},
		{"tar", "zf", "-"},
		{"tar", "cf", "file", "x"},
		{"tar", "f", "-"},
		{"test", "-q", "x"},
		{"ls", "-z"},
	} {
		code, out, errs := call(t, "", argv...)
		if code != 2 || out != "" || errs == "" {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", argv, code, out, errs)
		}
	}
}

func TestTarPacksAndUnpacksATree(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "tree", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	big := string(payload(1 << 20))
	for path, text := range map[string]string{"tree/a": "hello", "tree/sub/big": big} {
		if err := os.WriteFile(filepath.Join(from, path), []byte(text), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(from, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	code, archive, errs := call(t, "", "tar", "cf", "-", filepath.Join(from, "tree"))
	if code != 0 {
		t.Fatal(errs)
	}
	// The two command lines with which kubectl cp unpacks.
	for _, flags := range [][]string{{"-xmf", "-"}, {"--no-same-permissions", "--no-same-owner", "-xmf", "-"}} {
		if code, _, errs := call(t, archive, append(append([]string{"tar"}, flags...), "-C", to)...); code != 0 {
			t.Fatal(flags, errs)
		}
		at := filepath.Join(to, from, "tree")
		if got, err := os.ReadFile(filepath.Join(at, "sub", "big")); err != nil || string(got) != big {
			t.Errorf("big: %d bytes, %v", len(got), err)
		}
		if got, err := os.ReadFile(filepath.Join(at, "link")); err != nil || string(got) != "hello" {
			t.Errorf("link: %q, %v", got, err)
		}
		if err := os.RemoveAll(filepath.Join(to, strings.Split(from, "/")[1])); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTarNeverWritesOutsideItsDirectory(t *testing.T) {
	outside := t.TempDir()
	for name, entries := range map[string][]tar.Header{
		"a name with ..":                   {{Typeflag: tar.TypeReg, Name: "../escaped"}},
		"a name with .. after a directory": {{Typeflag: tar.TypeReg, Name: "a/../../escaped"}},
		"an absolute link and a file below it": {
			{Typeflag: tar.TypeSymlink, Name: "way", Linkname: outside},
			{Typeflag: tar.TypeReg, Name: "way/escaped"},
		},
		"a relative link and a directory below it": {
			{Typeflag: tar.TypeSymlink, Name: "way", Linkname: ".."},
			{Typeflag: tar.TypeDir, Name: "way/escaped"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			inside := filepath.Join(parent, "inside")
			if err := os.Mkdir(inside, 0o755); err != nil {
				t.Fatal(err)
			}
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, e := range entries {
				if err := w.WriteHeader(&e); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			code, _, stderr := call(t, archive.String(), "tar", "xf", "-", "-C", inside)
			if code != 1 || !strings.Contains(stderr, "escape") {
				t.Errorf("exit %d: %s", code, stderr)
			}
			for _, dir := range []string{parent, outside} {
				if _, err := os.Lstat(filepath.Join(dir, "escaped")); err == nil {
					t.Errorf("it wrote into %s", dir)
				}
			}
		})
	}
}

func TestAppletsBehaveLikeCoreutils(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		argv []string
		code int
		out  string
	}{
		"true":                {[]string{"true"}, 0, ""},
		"false":               {[]string{"false"}, 1, ""},
		"test -d directory":   {[]string{"test", "-d", dir}, 0, ""},
		"test -d file":        {[]string{"test", "-d", file}, 1, ""},
		"test -e nothing":     {[]string{"test", "-e", file + "x"}, 1, ""},
		"[ -f file ]":         {[]string{"[", "-f", file, "]"}, 0, ""},
		"cat file":            {[]string{"cat", file}, 0, "text"},
		"cat stdin":           {[]string{"cat"}, 0, "in"},
		"cat nothing":         {[]string{"cat", file + "x"}, 1, ""},
		"ls":                  {[]string{"ls", dir}, 0, "f\n"},
		"env":                 {[]string{"env"}, 0, "A=b\n"},
		"sleep a millisecond": {[]string{"sleep", "0.001"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := call(t, "in", tc.argv...)
			if code != tc.code || out != tc.out {
				t.Errorf("exit %d %q (%s), want %d %q", code, out, errs, tc.code, tc.out)
			}
		})
	}
}

func TestALinkRunsItsApplet(t *testing.T) {
	var out bytes.Buffer
	code := Run(t.Context(), []string{"/bin/cat"}, Process{Stdin: strings.NewReader("x"), Stdout: &out, Stderr: io.Discard})
	if code != 0 || out.String() != "x" {
		t.Errorf("exit %d, %q", code, out.String())
	}
}

func TestReceivedTokensAreCountedAndTheOldestRemoved(t *testing.T) {
	var s receivedTokens
	from := netip.MustParseAddrPort("10.0.0.9:40000")
	s.note([]byte(tokenMark+"A"), from)
	s.note([]byte(tokenMark+"A"), from)
	s.note([]byte("no token"), from)
	if got := s.of("A"); got.Count != 2 || got.Sources[0] != from {
		t.Errorf("%+v", got)
	}
	for i := range 1000 {
		s.note([]byte(tokenMark+strconv.Itoa(i)), from)
	}
	if got := s.of("A"); got.Count != 0 {
		t.Errorf("the oldest of 1,001 tokens was kept: %+v", got)
	}
}

// The sum over a header with a valid checksum is zero (RFC 1071).
func TestASpoofedPacketHasAValidHeaderChecksum(t *testing.T) {
	p := udpPacket(netip.MustParseAddrPort("10.0.9.9:1"), netip.MustParseAddrPort("10.0.0.7:8082"), []byte("hi"))
	if checksum(p[:20]) != 0 || len(p) != 30 || p[12] != 10 || p[14] != 9 {
		t.Errorf("% x", p)
	}
}
