package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// call runs a command line and returns its status and what it wrote.
func call(args ...string) (int, string, string) {
	var out, err bytes.Buffer
	code := run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestEveryCommandHasHelpAndCommandsWithFlagsHaveExamples(t *testing.T) {
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" {
			t.Errorf("%s has no help", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if cmd.HasSubCommands() {
			return
		}
		seen++
		code, out, err := call(append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		if code != 0 || err != "" || !strings.Contains(out, "Usage: "+cmd.CommandPath()) {
			t.Errorf("%s --help: status %d, %q", cmd.CommandPath(), code, err)
		}
		own := 0
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			own++
			if f.Usage == "" || !strings.Contains(out, "--"+f.Name) != f.Hidden {
				t.Errorf("%s --help does not explain --%s", cmd.CommandPath(), f.Name)
			}
		})
		_, examples, _ := strings.Cut(out, "Examples:")
		if own > 0 && !strings.Contains(examples, cmd.CommandPath()) {
			t.Errorf("%s --help shows no example", cmd.CommandPath())
		}
	}
	walk(program())
	if seen < 12 {
		t.Errorf("only %d commands found", seen)
	}
}

func TestInvalidCommandLinesAreRefusedWithAReason(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"frobnicate", 2, "frobnicate"},
		{"status --wait soon", 2, "soon"},
		{"status -o yaml", 2, "yaml"},
		{"status --wait=-1s", 2, "--wait -1s: must not be negative"},
		{"connectivity test --test (", 2, "missing closing"},
		{"connectivity test --test nothing-like-it", 2, "matches no case"},
		{"connectivity test --mtu 100", 2, "--mtu 100: must be from 1280 to 65535"},
		{"explain pod a/b/c", 2, `POD "a/b/c": must be NAME or NAMESPACE/NAME`},
		{"connectivity test --client-group sg-1", 2, `--client-group "sg-1", --server-group "": both or none are needed`},
		{"connectivity test --client-group clients --server-group sg-1", 2, `--client-group "clients": must be the id of a security group, such as sg-0123456789abcdef0`},
		{"connectivity test --concurrency 0", 2, "--concurrency 0: must be from 1 to 64"},
		{"connectivity test --timeout 0s", 2, "--timeout 0s: must be positive"},
		{"connectivity test --namespace Bad_Name", 2, `--namespace "Bad_Name": a lowercase RFC 1123 label`},
		{"connectivity test --outside nonsense", 2, `--outside "nonsense": must be an address`},
		{"connectivity test --outside-http 0", 2, "--outside-http 0: must be from 1"},
		{"connectivity test --external-name -x", 2, "--external-name"},
		{"connectivity test --image=", 2, `--image "": must be the name`},
		{"connectivity test --kubeconfig testdata/none --junit-file x", 1, "testdata/none"},
		{"show poool", 2, "unexpected argument poool, did you mean pool?\ntry: trunkline show --help\n"},
		{"show", 2, "expected one of addresses, branches, config, enis, policies, pool, table"},
		{"show table a b", 2, "unexpected argument b"},
		{"show pool --local --node n1", 2, "--local"},
		{"ec2 freeze --reason x", 2, "--release"},
		{"ec2 freeze --all --release --reason x", 2, "--all"},
		{"ec2 freeze --all", 2, "--reason"},
		{"controller --share 2", 1, "--share in (0, 1]"},
		{"controller --every 1ms", 1, "--every 1ms"},
		{"agent --warm-ips many", 1, `warm-ips: "many" from flag --warm-ips`},
		{"agent --config /does/not/exist", 1, "/does/not/exist"},
	} {
		code, _, err := call(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(err, c.want) {
			t.Errorf("trunkline %s: status %d, %q; want %d with %q", c.args, code, err, c.code, c.want)
		}
	}
}

