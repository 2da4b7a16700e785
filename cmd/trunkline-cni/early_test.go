package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// build makes the plugin, as it is shipped or without its early part.
func build(t testing.TB, entry ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "trunkline-cni")
	flags := "-w"
	for _, e := range entry {
		flags += " -E " + e
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// seen is one request as the agent had it.
type seen struct {
	req     cnirpc.Request
	netns   bool
	threads string // of the process that asked: Go's runtime starts more than one
}

// asked is what came of one call of a program.
type asked struct {
	exit int
	said string
	seen []seen
}

// runEarly has a program call an agent that gives one answer. change is about
// the command: its environment, its standard streams.
func runEarly(t *testing.T, program, stdin, spool string, answer cnirpc.Response, change func(*exec.Cmd)) (got asked) {
	t.Helper()
	cmd := exec.Command(program)
	started := make(chan struct{})
	var mu sync.Mutex // around got
	socket := agent(t, func(_ context.Context, req *cnirpc.Request, netns *os.File) (json.RawMessage, *cnirpc.Error) {
		<-started
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			t.Error(err)
		}
		threads := regexp.MustCompile(`Threads:\s*(\d+)`).FindSubmatch(status)
		mu.Lock()
		defer mu.Unlock()
		got.seen = append(got.seen, seen{*req, netns != nil, string(threads[1])})
		return answer.Result, answer.Error
	})
	cmd.Stdin = strings.NewReader(strings.NewReplacer("SOCKET", socket, "SPOOL", spool).Replace(stdin))
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	change(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	close(started)
	err := cmd.Wait()
	mu.Lock()
	defer mu.Unlock()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	got.exit, got.said = cmd.ProcessState.ExitCode(), strings.ReplaceAll(said.String(), socket, "SOCKET")
	for i := range got.seen {
		r := &got.seen[i].req
		r.Config = json.RawMessage(strings.ReplaceAll(string(r.Config), socket, "SOCKET"))
		if r.WaitMillis < 15_000 || r.WaitMillis > 20_000 {
			t.Errorf("the plugin is ready to wait %d ms", r.WaitMillis)
		}
		r.WaitMillis = 0
	}
	return got
}

// The same call means the same whether early does it or main.
func TestEarlyDoesWhatMainDoes(t *testing.T) {
	early, late := build(t, "main.start"), build(t)
	const conf = `{"cniVersion":"1.0.0","name":"n","type":"trunkline-cni","socket":"SOCKET","spool":"SPOOL","addWaitSeconds":20,"delWaitSeconds":20`
	good := cnirpc.Response{Result: json.RawMessage(`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.7/32"}],"dns":{}}`)}
	none := cnirpc.Response{}
	refused := cnirpc.Response{Error: &cnirpc.Error{Code: 101, Msg: "no", Details: `a "quoted" <word>`}}
	for _, c := range []struct {
		name, command, stdin string
		change               func(*exec.Cmd)
		answer               cnirpc.Response
		early                bool // no runtime was there when the agent was asked
		exit                 int
	}{
		{"an ADD", "ADD", conf + "}", nil, good, true, 0},
		{"an ADD over several lines", "ADD", "\n" + strings.ReplaceAll(conf, ",", ",\r\n\t") + "\n}\n", nil, good, true, 0},
		{"an ADD with arguments", "ADD", conf + "}", with("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web"), good, true, 0},
		{"arguments that JSON escapes", "ADD", conf + "}", with(`CNI_ARGS=A="b"\`), good, false, 0},
		{"arguments that are no ASCII", "ADD", conf + "}", with("CNI_ARGS=A=é"), good, false, 0},
		{"an answer without a result", "ADD", conf + "}", nil, none, true, 0},
		{"an ADD that is refused", "ADD", conf + "}", nil, refused, true, 1},
		{"a DEL", "DEL", conf + "}", nil, none, true, 0},
		{"a DEL with what was added", "DEL", conf + `,"prevResult":{"ips":[{"address":"10.0.0.7/32","socket":"/x"}],"s":"}\"{"}}`, nil, none, true, 0},
		{"a DEL that is refused", "DEL", conf + "}", nil, refused, true, 0},
		{"a DEL of a namespace that is gone", "DEL", conf + "}", with("CNI_NETNS=/nonexistent"), none, false, 0},
		{"a DEL without a namespace", "DEL", conf + "}", with("CNI_NETNS="), none, false, 0},
		{"a CHECK", "CHECK", conf + "}", nil, none, false, 0},
		{"a key spelled otherwise", "ADD", conf + `,"Spool":"/x"}`, nil, good, false, 0},
		{"a key given twice", "ADD", conf + `,"name":"m"}`, nil, good, false, 0},
		{"a key that is escaped", "ADD", conf + `,"n\u0061me":"m"}`, nil, good, false, 0},
		{"a key beyond ASCII that is ours", "ADD", conf + `,"ſpool":"/x"}`, nil, good, false, 0},
		{"a wait with a fraction", "ADD", strings.Replace(conf, "20", "20.0", 1) + "}", nil, good, false, 0},
		{"a long configuration", "ADD", conf + `,"x":"` + strings.Repeat("y", 20_000) + `"}`, nil, good, false, 0},
		{"a namespace that is none", "ADD", conf + "}", with("CNI_NETNS=/dev/null"), good, true, 1},
		{"no JSON, in a place of no interest", "ADD", conf + `,"x":truth}`, nil, good, true, 1},
		{"a version from the future", "ADD", strings.Replace(conf, "1.0.0", "9.0.0", 1) + "}", nil, good, false, 1},
		{"a container that is a path", "ADD", conf + "}", with("CNI_CONTAINERID=../x"), good, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			spool := filepath.Join(t.TempDir(), "spool")
			run := func(program string) asked {
				return runEarly(t, program, c.stdin, spool, c.answer, func(cmd *exec.Cmd) {
					for k, v := range environment(c.command) {
						cmd.Env = append(cmd.Env, k+"="+v)
					}
					if c.change != nil {
						c.change(cmd)
					}
				})
			}
			got, want := run(early), run(late)
			if got.exit != c.exit || got.exit != want.exit || got.said != want.said || len(got.seen) != len(want.seen) {
				t.Fatalf("early: exit %d, %q, %d requests; main: exit %d, %q, %d requests; want exit %d",
					got.exit, got.said, len(got.seen), want.exit, want.said, len(want.seen), c.exit)
			}
			for i := range got.seen {
				a, b := got.seen[i], want.seen[i]
				if same(a.req) != same(b.req) || a.netns != b.netns {
					t.Errorf("early asks %s (namespace: %v), main %s (%v)", same(a.req), a.netns, same(b.req), b.netns)
				}
				if (a.threads == "1") != c.early || b.threads == "1" {
					t.Errorf("early asked with %s threads, main with %s", a.threads, b.threads)
				}
			}
		})
	}
}

// with sets a variable anew.
func with(variable string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, variable) } // the last of a name counts
}

// same is a request as JSON, its configuration without blanks.
func same(r cnirpc.Request) string {
	raw, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// processMemory lays an environment out as the kernel does.
func processMemory(env []string) unsafe.Pointer {
	program := []byte("plugin\x00")
	words := []unsafe.Pointer{nil, unsafe.Pointer(&program[0]), nil}
	*(*int)(unsafe.Pointer(&words[0])) = 1 // argc
	for _, v := range env {
		text := append([]byte(v), 0)
		words = append(words, unsafe.Pointer(&text[0]))
	}
	words = append(words, nil)
	return unsafe.Pointer(&words[0])
}

// What the kernel hands over counts as os.Getenv has it: the first of a name, also where
// it is empty. Nothing is overlooked at the end of a long environment.
func TestEarlyReadsTheEnvironmentAsGetenvDoes(t *testing.T) {
	var base []string
	for k, v := range environment("ADD") {
		base = append(base, k+"="+v)
	}
	for _, c := range []struct {
		name string
		env  []string
		args string
	}{
		{"a variable given twice", []string{"CNI_ARGS=A=1", "CNI_ARGS=A=2"}, "A=1"},
		{"an empty variable given again", []string{"CNI_ARGS=", "CNI_ARGS=A=2"}, ""},
		{"words that are no variables", []string{"CNI_ARGS", "=CNI_ARGS=A=1", "", "CNI_ARGS=A=2"}, "A=2"},
		{"more variables than anybody sets", append(slices.Repeat([]string{"A=B"}, 1<<16), "CNI_ARGS=A=2"), "A=2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok := environmentAt(processMemory(append(slices.Clone(base), c.env...)))
			if !ok || got.args != c.args {
				t.Errorf("plain: %v, arguments %q; want %q", ok, got.args, c.args)
			}
		})
	}
}

// Where early takes a call, main would have sent the same request to the same socket,
// or the agent refuses it.
func FuzzEarlySendsWhatMainWouldSend(f *testing.F) {
	const conf = `{"cniVersion":"1.0.0","name":"n","socket":"/s","spool":"/p","addWaitSeconds":20,"delWaitSeconds":2}`
	f.Add("ADD", "c1", "eth0", "/n", "A=b", conf)
	f.Add("DEL", "c1", "eth0", "/n", "", strings.ReplaceAll(conf, ",", ",\n "))
	f.Add("ADD", "c1", "eth0", "/n", "", strings.Replace(conf, "20", "600", 1))
	for _, odd := range []string{
		`{"a":[}]`, `{"a":{]}`, `"a`, `{"a":tru}`, `{"a":1,}`, `{"a":"\u000"}`, "{\"a\":\"\xff\"}", `{"a":1}{`, `[1]`, `{"a":1 2}`, `{"SOCKET":"/x"}`, `{"soc\u212aet":"/x"}`, `{"name":null}`,
		`{"socket":"a"}`, `{"addWaitSeconds":0}`, `{"addWaitSeconds":007}`, `{"delWaitSeconds":1e1}`, `{"a":"\`, "{\"a\":\"\n\"}", "{\"a\":\"\\\n\"}", `{"":""}`, `{"x":-}`,
	} {
		f.Add("ADD", "c1", "eth0", "/n", "", conf[:len(conf)-1]+","+odd[1:])
		f.Add("ADD", "c1", "eth0", "/n", "", odd)
	}
	f.Fuzz(func(t *testing.T, command, container, ifName, netns, args, stdin string) {
		values := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": ifName, "CNI_NETNS": netns, "CNI_ARGS": args, "CNI_PATH": "/p"}
		var env []string
		for k, v := range values {
			if strings.ContainsRune(v, 0) {
				return
			}
			env = append(env, k+"="+v)
		}
		e, ok := environmentAt(processMemory(env))
		if !ok {
			return
		}
		raw := []byte(stdin)
		c, ok := plainConfig(raw)
		if !ok {
			return
		}
		head, tail, ok := compose(make([]byte, earlyHeadMax), make([]byte, 64), &e, &c)
		if !ok {
			return
		}
		line := string(head) + string(raw) + strings.TrimSuffix(string(tail), "\n")
		if strings.Contains(line, "\n") {
			t.Fatalf("%q is more than a line", line)
		}
		got, err := cnirpc.DecodeRequest([]byte(line))
		if err != nil {
			if json.Valid([]byte(stdin)) {
				t.Fatalf("%v: %s", err, line)
			}
			return
		}
		want, refusal := parse(func(k string) string { return values[k] }, strings.NewReader(stdin))
		if refusal != nil {
			t.Fatalf("main refuses %q: %v", stdin, refusal)
		}
		wait := want.conf.addWait
		if command == "DEL" {
			wait = want.conf.delWait
		}
		want.request.Version, want.request.MinVersion, want.request.WaitMillis = cnirpc.Version, cnirpc.MinVersion, wait.Milliseconds()
		if same(*got) != same(want.request) || c.socket != want.conf.Socket || c.wait(command) != wait {
			t.Errorf("early: %s to %s for %v\nmain:  %s to %s for %v", same(*got), c.socket, c.wait(command), same(want.request), want.conf.Socket, wait)
		}
	})
}

// What early takes for success is what main would have printed.
func FuzzEarlyReadsAnswersAsMainDoes(f *testing.F) {
	for _, r := range []cnirpc.Response{
		{Version: 1, Agent: "v1"},
		{Version: 12, Agent: `v"1`},
		{Version: 1, Agent: "v1", Result: json.RawMessage(`{"cniVersion":"1.0.0"}`)},
		{Version: 1, Result: json.RawMessage(`{}`)},
		{Version: 1, Agent: "v1", Error: &cnirpc.Error{Code: 1, Msg: `"result":{}`}},
		{Version: 1, Agent: "v1", Result: json.RawMessage(`null`)},
	} {
		line, err := cnirpc.EncodeLine(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(strings.TrimSuffix(string(line), "\n"))
	}
	for _, odd := range []string{
		"", "{", `{"version":1,"agent":"`, `{"version":1,"agent":"a"`, `{"version":1,"agent":"a","result":`, `{"version":1,"agent":"a","result":{`, `{"version":1,"agent":"a","result":{}`,
		`{"version":1,"agent":"a","result":{},"error":{"code":1}}`, `{"version":1,"agent":"a","result":{}}`, `{"version":1,"agent":"a","result":{"a":"}"}}`,
	} {
		f.Add(odd)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := success([]byte(line))
		if !ok || !json.Valid([]byte(line)) {
			return
		}
		want, err := cnirpc.DecodeResponse([]byte(line))
		if err != nil || want.Error != nil {
			t.Fatalf("%q: early takes it for success, main has %v, %v", line, want, err)
		}
		var plain, same strings.Builder
		if err := errors.Join(json.NewEncoder(&plain).Encode(json.RawMessage(got)), json.NewEncoder(&same).Encode(want.Result)); len(got) > 0 && (err != nil || plain.String() != same.String()) {
			t.Errorf("%q: early has %q, main %q", line, got, want.Result)
		}
	})
}

