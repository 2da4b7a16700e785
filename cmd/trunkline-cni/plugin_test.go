package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc/cniserver"
)

// TestMain runs the test binary as the plugin when it is started under the plugin's name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "trunkline-cni" {
		main()
		return
	}
	os.Exit(m.Run())
}

// handler carries out a call and returns the answer.
type handler func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error)

// agent serves the agent's end of the wire with handle at a new socket.
func agent(t testing.TB, handle handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	agentAt(t, socket, handle)
	return socket
}

func agentAt(t testing.TB, socket string, handle handler) {
	t.Helper()
	l, err := cniserver.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := cniserver.Server{Agent: "test", UID: uint32(os.Getuid()), Handle: func(ctx context.Context, req *cnirpc.Request, netns *os.File, answer cniserver.Answer) {
		answer(handle(ctx, req, netns))
	}}
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// result is an ADD result at the configuration's CNI version.
func result(req *cnirpc.Request) (json.RawMessage, *cnirpc.Error) {
	var c struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(req.Config, &c); err != nil {
		return nil, &cnirpc.Error{Code: cnirpc.CodeDecode, Msg: err.Error()}
	}
	return json.RawMessage(`{"cniVersion":"` + c.CNIVersion + `","interfaces":[{"name":"` + req.IfName + `","sandbox":"` + req.Netns + `"}],"ips":[{"address":"10.0.0.7/32","interface":0}]}`), nil
}

func refusing(code uint, msg string) handler {
	return func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error) {
		return nil, &cnirpc.Error{Code: code, Msg: msg, Details: "because"}
	}
}

// invoke runs the plugin in this process and returns its exit code and stdout.
func invoke(t testing.TB, env map[string]string, stdin string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	p := plugin{env: func(k string) string { return env[k] }, stdin: strings.NewReader(stdin), stdout: &out, now: func() time.Time { return time.UnixMilli(1) }}
	return p.run(), out.String()
}

func environment(command string) map[string]string {
	return map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0",
		"CNI_NETNS": "/proc/self/ns/net", "CNI_PATH": "/opt/cni/bin",
	}
}

func TestInvalidCallsAreRefusedWithTheSpecifiedCode(t *testing.T) {
	good := `{"cniVersion":"1.1.0","name":"n","socket":"/nonexistent/s","addWaitSeconds":0.01,"delWaitSeconds":0.01}`
	for _, c := range []struct {
		name, command string
		change        map[string]string
		stdin         string
		code          uint
		text          string // part of the message or its details
	}{
		{"an unknown command", "FLY", nil, good, 4, "FLY"},
		{"ADD without a container", "ADD", map[string]string{"CNI_CONTAINERID": ""}, good, 4, "CNI_CONTAINERID"},
		{"a container ID that is a path", "ADD", map[string]string{"CNI_CONTAINERID": "../x"}, good, 4, "../x"},
		{"an interface name with a slash", "ADD", map[string]string{"CNI_IFNAME": "a/b"}, good, 4, "interface name"},
		{"an interface name too long for the kernel", "DEL", map[string]string{"CNI_IFNAME": "sixteen-letters-"}, good, 4, "too long"},
		{"empty stdin", "ADD", nil, "", 6, "JSON"},
		{"stdin that is not JSON", "ADD", nil, "hello", 6, "JSON"},
		{"a version that is a number", "ADD", nil, `{"cniVersion":1,"name":"n"}`, 6, "cniVersion: number, must be a string"},
		{"a list", "ADD", nil, `[]`, 6, "the configuration: array, must be an object"},
		{"null", "ADD", nil, `null`, 7, "network name"},
		{"a socket that is a number", "ADD", nil, `{"cniVersion":"1.0.0","name":"n","socket":5}`, 6, "socket: number, must be a string"},
		{"a wait that is a string", "ADD", nil, `{"cniVersion":"1.0.0","name":"n","addWaitSeconds":"5"}`, 6, "addWaitSeconds: string, must be a number"},
		{"a wait that overflows a float", "ADD", nil, `{"cniVersion":"1.0.0","name":"n","addWaitSeconds":1e400}`, 6, "addWaitSeconds: number 1e400"},
		{"a wait of a year", "ADD", nil, `{"cniVersion":"1.0.0","name":"n","delWaitSeconds":31536000}`, 7, "delWaitSeconds"},
		{"two configurations", "ADD", nil, good + good, 6, "after top-level value"},
		{"JSON nested too deeply", "ADD", nil, strings.Repeat("[", 20000), 6, "max depth"},
		{"a name that is a path", "ADD", nil, `{"cniVersion":"1.0.0","name":"../n"}`, 7, "../n"},
		{"a relative spool", "DEL", nil, `{"cniVersion":"1.0.0","name":"n","spool":"s"}`, 7, "spool"},
		{"a configuration that is too long", "ADD", nil, `{"name":"` + strings.Repeat("x", maxConfig), 7, "too long"},
		{"no name", "ADD", nil, `{"cniVersion":"1.0.0"}`, 7, "network name"},
		{"an unsupported version", "ADD", nil, `{"cniVersion":"9.0.0","name":"n"}`, 1, "9.0.0"},
		{"no version", "ADD", nil, `{"name":"n"}`, 1, "cniVersion"},
		{"STATUS at a version without it", "STATUS", nil, `{"cniVersion":"1.0.0","name":"n"}`, 1, "STATUS"},
		{"a relative socket", "ADD", nil, `{"cniVersion":"1.0.0","name":"n","socket":"s"}`, 7, "socket"},
		{"a negative wait", "ADD", nil, `{"cniVersion":"1.0.0","name":"n","addWaitSeconds":-1}`, 7, "addWaitSeconds"},
		{"a missing namespace", "ADD", map[string]string{"CNI_NETNS": "/nonexistent"}, good, 8, "/nonexistent"},
		{"ADD without an agent", "ADD", nil, good, 11, "does not answer"},
		{"CHECK without an agent", "CHECK", nil, good, 11, "does not answer"},
		{"STATUS without an agent", "STATUS", nil, good, 50, "does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := environment(c.command)
			maps.Copy(env, c.change)
			exit, out := invoke(t, env, c.stdin)
			var e struct {
				CNIVersion string `json:"cniVersion"`
				types.Error
			}
			if err := json.Unmarshal([]byte(out), &e); err != nil {
				t.Fatalf("stdout %q: %v", out, err)
			}
			if exit != 1 || e.Code != c.code || !strings.Contains(e.Msg+e.Details, c.text) || e.CNIVersion == "" {
				t.Errorf("exit %d, %+v; want code %d and %q", exit, e, c.code, c.text)
			}
		})
	}
}