func TestJSONOutputIsJSONAlsoOnFailure(t *testing.T) {
	for _, args := range []string{
		"status -o json --kubeconfig testdata/none", "show pool -o json --kubeconfig testdata/none",
		"show pool -o json --local --address 127.0.0.1:1", "connectivity test -o json --concurrency 0",
		"connectivity test -o json --list", "show config -o json", "show config -o json --config testdata/none",
	} {
		code, out, err := call(strings.Fields(args)...)
		var decoded any
		if e := json.Unmarshal([]byte(out), &decoded); e != nil {
			t.Errorf("trunkline %s: %v\n%s", args, e, out)
		}
		failure, _ := decoded.(map[string]any)
		if code != 0 && (failure["error"] == nil || err == "") {
			t.Errorf("trunkline %s: status %d, %v on stdout, %q on stderr", args, code, decoded, err)
		}
	}
}

// A variable of AWS's CNI that is set and has no effect is shown beside the settings.
func TestShowConfigNamesVariablesOfAWSWithoutEffect(t *testing.T) {
	t.Setenv("ANNOTATE_POD_IP", "true")
	t.Setenv("ADDITIONAL_ENI_TAGS", `{"team": "a"}`)
	_, text, _ := call("show", "config")
	_, asJSON, _ := call("show", "config", "-o", "json")
	for want, in := range map[string]string{
		`{"team":"a"}`: text,
		"! ANNOTATE_POD_IP=true is set, and not served: pods do not get the annotation": text,
		`"notServed": "pods do not get the annotation`:                                  asJSON,
	} {
		if !strings.Contains(in, want) {
			t.Errorf("%s is not in\n%s", want, in)
		}
	}
	t.Setenv("ANNOTATE_POD_IP", "false")
	if _, text, _ := call("show", "config", "-o", "json"); strings.Contains(text, "notServed") {
		t.Errorf("with the value that it has: %s", text)
	}
}

func TestTheErrorNamesAMissingKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if code, _, err := call("status"); code != 1 || !strings.Contains(err, "no kubeconfig at /does/not/exist") {
		t.Errorf("status %d, %q", code, err)
	}
}

func TestTheWorkloadImageIsThatOfTheReleaseOrOfTheLab(t *testing.T) {
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "v1.2.3-4-gabc": "dev", "1a47bb6": "dev", "dev": "dev"} {
		if got := workloadImage(version); got != "trunkline.dev/workload:"+want {
			t.Errorf("version %s: %s", version, got)
		}
	}
}

func TestTheCasesCanBeListedAndFilteredWithoutACluster(t *testing.T) {
	code, out, _ := call("connectivity", "test", "--list", "--test", "^dns/")
	if code != 0 || !strings.Contains(out, "dns/headless") || strings.Contains(out, "pod-to-pod") {
		t.Errorf("status %d\n%s", code, out)
	}
}

