package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/api/introspection"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

var update = flag.Bool("update", false, "write golden files")

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

func now() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

func systemPod(name, app, node, image string, ready bool) corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name, Labels: map[string]string{nameLabel: app}},
		Spec:       corev1.PodSpec{NodeName: node, HostNetwork: app == agentName, Containers: []corev1.Container{{Image: image}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

func report(node string, age time.Duration) trunkline.NodeNetwork {
	return trunkline.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: trunkline.NodeNetworkStatus{
		ObservedAt: metav1.NewTime(now().Add(-age)), InstanceType: "m5.xlarge", Mode: trunkline.ModeSecondaryIP,
		Addresses: trunkline.AddressCounts{Total: 28, Assigned: 6, Cooling: 1, Free: 21, WarmTarget: 8, Limit: 56, Interfaces: 2, InterfaceLimit: 4},
		Versions:  trunkline.Versions{Agent: "v1", Plugin: "v1", CNI: "1.1.0", Kernel: "6.18.0"},
		Conditions: []metav1.Condition{
			{Type: trunkline.ConditionReady, Status: metav1.ConditionTrue, Reason: "PoolReady", Message: "21 addresses free"},
			{Type: trunkline.ConditionDrift, Status: metav1.ConditionFalse, Reason: "InSync"},
			{Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionTrue, Reason: "Enforced"},
		},
	}}
}

// healthy returns the state of a cluster of two nodes without errors.
func healthy() clusterState {
	two := int32(2)
	in := clusterState{
		agent:      &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2}},
		controller: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &two}, Status: appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}},
		networks:   []trunkline.NodeNetwork{report("n1", 10*time.Second), report("n2", 20*time.Second)},
	}
	for _, n := range []string{"n1", "n2"} {
		in.nodes = append(in.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
		in.pods = append(in.pods,
			systemPod("trunkline-agent-"+n, agentName, n, "trunkline:v1", true),
			systemPod("trunkline-controller-"+n, controllerName, n, "trunkline:v1", true))
		for range 5 {
			in.pods = append(in.pods, corev1.Pod{Spec: corev1.PodSpec{NodeName: n}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
		}
	}
	return in
}

func TestTheStatusOfAHealthyCluster(t *testing.T) {
	s := summarise(healthy(), now())
	if !s.Ready() || len(s.Wrong()) != 0 {
		t.Errorf("ready %v, wrong %v", s.Ready(), s.Wrong())
	}
	var out bytes.Buffer
	WriteStatus(&out, s)
	golden(t, "status-healthy.txt", out.String())
}

func TestAPodOfAdmissionThatIsNotReadyIsAnError(t *testing.T) {
	in := healthy()
	p := systemPod("trunkline-admission-x", admissionName, "n1", "trunkline:v1", false)
	p.Status.Phase = corev1.PodPending
	in.pods = append(in.pods, p)
	if s := summarise(in, now()); s.Ready() || !slices.ContainsFunc(s.Wrong(), func(w string) bool {
		return strings.Contains(w, "trunkline-admission-x") && strings.Contains(w, "Pending")
	}) {
		t.Errorf("wrong %v", s.Wrong())
	}
}

// Without EC2 there are no interfaces that the controller would collect.
func TestTheControllerIsExpectedOnlyWhereANodeUsesEC2(t *testing.T) {
	in := healthy()
	in.controller = nil
	in.pods = slices.DeleteFunc(in.pods, func(p corev1.Pod) bool { return p.Labels[nameLabel] == controllerName })
	in.networks[0].Status.Mode = trunkline.ModePodCIDR
	if s := summarise(in, now()); s.Ready() {
		t.Error("ready without the controller, and a node uses EC2")
	}
	in.networks[1].Status.Mode = trunkline.ModePodCIDR
	if s := summarise(in, now()); !s.Ready() {
		t.Errorf("wrong %v", s.Wrong())
	}
	in.networks = nil
	if s := summarise(in, now()); s.Ready() {
		t.Error("ready without a report")
	}
}

func TestTheStatusOfNodesWithoutEC2SaysWhatTheyLack(t *testing.T) {
	in := healthy()
	in.controller = nil
	in.pods = slices.DeleteFunc(in.pods, func(p corev1.Pod) bool { return p.Labels[nameLabel] == controllerName })
	for i := range in.networks {
		st := &in.networks[i].Status
		st.Mode, st.InstanceType, st.Addresses.Interfaces, st.Addresses.InterfaceLimit = trunkline.ModePodCIDR, "", 0, 0
		st.Conditions = append(st.Conditions, metav1.Condition{
			Type: trunkline.ConditionEC2Reachable, Status: metav1.ConditionUnknown, Reason: trunkline.ReasonEC2NotUsed,
			Message: "not used by the backend podcidr (set by flag --backend): pods have no VPC addresses",
		})
	}
	s := summarise(in, now())
	if !s.Ready() {
		t.Errorf("wrong %v", s.Wrong())
	}
	var out bytes.Buffer
	WriteStatus(&out, s)
	golden(t, "status-without-ec2.txt", out.String())
}

func TestTheStatusGroupsErrorsByObject(t *testing.T) {
	in := healthy()
	in.agent.Status.NumberReady = 1
	in.pods[0].Status.Conditions[0].Status = corev1.ConditionFalse
	in.pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}}}
	in.pods[0].Spec.Containers[0].Image = "trunkline:v2"
	in.networks[0] = report("n1", 5*time.Minute)
	in.networks[0].Status.Why = "the subnet is full"
	in.policies = []string{"3 of NetworkPolicy", "2 of ClusterNetworkPolicy", "1 of PolicyEndpoint"}
	in.networks[0].Status.Conditions[2] = metav1.Condition{
		Type: trunkline.ConditionPoliciesEnforced, Status: metav1.ConditionFalse, Reason: "CannotEnforce",
		Message: "network policies cannot be enforced, and new pods are refused: the kernel lacks xt_bpf",
	}
	in.networks[0].Status.Versions = trunkline.Versions{Agent: "v2", CNI: "1.0.0", Kernel: "6.18.0"} // no pod was wired yet
	in.networks[0].Status.Conditions[0].Status = metav1.ConditionFalse
	in.networks[0].Status.Conditions[0].Message = "no address is free and subnet-1 has none left"
	in.networks[0].Status.LastError = &trunkline.CallError{Action: "AssignPrivateIpAddresses", Code: "InsufficientFreeAddressesInSubnet", Message: "The specified subnet does not have enough free addresses", Count: 4}
	in.nodes = append(in.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}})
	in.brakes = []trunkline.Brake{{ObjectMeta: metav1.ObjectMeta{Name: "night"}, Spec: trunkline.BrakeSpec{Freeze: trunkline.FreezeRelease, Reason: "incident 7"}}}
	s := summarise(in, now())
	if s.Ready() {
		t.Error("ready with an agent down")
	}
	var out bytes.Buffer
	WriteStatus(&out, s)
	golden(t, "status-broken.txt", out.String())
}