// A message ends with a newline, so the configuration's own must not reach the wire.
func TestTheAgentReceivesTheCallUnchanged(t *testing.T) {
	for _, c := range []struct {
		name, command string
		variables     map[string]string
		more          string // of the configuration
	}{
		{"a configuration over several lines", "ADD", nil, ",\r\n\t\"a\": [1,\n2]\n"},
		{"a long configuration", "ADD", nil, `,"a":"` + strings.Repeat("x", 20_000) + `"`},
		{"arguments that JSON escapes", "ADD", map[string]string{"CNI_ARGS": `A="b"\<`}, ""},
		{"arguments that are not ASCII", "ADD", map[string]string{"CNI_ARGS": "A=é"}, ""},
		{"a DEL with the result of the ADD", "DEL", nil, `,"prevResult":{"ips":[{"address":"10.0.0.7/32"}],"s":"}\"{"}`},
		{"a DEL of a namespace that is gone", "DEL", map[string]string{"CNI_NETNS": "/nonexistent"}, ""},
		{"a DEL without a namespace", "DEL", map[string]string{"CNI_NETNS": ""}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			received := make(chan cnirpc.Request, 1)
			withNetns := make(chan bool, 1)
			socket := agent(t, func(_ context.Context, req *cnirpc.Request, netns *os.File) (json.RawMessage, *cnirpc.Error) {
				received <- *req
				withNetns <- netns != nil
				return nil, nil
			})
			env := environment(c.command)
			maps.Copy(env, c.variables)
			stdin := `{"cniVersion":"1.0.0","name":"n","socket":"` + socket + `"` + c.more + `}`
			if exit, out := invoke(t, env, stdin); exit != 0 || out != "" {
				t.Fatalf("exit %d, stdout %q", exit, out)
			}
			got := <-received
			var config bytes.Buffer
			if err := json.Compact(&config, []byte(stdin)); err != nil {
				t.Fatal(err)
			}
			if string(got.Config) != config.String() || got.Command != c.command || got.Args != env["CNI_ARGS"] || got.Netns != env["CNI_NETNS"] {
				t.Errorf("the agent received %+v", got)
			}
			_, err := os.Stat(env["CNI_NETNS"])
			if sent, want := <-withNetns, err == nil; sent != want {
				t.Errorf("namespace %q: sent %v, want %v", env["CNI_NETNS"], sent, want)
			}
		})
	}
}

