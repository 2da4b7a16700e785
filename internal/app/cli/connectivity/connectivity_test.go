package connectivity_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
)

var (
	update  = flag.Bool("update", false, "write golden files")
	outside = netip.MustParseAddr("203.0.113.10")
)

func options() connectivity.Options {
	return connectivity.Options{
		Namespace: "trunkline-test", MTU: 9001, Outside: outside.String(), OutsideHTTP: 80, OutsideUDP: 8082,
		ClientGroup: "sg-clients", ServerGroup: "sg-servers",
		ExternalName: "aws.example", CaseTimeout: time.Second, SetupTimeout: time.Minute, SettleTime: time.Second, Concurrency: 4,
	}
}

type silent struct{}

func (silent) Step(string)               {}
func (silent) Done(connectivity.Outcome) {}

func run(t *testing.T, m connectivity.Cluster, o connectivity.Options) connectivity.Report {
	t.Helper()
	r, err := connectivity.Run(context.Background(), m, o, silent{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryCaseHasAUniqueNameAndAnAssertion(t *testing.T) {
	cases := connectivity.Cases(9001)
	if len(cases) < 20 {
		t.Errorf("%d cases, want at least 20", len(cases))
	}
	name := regexp.MustCompile(`^[a-z0-9-]+(/[A-Za-z0-9-]+)*$`)
	seen := map[string]bool{}
	for _, c := range cases {
		if seen[c.Name] || !name.MatchString(c.Name) {
			t.Errorf("%q: a duplicate, or not of the form group/path/detail", c.Name)
		}
		seen[c.Name] = true
		if len(strings.Fields(c.Asserts)) < 5 || c.Run == nil {
			t.Errorf("%s asserts %q", c.Name, c.Asserts)
		}
	}
	for _, want := range []string{
		"pod-to-pod/same-eni/1B", "pod-to-pod/other-eni/8900B-df", "pod-to-pod/other-node/1MB",
		"pod-to-service/hairpin", "host-port/other-node", "dns/headless", "outside/path-mtu", "metadata/v6-blocked",
	} {
		if !seen[want] {
			t.Errorf("no case %s", want)
		}
	}
}

func TestEveryCasePassesOnAHealthyNetwork(t *testing.T) {
	m := newModel(noFault)
	r := run(t, m, options())
	for _, o := range r.Cases {
		if o.Status != connectivity.Passed {
			t.Errorf("%s %s: %s", o.Name, o.Status, o.Reason)
		}
	}
	if want := len(connectivity.Cases(9001)) + 3; r.Passed != want {
		t.Errorf("%d passed, want %d with the three operation checks", r.Passed, want)
	}
	if m.claimed != 1 || m.removed != 1 || len(m.pods) != 0 {
		t.Errorf("claimed %d times, removed %d times, %d pods left; want once before and once after", m.claimed, m.removed, len(m.pods))
	}
}

func TestARunRightAfterAnotherDoesNotReadCachedDNSAnswers(t *testing.T) {
	m := newModel(noFault)
	for range 2 {
		for _, o := range run(t, m, options()).Cases {
			if o.Status != connectivity.Passed {
				t.Errorf("%s %s: %s", o.Name, o.Status, o.Reason)
			}
		}
	}
}

func TestEveryCaseFailsUnderSomeFaultAndReportsWhatWasSentAndReceived(t *testing.T) {
	caught := map[string]fault{}
	for _, f := range faults() {
		o := options()
		o.SettleTime = time.Millisecond
		for _, c := range run(t, newModel(f), o).Cases {
			if c.Status != connectivity.Failed {
				continue
			}
			caught[c.Name] = f
			if !strings.Contains(c.Reason, "sent ") || !strings.Contains(c.Reason, "got ") {
				t.Errorf("%s, %s: reason %q lacks what was sent or received", c.Name, f, c.Reason)
			}
		}
	}
	names := []string{"operation/unexpected-drops", "operation/error-logs", "operation/interrupted-connections"}
	for _, c := range connectivity.Cases(9001) {
		names = append(names, c.Name)
	}
	for _, n := range names {
		if caught[n] == noFault {
			t.Errorf("%s passes under every fault", n)
		}
	}
}

func TestEachFaultIsFoundByTheCaseMeantForIt(t *testing.T) {
	for f, want := range map[fault]string{
		sourceChanged: "pod-to-pod/other-node/1B", otherPod: "node-port/remote", wrongServer: "pod-to-service/other-node/1B", blackhole: "pod-to-pod/other-eni/8900B-df",
		metadataOpen: "metadata/v4-blocked", spoofArrives: "spoof/mac", rawLost: "spoof/source-other-node", leaksPodIP: "outside/source", otherMTU: "outside/path-mtu",
		namesWrong: "dns/headless", notReady: "node-to-pod/kubelet-probes", agentSick: "health", apiCutOff: "pod-to-api-server",
		dropping: "operation/unexpected-drops", logging: "operation/error-logs", interrupted: "operation/interrupted-connections",
		streamKilled: "operation/interrupted-connections", notEnforced: "policy/ingress-none/same-node", deniesAll: "policy/egress-none/replies",
		servicesOpen: "policy/load-balancer/egress", judgedLate: "policy/node-port/own-node", selfJudged: "policy/hairpin/cluster-ip", groupsOpen: "security-group/denied/same-node",
	} {
		o := options()
		o.SettleTime = time.Millisecond
		found := false
		for _, c := range run(t, newModel(f), o).Cases {
			found = found || c.Name == want && c.Status == connectivity.Failed
		}
		if !found {
			t.Errorf("%s: %s did not fail", f, want)
		}
	}
}

// Every receiver sees an address that is neither the client's nor a node's.
func TestATranslatedSourceFailsEveryCaseThatAssertsTheSource(t *testing.T) {
	o := options()
	o.SettleTime = time.Millisecond
	asserts := regexp.MustCompile(`^(pod-to-pod|pod-to-service|node-port|host-port|pod-to-node|node-to-pod|node-to-service)\b`)
	without := []string{"pod-to-service/hairpin", "node-to-pod/kubelet-probes"}
	seen := 0
	for _, c := range run(t, newModel(sourceChanged), o).Cases {
		if !asserts.MatchString(c.Name) || slices.Contains(without, c.Name) {
			continue
		}
		seen++
		if c.Status != connectivity.Failed || !strings.Contains(c.Reason, "192.0.2.66") {
			t.Errorf("%s is %s: %s", c.Name, c.Status, c.Reason)
		}
		if strings.HasPrefix(c.Name, "pod-to-service/") && !strings.Contains(c.Reason, " through ClusterIP 172.20.0.") {
			t.Errorf("%s does not name the ClusterIP: %s", c.Name, c.Reason)
		}
	}
	if seen < 35 {
		t.Errorf("only %d cases checked", seen)
	}
}

// The masquerade of a node port translates to the primary address of the client's ENI. The
// filter selects no case that needs pairs of pods, for which the pods' ENIs are determined.
func TestNodePortsAnswerClientsOnSecondaryInterfaces(t *testing.T) {
	for _, filter := range []*regexp.Regexp{nil, regexp.MustCompile(`^node-port/`)} {
		m := newModel(noFault)
		m.nodes[0].others, m.nodes[1].others = 4, 4 // the primary ENIs are full
		o := options()
		o.Filter = filter
		ran := 0
		for _, c := range run(t, m, o).Cases {
			if !strings.HasPrefix(c.Name, "node-port/") {
				continue
			}
			ran++
			if c.Status != connectivity.Passed {
				t.Errorf("filter %v: %s %s: %s", filter, c.Name, c.Status, c.Reason)
			}
		}
		if ran != 3 {
			t.Errorf("filter %v: %d cases of node ports ran, want 3", filter, ran)
		}
	}
}

// A source that is wrong may be one that the test could not know.
func TestANodePortFailureNamesTheNodeWithUnknownInterfaces(t *testing.T) {
	o := options()
	o.Filter, o.SettleTime = regexp.MustCompile(`^node-port/remote$`), time.Millisecond
	for fault, want := range map[fault]connectivity.Status{noFault: connectivity.Passed, sourceChanged: connectivity.Failed} {
		m := &withoutENIs{model: newModel(fault), why: errors.New("no running agent")}
		c := run(t, m, o).Cases[0]
		if named := strings.Contains(c.Reason, "(the interfaces of n2 are unknown: no running agent)"); c.Status != want || named != (want == connectivity.Failed) {
			t.Errorf("fault %q: %s: %s", fault, c.Status, c.Reason)
		}
	}
}

// All pods of a node may be on its first interface, however many the test adds.
func TestCasesThatNeedASecondInterfaceAreSkippedWithoutOne(t *testing.T) {
	for name, c := range map[string]struct {
		perENI [2]int
		skips  map[string]string // case and reason
	}{
		"on neither node": {[2]int{100, 100}, map[string]string{
			"pod-to-pod/other-eni/1B":                "all pods are on one ENI after 22 pods on n1",
			"pod-to-pod/other-node-secondary-eni/1B": "no pod on a secondary ENI of each node",
		}},
		"not on the other": {[2]int{4, 100}, map[string]string{
			"pod-to-pod/other-node-secondary-eni/1B": "no pod on a secondary ENI of each node",
		}},
		"one address each": {[2]int{1, 1}, map[string]string{"pod-to-pod/same-eni/1B": "no two pods share an ENI"}},
	} {
		m := newModel(noFault)
		m.nodes[0].perENI, m.nodes[1].perENI = c.perENI[0], c.perENI[1]
		for _, o := range run(t, m, options()).Cases {
			if o.Status == connectivity.Failed {
				t.Errorf("%s: %s failed: %s", name, o.Name, o.Reason)
			}
			if want, skip := c.skips[o.Name]; skip && (o.Status != connectivity.Skipped || !strings.Contains(o.Reason, want)) {
				t.Errorf("%s: %s is %s: %q, want it skipped for %q", name, o.Name, o.Status, o.Reason, want)
			}
		}
	}
}

func TestCasesThatCannotRunAreSkippedWithTheReason(t *testing.T) {
	m := newModel(noFault)
	m.nodes = m.nodes[:1]
	o := options()
	o.Outside, o.ServerGroup = "", ""
	r := run(t, m, o)
	reasons := map[string]string{}
	for _, c := range r.Cases {
		if c.Status == connectivity.Failed {
			t.Errorf("%s failed: %s", c.Name, c.Reason)
		}
		reasons[c.Name] = c.Reason
	}
	for name, want := range map[string]string{
		"pod-to-pod/other-node/1B": "one ready node",
		"outside/source":           "--outside",
		"security-group/dns":       "no security groups for pods were given (--client-group, --server-group)",
	} {
		if !strings.Contains(reasons[name], want) {
			t.Errorf("%s skipped for %q, want %q", name, reasons[name], want)
		}
	}
}

func TestCasesWithSecurityGroupsAreSkippedWhereNoPodCanHaveThem(t *testing.T) {
	for free, want := range map[int]connectivity.Status{0: connectivity.Skipped, 1: connectivity.Skipped, 2: connectivity.Passed} {
		m := newModel(noFault)
		m.nodes[0].FreeBranches = free
		ran := 0
		for _, c := range run(t, m, options()).Cases {
			if !strings.HasPrefix(c.Name, "security-group/") {
				continue
			}
			ran++
			why := fmt.Sprintf("node n1 can run %d more pods with security groups of their own (vpc.amazonaws.com/pod-eni), and the cases need 2", free)
			if c.Status != want || want == connectivity.Skipped && c.Reason != why {
				t.Errorf("%d branches free: %s is %s: %s", free, c.Name, c.Status, c.Reason)
			}
		}
		if ran < 5 {
			t.Errorf("%d branches free: %d cases", free, ran)
		}
	}
}

func TestNodesThatEnforceGroupsNeedNoBranches(t *testing.T) {
	m := newModel(noFault)
	for i := range m.nodes {
		m.nodes[i].FreeBranches, m.nodes[i].EnforcesGroups = 0, true
	}
	ran := 0
	for _, c := range run(t, m, options()).Cases {
		if !strings.HasPrefix(c.Name, "security-group/") {
			continue
		}
		ran++
		if c.Status != connectivity.Passed {
			t.Errorf("%s is %s: %s", c.Name, c.Status, c.Reason)
		}
	}
	if ran < 5 {
		t.Errorf("%d cases", ran)
	}
}

func TestFullNodesAreNotUsed(t *testing.T) {
	m := newModel(noFault)
	m.nodes[0].FreePods = 3
	r := run(t, m, options())
	for _, c := range r.Cases {
		if strings.Contains(c.Reason, "n1") || c.Status == connectivity.Failed {
			t.Errorf("%s is %s: %s", c.Name, c.Status, c.Reason)
		}
		if strings.HasPrefix(c.Name, "pod-to-pod/other-node/") && !strings.Contains(c.Reason, "only one ready node of 2 can run 6 more pods") {
			t.Errorf("%s is %s: %q", c.Name, c.Status, c.Reason)
		}
	}
	m.nodes[1].FreePods = 3
	if _, err := connectivity.Run(t.Context(), m, options(), silent{}); err == nil || !strings.Contains(err.Error(), "none of 2 ready nodes can run 6 more pods") {
		t.Errorf("all nodes are full: %v", err)
	}
}

// The backend podcidr makes no routes between nodes.
func TestPathsBetweenNodesWithoutRoutesAreSkipped(t *testing.T) {
	m := newModel(noFault)
	m.nodes[0].Unrouted, m.nodes[1].Unrouted = true, true
	ran := 0
	for _, c := range run(t, m, options()).Cases {
		switch {
		case c.Status == connectivity.Failed:
			t.Errorf("%s failed: %s", c.Name, c.Reason)
		case strings.Contains(c.Name, "other-node") && (c.Status != connectivity.Skipped || c.Reason != "routes between nodes come with the routing backends"):
			t.Errorf("%s is %s: %q", c.Name, c.Status, c.Reason)
		case strings.Contains(c.Name, "same-node") && c.Status == connectivity.Passed:
			ran++
		}
	}
	if ran == 0 {
		t.Error("no case on one node ran")
	}
}

// withoutENIs is a model of nodes that do not use EC2. It counts the pods that are added to
// reach another ENI.
type withoutENIs struct {
	*model
	why     error
	fillers int
}

func (m *withoutENIs) Interfaces(context.Context, string) ([]connectivity.ENI, error) {
	return nil, m.why
}

func (m *withoutENIs) Create(ctx context.Context, namespace string, s connectivity.Setup) (map[string]netip.Addr, error) {
	for _, p := range s.Pods {
		if strings.HasPrefix(p.Name, "filler-") {
			m.fillers++
		}
	}
	return m.model.Create(ctx, namespace, s)
}

// On a node without EC2 no number of pods would reach a second ENI.
func TestCasesOnENIsAreSkippedWithoutMorePodsWhereThereAreNone(t *testing.T) {
	m := &withoutENIs{model: newModel(noFault), why: fmt.Errorf("%w: node n1 does not use EC2", connectivity.ErrNoENIs)}
	skipped := 0
	for _, c := range run(t, m, options()).Cases {
		switch {
		case c.Status == connectivity.Failed:
			t.Errorf("%s failed: %s", c.Name, c.Reason)
		case strings.Contains(c.Name, "-eni/"):
			if c.Status != connectivity.Skipped || c.Reason != m.why.Error() {
				t.Errorf("%s is %s: %q", c.Name, c.Status, c.Reason)
			}
			skipped++
		}
	}
	if skipped == 0 || m.fillers > 0 {
		t.Errorf("%d cases on ENIs skipped, %d additional pods created", skipped, m.fillers)
	}
}

func TestThePathMTUCaseIsSkippedWithoutJumboFrames(t *testing.T) {
	o := options()
	o.MTU = 1500
	for _, c := range run(t, newModel(noFault), o).Cases {
		if c.Status == connectivity.Failed {
			t.Errorf("%s failed: %s", c.Name, c.Reason)
		}
		if c.Name == "outside/path-mtu" && !strings.Contains(c.Reason, "MTU of 1500") {
			t.Errorf("%s is %s: %q, want it skipped for the MTU", c.Name, c.Status, c.Reason)
		}
	}
}

func TestAFilterSelectsCasesAndKeepsTheOperationChecks(t *testing.T) {
	o := options()
	o.Filter = regexp.MustCompile(`^dns/`)
	m := newModel(noFault)
	r := run(t, m, o)
	if len(r.Cases) != 3+3 {
		t.Errorf("%d cases, want three of DNS and three operation checks", len(r.Cases))
	}
}