func TestOnlyPodsOlderThanTheirNodesReportCountAsUnmanaged(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now().Add(-d)) }
	for name, c := range map[string]struct {
		pod    corev1.Pod
		unseen int
		want   string
	}{
		"created after the report": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(5 * time.Second)}}, 1, "✓ Pods        managed 12/13, 1 newer than their node's report"},
		"wired as the report was written": {corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Minute)},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, LastTransitionTime: ago(11 * time.Second)}}},
		}, 1, "✓ Pods        managed 12/13, 1 newer"},
		"created long before the report": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Minute)}}, 0, "! Pods        managed 12/13, 1 without an address\n"},
		"being deleted":                  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(time.Hour), DeletionTimestamp: &metav1.Time{Time: now()}}}, 0, "✓ Pods        managed 12/13, 1 being deleted\n"},
		"waiting longer than a report":   {corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: ago(3 * time.Minute)}}, 0, "! Pods        managed 12/13, 1 without an address\n"},
	} {
		in := healthy()
		c.pod.Spec.NodeName = "n1"
		in.pods = append(in.pods, c.pod)
		s := summarise(in, now())
		var out bytes.Buffer
		WriteStatus(&out, s)
		if s.PodsUnseen != c.unseen || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %d unseen, want %d and %q in\n%s", name, s.PodsUnseen, c.unseen, c.want, out.String())
		}
	}
}

func TestTheStatusReportsThatTrunklineIsNotInstalled(t *testing.T) {
	s := summarise(clusterState{nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}, now())
	if s.Installed || s.Ready() || !strings.Contains(strings.Join(s.Wrong(), "\n"), "not installed") {
		t.Errorf("%+v", s)
	}
}

func TestDriftIsAnErrorWhenTrueAndOtherConditionsWhenNotTrue(t *testing.T) {
	for _, c := range []struct {
		kind   string
		status metav1.ConditionStatus
		want   bool
	}{
		{trunkline.ConditionReady, metav1.ConditionTrue, false},
		{trunkline.ConditionReady, metav1.ConditionUnknown, true},
		{trunkline.ConditionDrift, metav1.ConditionTrue, true},
		{trunkline.ConditionDrift, metav1.ConditionFalse, false},
		{trunkline.ConditionCNIConfigured, metav1.ConditionTrue, false},
		{trunkline.ConditionCNIConfigured, metav1.ConditionFalse, true},
		{trunkline.ConditionJournalWritable, metav1.ConditionTrue, false},
		{trunkline.ConditionJournalWritable, metav1.ConditionFalse, true},
		{trunkline.ConditionPoliciesEnforced, metav1.ConditionTrue, false},
		{trunkline.ConditionPoliciesEnforced, metav1.ConditionFalse, true},
	} {
		if got := bad(metav1.Condition{Type: c.kind, Status: c.status}); got != c.want {
			t.Errorf("%s=%s: an error %v, want %v", c.kind, c.status, got, c.want)
		}
	}
}