// Early's code runs before Go's runtime does: it may call itself, move memory and make
// system calls. What a failed check of bounds would call is never reached; the fuzz
// tests see to that.
func TestEarlyNeedsNoRuntime(t *testing.T) {
	allowed := regexp.MustCompile(`^(runtime\.(panic\w*|morestack\w*|memmove|memequal|gcWriteBarrier\w*|duffzero|duffcopy)|_rt0_\w+_linux|internal/runtime/syscall/linux\.Syscall6|syscall\.RawSyscall6?)(\.abi0)?$`)
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			t.Setenv("GOARCH", arch)
			calls := callsOf(t, build(t, "main.start"))
			seen, left := map[string]bool{}, []string{"main.start"}
			for len(left) > 0 {
				at := left[0]
				left = left[1:]
				if seen[at] {
					continue
				}
				seen[at] = true
				for _, callee := range calls[at] {
					switch {
					case strings.HasPrefix(callee, "main."):
						left = append(left, callee)
					case !allowed.MatchString(callee):
						t.Errorf("%s calls %s", at, callee)
					}
				}
			}
			if !seen["main.plainConfig"] || !seen["main.earlyCall"] {
				t.Fatalf("the functions reached are %v: the test would hold for nothing", seen)
			}
		})
	}
}

// callsOf lists what each function of package main calls, in the built program.
func callsOf(t *testing.T, binary string) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "tool", "objdump", "-s", `^main\.`, binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	calls, function := map[string][]string{}, ""
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "TEXT "); ok {
			function, _, _ = strings.Cut(name, "(SB)")
			continue
		}
		m := regexp.MustCompile(`\b(CALL|JMP)\s+(.*\S)`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if callee, named := strings.CutSuffix(m[2], "(SB)"); named {
			calls[function] = append(calls[function], callee)
		} else if m[1] == "CALL" {
			calls[function] = append(calls[function], "a function nobody knows: "+m[2])
		}
	}
	return calls
}
