package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/app/controller"
	branches "github.com/trunkline/trunkline/internal/control/trunk"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

const (
	restartGroup = "sg-0123456789abcdef0"
	restartSpace = "shop"
	// restartWithin is how long the controller may take.
	restartWithin = 30 * time.Minute
)

// fleetSize is how large the cluster of a restart is.
type fleetSize struct {
	nodes, branches int
	// watched is how long calls are counted after every pod was found to have its branch.
	watched time.Duration
}

// sgpRestart measures a restart at 2,600 nodes with 100,000 branches.
func sgpRestart(r *run, o Options) []Result {
	return restart(r, o, fleetSize{nodes: 2600, branches: 100_000, watched: time.Minute})
}

// restart measures the time from the start of a controller process until its policy's status
// counts all pods as applied, and counts its calls of EC2, which are all refused, until some time
// later. The API server is the lab's; all processes share the machine's processors.
func restart(r *run, o Options, of fleetSize) []Result {
	c := newRealCluster(r, o, readySize{})
	unlimited := c.access("")
	unlimited.QPS = -1
	admin, err := kube.FromREST(unlimited)
	if err != nil {
		r.Fatal(err)
	}
	r.Logf("%d nodes with %d branches", of.nodes, of.branches)
	c.putFleet(admin, of)
	counted := &refusing{calls: map[string]int{}}
	wire := httptest.NewServer(counted)
	r.Cleanup(wire.Close)
	log := slog.New(slog.DiscardHandler)
	executor, err := ec2.NewExecutor(ec2.Options{Log: log, Budget: controller.Budget, Clients: ec2.NewClients(aws.Config{
		Region: sgpRegion, BaseEndpoint: aws.String(wire.URL), Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})})
	if err != nil {
		r.Fatal(err)
	}
	access := c.access("trunkline-controller")
	access.QPS, access.Burst = controller.RequestRate, 2*controller.RequestRate
	client, err := kube.FromREST(access)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	events := kube.NewEvents(client.Core, "")
	own, err := branches.New(branches.Options{Client: client, EC2: ec2.Trunks{Executor: executor, Cluster: sgpCluster}, Events: events, Config: trunk.DefaultConfig(), Log: log})
	if err != nil {
		r.Fatal(err)
	}
	var wg sync.WaitGroup
	r.Logf("the controller starts")
	began := time.Now()
	wg.Go(func() { events.Run(ctx) })
	wg.Go(func() { own.Run(ctx) })
	r.Cleanup(func() { cancel(); wg.Wait() })
	r.within(restartWithin, "every pod has its branch", func() bool {
		var p v1beta1.SecurityGroupPolicy
		err := admin.Policies.Get().Namespace(restartSpace).Resource(v1beta1.ResourceSecurityGroupPolicies).Name("all").Do(ctx).Into(&p)
		return err == nil && int(p.Status.AppliedPods) == of.branches
	})
	took := time.Since(began)
	r.wait(of.watched)
	describes, frees, all := counted.count()
	if all != 0 {
		r.Logf("calls of EC2: %v", counted.calls)
	}
	if frees != 0 {
		r.Fatalf("%d calls delete a branch or end an association, and every branch is a pod's", frees)
	}
	nodes, _, err := kube.CNINodes(ctx, admin)
	if err != nil {
		r.Fatal(err)
	}
	if kept := bound(nodes); kept != of.branches {
		r.Fatalf("%d of %d branches are still recorded as those of their pods: the others are given up", kept, of.branches)
	}
	note := fmt.Sprintf("%d branches on %d nodes, %s watched; %d calls of any kind, 0 deletions", of.branches, of.nodes, took.Round(time.Second)+of.watched, all)
	return []Result{
		{Name: "sgp.restart2600.calls", Value: float64(describes), Unit: "calls", spread: [2]float64{}, budget: budget{limit: restartMost}, note: note},
		single("sgp.restart2600.s", "s", took.Seconds(), budget{}, note),
	}
}

// bound counts the branches that the records of the nodes give to pods.
func bound(nodes []vpcresources.CNINode) (count int) {
	for i := range nodes {
		if nodes[i].Status.Trunkline == nil {
			continue
		}
		for _, b := range nodes[i].Status.Trunkline.Branches {
			if b.Phase == vpcresources.BranchBound {
				count++
			}
		}
	}
	return count
}

// restartMost is the budget of describes: none. A limit of zero would be no budget.
const restartMost = 0.5

// refusing refuses every call of EC2, and counts them by action.
type refusing struct {
	mu    sync.Mutex
	calls map[string]int
}

// ServeHTTP implements http.Handler.
func (c *refusing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	action := r.FormValue("Action")
	c.mu.Lock()
	c.calls[action]++
	c.mu.Unlock()
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprint(w, `<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>refused</Message></Error></Errors><RequestID>1</RequestID></Response>`)
}

func (c *refusing) count() (describes, frees, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for action, n := range c.calls {
		all += n
		switch {
		case strings.HasPrefix(action, "Describe"):
			describes += n
		case strings.HasPrefix(action, "Delete"), strings.HasPrefix(action, "Disassociate"):
			frees += n
		}
	}
	return describes, frees, all
}

// putters is how many nodes are put at the same time.
const putters = 16