func TestEverySettingIsAFlag(t *testing.T) {
	parse := func(args ...string) map[string]string {
		t.Helper()
		var c configured
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.bind(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return c.given
	}
	var args []string
	for _, s := range config.Settings() {
		args = append(args, "--"+s.Name+"=value of "+s.Name)
	}
	got := parse(args...)
	for _, s := range config.Settings() {
		if got[s.Name] != "value of "+s.Name {
			t.Errorf("%s = %q", s.Name, got[s.Name])
		}
	}
	if given := parse(); len(given) != 0 {
		t.Errorf("flags that were not given count as given: %v", given)
	}
}

// kubeconfigOf writes a kubeconfig for a test's server and returns its path.
func kubeconfigOf(t *testing.T, s *kubetest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", s.REST().Host)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A brake for a node that does not exist would stop nothing.
func TestABrakeIsAcceptedOnlyForNodesThatExist(t *testing.T) {
	s := kubetest.New(t)
	s.Put("/api/v1/nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	config := kubeconfigOf(t, s)
	freeze := func(node string) (int, string) {
		code, _, stderr := call("ec2", "freeze", "--all", "--reason", "test", "--node", node, "--kubeconfig", config)
		return code, stderr
	}
	if code, stderr := freeze("n2"); code != 2 || !strings.Contains(stderr, `--node "n2": no such node`) {
		t.Errorf("a node that does not exist: status %d, %q", code, stderr)
	}
	const brakes = "/apis/trunkline.dev/v1alpha1/brakes"
	if left := s.Keys(brakes); len(left) > 0 {
		t.Errorf("brakes %v exist", left)
	}
	if code, stderr := freeze("n1"); code != 0 || len(s.Keys(brakes)) != 1 {
		t.Errorf("a node that exists: status %d, %q", code, stderr)
	}
	s.Refuse("/api/v1/nodes/n3", http.StatusForbidden) // the right to create brakes does not include reading nodes
	if code, stderr := freeze("n3"); code != 0 {
		t.Errorf("a node that the user may not read: status %d, %q", code, stderr)
	}
}

func TestABrakeOnNodesWithoutEC2SaysThatItStopsNothing(t *testing.T) {
	s := kubetest.New(t)
	for name, mode := range map[string]trunkline.AddressMode{"n1": trunkline.ModePodCIDR, "n2": trunkline.ModeSecondaryIP} {
		s.Put("/api/v1/nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
		s.Put("/apis/trunkline.dev/v1alpha1/nodenetworks", &trunkline.NodeNetwork{
			TypeMeta:   metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"},
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: trunkline.NodeNetworkStatus{Mode: mode},
		})
	}
	for nodes, want := range map[string]bool{"": false, "--node=n1": true, "--node=n2": false, "--node=n1,n2": false} {
		args := []string{"ec2", "freeze", "--all", "--reason", "test", "--kubeconfig", kubeconfigOf(t, s)}
		if nodes != "" {
			args = append(args, nodes)
		}
		code, out, stderr := call(args...)
		if got := strings.Contains(out, "it stops nothing"); code != 0 || got != want {
			t.Errorf("%q: status %d, said that it stops nothing: %v, want %v\n%s%s", nodes, code, got, want, out, stderr)
		}
	}
}

// No case can run in a cluster without nodes.
func TestARunWithoutAnyTestedCaseLeavesNoPassingJUnitFile(t *testing.T) {
	config, file := kubeconfigOf(t, kubetest.New(t)), filepath.Join(t.TempDir(), "junit.xml")
	code, out, stderr := call("connectivity", "test", "--kubeconfig", config, "--junit-file", file)
	if code != 1 || !strings.Contains(stderr, "no node is ready and schedulable") {
		t.Errorf("status %d, %q\n%s", code, stderr, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), fmt.Sprintf(`failures="0" errors="%d"`, len(connectivity.Cases(9001)))) || !strings.Contains(string(text), `<error message="prepare the test: no node is ready`) {
		t.Errorf("the file contains\n%.600s", text)
	}
}

// After Ctrl-C during a test, its pods and namespace are deleted and its file does not
// pass.
func TestAnInterruptedTestCleansUpAndReportsTheInterruption(t *testing.T) {
	s := kubetest.New(t)
	s.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("58")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
		},
	})
	file, ended := filepath.Join(t.TempDir(), "junit.xml"), make(chan struct{})
	interrupted := make(chan bool)
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for len(s.Keys("/api/v1/pods")) < 3 { // none will ever be ready
			select {
			case <-ended:
				interrupted <- false
				return
			case <-tick.C:
			}
		}
		interrupted <- unix.Kill(os.Getpid(), unix.SIGINT) == nil
	}()
	code, out, stderr := call("connectivity", "test", "--timeout", "1m", "--kubeconfig", kubeconfigOf(t, s), "--junit-file", file)
	close(ended)
	if !<-interrupted || code != 130 || stderr != "trunkline: interrupted\n" {
		t.Errorf("status %d, %q\n%s", code, stderr, out)
	}
	if left := append(s.Keys("/api/v1/pods"), s.Keys("/api/v1/namespaces")...); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if strings.Contains(out, "✗") || !strings.Contains(out, "remove namespace trunkline-test") {
		t.Errorf("it reported failed cases, or did not clean up:\n%s", out)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), `<error message="the run was stopped: `) {
		t.Errorf("%v; the file contains\n%.600s", err, text)
	}
}