// The agent alone checks these keys: a DEL must not fail because of them.
func TestDELSucceedsWithMalformedRuntimeState(t *testing.T) {
	for _, odd := range []string{`"prevResult":5`, `"prevResult":{"ips":[{"address":"x"}]}`, `"runtimeConfig":[1]`, `"cni.dev/valid-attachments":"all"`} {
		spool := filepath.Join(t.TempDir(), "spool")
		exit, out := invoke(t, environment("DEL"), `{"cniVersion":"1.0.0","name":"n","socket":"/nonexistent/s","delWaitSeconds":0.01,"spool":"`+spool+`",`+odd+`}`)
		if entries, err := os.ReadDir(spool); exit != 0 || err != nil || len(entries) != 1 {
			t.Errorf("%s: exit %d, %s, %d spooled, %v", odd, exit, out, len(entries), err)
		}
	}
}

func TestDELWithoutAnAgentIsSpooledAndSucceeds(t *testing.T) {
	spool := filepath.Join(t.TempDir(), "spool")
	stdin := `{"cniVersion":"1.0.0","name":"n","socket":"/nonexistent/s","delWaitSeconds":0.01,"spool":"` + spool + `"}`
	env := environment("DEL")
	env["CNI_NETNS"] = "/run/netns/gone"
	for range 2 {
		if exit, out := invoke(t, env, stdin); exit != 0 || out != "" {
			t.Fatalf("exit %d, stdout %q", exit, out)
		}
	}
	got, err := cnirpc.ReadSpool(spool)
	if err != nil || len(got) != 1 {
		t.Fatalf("spool holds %d DELs, %v", len(got), err)
	}
	if r := got[0].Request; r.ContainerID != "c1" || r.IfName != "eth0" || string(r.Config) != stdin {
		t.Errorf("spooled %+v", r)
	}
}

func TestDELRefusedByTheAgentIsSpooled(t *testing.T) {
	spool := filepath.Join(t.TempDir(), "spool")
	socket := agent(t, refusing(cnirpc.CodeInternal, "disk full"))
	exit, out := invoke(t, environment("DEL"), `{"cniVersion":"1.0.0","name":"n","socket":"`+socket+`","spool":"`+spool+`"}`)
	if got, err := cnirpc.ReadSpool(spool); exit != 0 || len(got) != 1 || err != nil {
		t.Errorf("exit %d, stdout %q, %d spooled, %v", exit, out, len(got), err)
	}
}

// The disk is full or read-only.
func TestADELThatTheDiskDoesNotTakeIsSpooledBesideTheSocket(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "agent.sock"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit, out := invoke(t, environment("DEL"), `{"cniVersion":"1.0.0","name":"n","socket":"`+socket+`","delWaitSeconds":0,"spool":"`+file+`/x"}`)
	if got, err := cnirpc.ReadSpool(cnirpc.VolatileSpool(socket)); exit != 0 || len(got) != 1 || err != nil {
		t.Errorf("exit %d, stdout %q, %d spooled, %v", exit, out, len(got), err)
	}
}

func TestDELFailsWithoutAgentAndSpool(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit, out := invoke(t, environment("DEL"), `{"cniVersion":"1.0.0","name":"n","socket":"/nonexistent/s","delWaitSeconds":0,"spool":"`+file+`/x"}`)
	if exit != 1 || !strings.Contains(out, "spool") {
		t.Errorf("exit %d, stdout %q", exit, out)
	}
}

// network is a configuration list as the agent writes it, with no further plugin.
func network(t testing.TB, version, socket string) (*libcni.CNIConfig, *libcni.NetworkConfigList) {
	t.Helper()
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "trunkline-cni")); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion":"` + version + `","name":"trunkline","plugins":[{"type":"trunkline-cni","socket":"` + socket + `","delWaitSeconds":20,"spool":"` + t.TempDir() + `"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), nil), list
}

func TestLibcniRunsEveryCommandAtEveryVersion(t *testing.T) {
	for _, version := range supported() {
		t.Run(version, func(t *testing.T) { everyCommand(t, version) })
	}
}