// putFleet puts nodes with the records of a controller that has ended, and their pods, all of which a
// policy selects. The records were observed in the half hour before.
func (c *realCluster) putFleet(admin *kube.Client, of fleetSize) {
	c.namespace(restartSpace)
	c.kubectl(fmt.Sprintf(`{"apiVersion":"vpcresources.k8s.aws/v1beta1","kind":"SecurityGroupPolicy","metadata":{"name":"all","namespace":%q},
"spec":{"podSelector":{},"securityGroups":{"groupIds":[%q]}}}`, restartSpace, restartGroup), "apply", "-f", "-")
	core := c.client(0, 0, "")
	records := kube.NewBranchObjects(admin, func(kube.BranchChange) {}, slog.New(slog.DiscardHandler)) // not run: it writes only
	var g errgroup.Group
	g.SetLimit(putters)
	began, last := time.Now(), time.Now()
	for n := range of.nodes {
		if time.Since(last) > time.Minute {
			last = time.Now()
			c.Logf("%d of %d nodes are put, %s", n, of.nodes, last.Sub(began).Round(time.Second))
		}
		g.Go(func() error { return putNode(c.ctx, core, admin, records, of, n) })
	}
	if err := g.Wait(); err != nil {
		c.Fatal(err)
	}
	c.Logf("all nodes are put, %s", time.Since(began).Round(time.Second))
}

// putNode puts the node with a number, its pods, and its record.
func putNode(ctx context.Context, core *kubernetes.Clientset, admin *kube.Client, records *kube.BranchObjects, of fleetSize, n int) error {
	name, instance, now := fmt.Sprintf("node-%d", n), fmt.Sprintf("i-%017x", n), time.Now().UTC().Truncate(time.Microsecond)
	node, err := core.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelInstanceTypeStable: "m5.4xlarge"}},
		Spec:       corev1.NodeSpec{ProviderID: vpc.ProviderID(sgpRegion+"a", vpc.InstanceID(instance))},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("54")}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	observed := metav1.NewMicroTime(now.Add(-time.Duration(n) * 30 * time.Minute / time.Duration(of.nodes)))
	ledger := &vpcresources.BranchLedger{
		InstanceID: instance, ObservedAt: &observed,
		Host: &vpcresources.HostRecord{VPCID: "vpc-0123456789abcdef0", SubnetID: "subnet-0123456789abcdef0", SubnetCIDR: "10.0.0.0/8", SecurityGroups: []string{"sg-0123456789abcdef1"}, Interfaces: 8},
		Trunk: &vpcresources.TrunkRecord{
			Phase: vpcresources.TrunkReady, ENIID: fmt.Sprintf("eni-%017x", 1<<40+n), MAC: macOf(1<<32 + n), DeviceIndex: 7,
			SubnetID: "subnet-0123456789abcdef0", SecurityGroups: []string{"sg-0123456789abcdef1"},
		},
	}
	first, next := n*of.branches/of.nodes, (n+1)*of.branches/of.nodes
	for i := first; i < next; i++ {
		vlan := i - first + 1
		b, err := putPod(ctx, core, name, i, vlan, now.Add(-time.Hour))
		if err != nil {
			return err
		}
		ledger.Branches = append(ledger.Branches, b)
		ledger.VLANs = append(ledger.VLANs, vpcresources.VLANRecord{VLANID: int32(vlan), Owner: b.ID})
		ledger.LastVLAN = int32(vlan)
	}
	record := vpcresources.CNINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: []string{"trunkline.dev/branches"}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}},
		},
		Spec: vpcresources.CNINodeSpec{Features: []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}}},
	}
	if err := kube.CreateCNINode(ctx, admin, record); err != nil {
		return err
	}
	var made vpcresources.CNINode
	if err := admin.VPC.Get().Resource(vpcresources.ResourceCNINodes).Name(name).Do(ctx).Into(&made); err != nil {
		return err
	}
	_, err = records.WriteLedger(ctx, &made, ledger)
	return err
}

func macOf(n int) string {
	return vpc.MAC{2, byte(n >> 32), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}.String()
}

// putPod puts a pod that has a branch, and returns the record of the branch.
func putPod(ctx context.Context, core *kubernetes.Clientset, node string, n, vlan int, at time.Time) (vpcresources.BranchRecord, error) {
	name := fmt.Sprintf("pod-%d", n)
	address := netip.AddrFrom4([4]byte{10, byte(n>>16) + 1, byte(n >> 8), byte(n)})
	b := vpcresources.BranchRecord{
		ID: fmt.Sprintf("br-%d", n), VLANID: int32(vlan), Phase: vpcresources.BranchBound, Since: metav1.NewMicroTime(at), Changed: metav1.NewMicroTime(at), Used: true,
		SecurityGroups: []string{restartGroup}, ENIID: fmt.Sprintf("eni-%017x", n+1), AssociationID: fmt.Sprintf("trunk-assoc-%017x", n+1), MAC: macOf(n),
		IPv4: address.String(), SubnetID: "subnet-0123456789abcdef0", SubnetCIDR: "10.0.0.0/8",
	}
	mac, err := vpc.ParseMAC(b.MAC)
	if err != nil {
		return b, err
	}
	text, err := podeni.Encode([]podeni.Entry{{
		ENI: vpc.ENIID(b.ENIID), MAC: mac, IPv4: address, VLAN: vlan, Subnet4: netip.MustParsePrefix(b.SubnetCIDR), Association: b.AssociationID,
	}})
	if err != nil {
		return b, err
	}
	p := branchPod(restartSpace, name, node)
	p.Annotations = map[string]string{vpc.AnnotationPodENI: text}
	p.Spec.AutomountServiceAccountToken = new(bool)
	one := corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: one, Requests: one}
	made, err := core.CoreV1().Pods(restartSpace).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		return b, err
	}
	b.Pod = &vpcresources.PodReference{UID: made.UID, Namespace: restartSpace, Name: name}
	return b, nil
}