func exampleLedger() introspection.Ledger {
	a := netip.MustParseAddr
	return introspection.Ledger{
		Node: "n1", At: now(), ENIs: []introspection.ENI{
			{
				ID: "eni-1", Device: 0, MAC: "02:00:00:00:00:01", Subnet: "subnet-1", CIDR: netip.MustParsePrefix("10.0.0.0/19"), Primary: a("10.0.0.5"), State: "ready", Table: 254,
				Addresses: []introspection.Address{
					{Address: a("10.0.0.7"), State: "assigned", Pod: "default/web-1", Since: now().Add(-time.Minute), Why: "given at ADD"},
					{Address: a("10.0.0.8"), State: "free"},
				},
			},
			{
				ID: "eni-2", Device: 1, Subnet: "subnet-1", State: "attaching", Why: "3 pods wait and eni-1 is full", Table: 2,
				Addresses: []introspection.Address{{Address: a("10.0.0.9"), State: "cooling", Pod: "default/old", Since: now().Add(-10 * time.Second), Until: now().Add(20 * time.Second), Why: "cools until 12:00:20"}},
			},
		},
		Pool: introspection.Pool{Total: 3, Assigned: 1, Cooling: 1, Free: 1, Waiting: 3, WarmTarget: 8, Limit: 56, Why: "no (WaitingForEC2), 3 pods wait", Steps: []introspection.Step{{What: "attach eni-2", Why: "3 pods wait"}}},
	}
}

func TestAddressesInterfacesAndPoolAreShownWithReasons(t *testing.T) {
	ledgers := SingleLedger(exampleLedger())
	ledgers.Errors = map[string]string{"n2": "no running trunkline-agent pod on node n2"}
	var out bytes.Buffer
	for _, view := range []View{ViewAddresses, ViewENIs, ViewPool} {
		for _, why := range []bool{false, true} {
			WriteLedgers(&out, view, ledgers, why)
			out.WriteString("\n")
		}
	}
	golden(t, "show.txt", out.String())
}

func TestWithoutEC2AddressesAreShownWithoutInterfaces(t *testing.T) {
	a := netip.MustParseAddr
	ledgers := SingleLedger(introspection.Ledger{
		Node: "n1", At: now(), WithoutEC2: "not used by the backend podcidr (set by flag --backend): pods have no VPC addresses",
		PodCIDR: &introspection.PodCIDR{CIDR: netip.MustParsePrefix("10.244.1.0/24"), Table: 254, Addresses: []introspection.Address{
			{Address: a("10.244.1.2"), State: "assigned", Pod: "default/web-1", Since: now().Add(-time.Minute)},
			{Address: a("10.244.1.3"), State: "cooling", Until: now().Add(20 * time.Second)},
		}},
	})
	var out bytes.Buffer
	for _, view := range []View{ViewAddresses, ViewENIs, ViewPool} {
		WriteLedgers(&out, view, ledgers, false)
		out.WriteString("\n")
	}
	ledgers.Ledgers = append(ledgers.Ledgers, exampleLedger()) // a cluster with both kinds of nodes
	WriteLedgers(&out, ViewENIs, ledgers, false)
	golden(t, "show-without-ec2.txt", out.String())
}

func TestALedgerIsReadFromTheAgentOfThisNode(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != introspection.LedgerPath {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(exampleLedger())
	}))
	defer srv.Close()
	got, err := ReadLocalLedger(t.Context(), strings.TrimPrefix(srv.URL, "http://"))
	if err != nil || len(got.ENIs) != 2 || got.ENIs[0].Addresses[0].Pod != "default/web-1" {
		t.Errorf("%+v, %v", got, err)
	}
	srv.Close()
	if _, err := ReadLocalLedger(t.Context(), strings.TrimPrefix(srv.URL, "http://")); err == nil || !strings.Contains(err.Error(), "does it run here?") {
		t.Errorf("no agent: %v", err)
	}
}