func everyCommand(t *testing.T, version string) {
	received := make(chan cnirpc.Request, 10)
	socket := agent(t, func(_ context.Context, req *cnirpc.Request, netns *os.File) (json.RawMessage, *cnirpc.Error) {
		received <- *req
		if req.Command != "ADD" {
			return nil, nil
		}
		if netns == nil {
			return nil, &cnirpc.Error{Code: cnirpc.CodeInvalidNetns, Msg: "no descriptor"}
		}
		return result(req)
	})
	cni, list := network(t, version, socket)
	rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/proc/self/ns/net", IfName: "eth0", Args: [][2]string{{"K8S_POD_NAME", "web"}}}
	added, err := cni.AddNetworkList(t.Context(), list, rt)
	if err != nil {
		t.Fatal(err)
	}
	got, err := current.NewResultFromResult(added)
	if err != nil || len(got.IPs) != 1 || got.IPs[0].Address.String() != "10.0.0.7/32" {
		t.Fatalf("result %v, %v", added, err)
	}
	if add := <-received; !strings.Contains(add.Args, "K8S_POD_NAME=web") || add.ContainerID != "c1" {
		t.Errorf("the agent received %+v", add)
	}
	if cached, err := cni.GetNetworkListCachedResult(list, rt); err != nil || cached == nil {
		t.Errorf("cached result: %v, %v", cached, err)
	}
	if err := cni.CheckNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if check := <-received; !strings.Contains(string(check.Config), "10.0.0.7/32") {
		t.Errorf("CHECK without the previous result: %s", check.Config)
	}
	if version == "1.1.0" {
		if err := cni.GetStatusNetworkList(t.Context(), list); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		<-received
		if err := cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}); err != nil {
			t.Errorf("GC: %v", err)
		}
		if gc := <-received; gc.Command != "GC" || !strings.Contains(string(gc.Config), `"cni.dev/valid-attachments":[{"containerID":"c1"`) {
			t.Errorf("the agent received %+v", gc)
		}
	}
	if err := cni.DelNetworkList(t.Context(), list, rt); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if del := <-received; del.Command != "DEL" {
		t.Errorf("the agent received %+v", del)
	}
}

// After a STATUS error the runtime reports the whole node not ready, and its endpoints
// leave their Services.
func TestSTATUSWaitsForAnAgentThatIsBeingReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock") // the directory exists: an agent has run
	stdout := make(chan string, 1)
	go func() {
		_, out := invoke(t, environment("STATUS"), `{"cniVersion":"1.1.0","name":"n","socket":"`+socket+`"}`)
		stdout <- out
	}()
	<-time.After(1500 * time.Millisecond)
	agentAt(t, socket, func(context.Context, *cnirpc.Request, *os.File) (json.RawMessage, *cnirpc.Error) { return nil, nil })
	if out := <-stdout; out != "" {
		t.Errorf("STATUS printed %s", out)
	}
}

func TestLibcniReceivesTheAgentsErrors(t *testing.T) {
	cni, list := network(t, "1.1.0", agent(t, refusing(cnirpc.CodeLimited, "no address")))
	err := cni.GetStatusNetworkList(t.Context(), list)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != 51 || e.Msg != "no address" || e.Details != "because" {
		t.Errorf("STATUS: %v", err)
	}
}

func TestOperatorsGetUsage(t *testing.T) {
	for _, c := range []struct {
		args   []string
		exit   int
		stdout bool
	}{{nil, 0, false}, {[]string{"--help"}, 0, true}, {[]string{"--version"}, 0, true}, {[]string{"--fly"}, 2, false}} {
		var stdout, stderr bytes.Buffer
		exit := usage(&stdout, &stderr, c.args)
		if exit != c.exit || (stdout.Len() > 0) != c.stdout || stdout.Len()+stderr.Len() == 0 {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", c.args, exit, stdout.String(), stderr.String())
		}
	}
}

// BenchmarkExecToExit runs the binary as it is shipped, with an agent that answers at once.
func BenchmarkExecToExit(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "trunkline-cni")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	socket := agent(b, func(_ context.Context, req *cnirpc.Request, _ *os.File) (json.RawMessage, *cnirpc.Error) {
		return result(req)
	})
	for _, command := range []string{"VERSION", "ADD"} {
		b.Run(command, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(binary)
				cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0","name":"n","socket":"` + socket + `"}`)
				for k, v := range environment(command) {
					cmd.Env = append(cmd.Env, k+"="+v)
				}
				if out, err := cmd.Output(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}

func FuzzStdinNeverPanicsAndAlwaysAnswersJSON(f *testing.F) {
	f.Add("ADD", `{"cniVersion":"1.0.0","name":"n","socket":"/nonexistent/s"}`, "c1", "eth0")
	f.Add("GC", `{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[]}`, "", "")
	f.Add("STATUS", `[1,2`, "", "")
	f.Fuzz(func(t *testing.T, command, stdin, container, ifName string) {
		env := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": ifName, "CNI_NETNS": "/n", "CNI_PATH": "/p"}
		c, refusal := parse(func(k string) string { return env[k] }, strings.NewReader(stdin))
		if refusal != nil {
			if refusal.Msg == "" {
				t.Fatal("refused without a message")
			}
			return
		}
		if !json.Valid(c.request.Config) || c.conf.Name == "" || c.conf.Socket[0] != '/' {
			t.Fatalf("accepted %q: %+v", stdin, c)
		}
		if _, err := json.Marshal(c.request); err != nil {
			t.Fatal(err)
		}
	})
}