func TestATestPodIsSmallAndPinnedToItsNodeAndItsServiceSelectsIt(t *testing.T) {
	p := testPod(connectivity.PodSpec{Name: "server-1", Node: "n1", HostPort: 28090}, "img")
	if p.Spec.NodeName != "n1" || p.Spec.Containers[0].Ports[0].HostPort != 28090 || p.Spec.Containers[0].ReadinessProbe == nil {
		t.Errorf("%+v", p.Spec)
	}
	if cpu := p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue(); cpu > 10 {
		t.Errorf("requests %d m of CPU", cpu)
	}
	for _, s := range []connectivity.ServiceSpec{{Name: "one", Pods: []string{"server-1"}}, {Name: "all", Pods: []string{"server-1", "server-2"}, Headless: true}} {
		svc := testService(s)
		if !labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
			t.Errorf("service %s does not select %s", s.Name, p.Name)
		}
		second := testPod(connectivity.PodSpec{Name: "server-2"}, "img")
		if got := labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(second.Labels)); got != s.Headless {
			t.Errorf("service %s selects %s: %v", s.Name, second.Name, got)
		}
		other := testPod(connectivity.PodSpec{Name: "client-1"}, "img")
		if labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(other.Labels)) {
			t.Errorf("service %s selects %s", s.Name, other.Name)
		}
	}
}

func TestAnImageThatCannotBePulledIsReportedWithItsNode(t *testing.T) {
	waits := func(reason string) corev1.Pod {
		return corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Image: "example.com/none:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
		}}}}
	}
	for reason, want := range map[string]string{
		"ContainerCreating": "", "CrashLoopBackOff": "",
		"ErrImagePull":     "node n1 cannot pull image example.com/none:1 (ErrImagePull)",
		"ImagePullBackOff": "node n1 cannot pull image example.com/none:1 (ImagePullBackOff)",
		"InvalidImageName": "node n1 cannot pull image example.com/none:1 (InvalidImageName)",
	} {
		if got := pullFailure([]corev1.Pod{{}, waits(reason)}); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}

func TestTheReasonWhyAPodIsNotReadyIsReported(t *testing.T) {
	container := func(s corev1.ContainerState, restarts int32) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: s, RestartCount: restarts, LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"},
		}}}}
	}
	for want, status := range map[string]corev1.PodStatus{
		": 0/2 nodes are available":       {Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available"}}},
		"":                                {Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "fine"}}},
		": CrashLoopBackOff back-off 10s": container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}}, 1),
		": c exited with status 2 (Error), 3 restarts":   container(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, 3),
		": OutOfpods Pod was rejected: too many of them": {Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "Pod was rejected: too many of them"},
	} {
		if got := notReadyReason(&corev1.Pod{Status: status}); got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
	}
}

func TestANamespaceThatTheRunDidNotClaimIsNotRemoved(t *testing.T) {
	s := kubetest.New(t)
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	const namespaces = "/api/v1/namespaces"
	s.Put(namespaces, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "prod"}})
	c := NewTestCluster(client, "img")
	if err := c.Remove(t.Context(), "prod"); err != nil {
		t.Errorf("got %v", err)
	}
	if !slices.Contains(s.Keys(namespaces), "prod") {
		t.Error("the namespace was removed")
	}
	if err := c.Remove(t.Context(), "absent"); err != nil {
		t.Errorf("absent namespace: %v", err)
	}
}

func TestANodeThatHasJustBecomeReadyIsUsed(t *testing.T) {
	s := kubetest.New(t)
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, ready corev1.ConditionStatus, taints ...corev1.Taint) {
		s.Put("/api/v1/nodes", &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			},
		})
	}
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}
	put("just-ready", corev1.ConditionTrue, notReady)
	put("not-ready", corev1.ConditionFalse, notReady)
	put("dedicated", corev1.ConditionTrue, corev1.Taint{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule})
	nodes, err := NewTestCluster(client, "img").Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 1 || nodes[0].Name != "just-ready" {
		t.Errorf("nodes %v, want only just-ready", nodes)
	}
}

func TestErrorLinesAreRecognised(t *testing.T) {
	for line, want := range map[string]bool{
		`time=2026 level=ERROR msg="lost"`: true, `{"level":"ERROR"}`: true, "panic: runtime error": true,
		`time=2026 level=WARN msg="retrying after error"`: false, `level=INFO msg=ok`: false,
	} {
		if got := isErrorLine(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

func TestProgressShowsEveryOutcomeAndTheSummaryTheFailures(t *testing.T) {
	var out bytes.Buffer
	p := &TestProgress{W: &out, Now: now}
	p.Step("create pods and services")
	outcomes := []connectivity.Outcome{
		{Name: "dns/service", Status: connectivity.Passed, Millis: 12},
		{Name: "spoof/mac", Asserts: "nothing arrives", Status: connectivity.Failed, Reason: "sent 3; got 3\ninspect: nft list", Millis: 40},
		{Name: "outside/source", Status: connectivity.Skipped, Reason: "no host outside"},
	}
	for _, o := range outcomes {
		p.Done(o)
	}
	WriteTestSummary(&out, connectivity.Report{Passed: 1, Failed: 1, Skipped: 1, Seconds: 3.2, Cases: outcomes})
	golden(t, "progress.txt", out.String())
}
