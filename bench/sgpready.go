package bench

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/controller"
	branches "github.com/trunkline/trunkline/internal/control/trunk"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// readySize is how many pods are measured, and on how many nodes.
type readySize struct {
	pods, nodes int
	rate        int // pods created a second
	warm        int // branches kept on each node
	// pause of a kubelet after it could not set up a pod's sandbox, and the most that is added to it.
	pause, jitter time.Duration
}

const readyWithin = 15 * time.Minute

// sgpReady measures 1,000 pods on twenty nodes. kube-controller-manager creates twenty pods a second by
// default. Source of the pause: backOffPeriod of pkg/kubelet/kubelet.go and workerBackOffPeriodJitterFactor
// of pkg/kubelet/pod_workers.go.
func sgpReady(r *run, o Options) []Result {
	return ready(r, o, readySize{pods: 1000, nodes: 20, rate: 20, warm: 52, pause: 10 * time.Second, jitter: 5 * time.Second})
}

// ready measures the time from the creation of pods until each is ready: with Trunkline's controller
// and with a model of AWS's at the same time, each with nodes and an account of its own, and then with
// Trunkline's and warm branches.
func ready(r *run, o Options, size readySize) []Result {
	c := newRealCluster(r, o, size)
	c.admit()
	theirs := c.model(o.Source)
	cold := c.fleet(o.Source, "cold")
	cold.slow()
	stop := cold.control(trunk.DefaultConfig(), controller.Budget)
	r.Logf("%d pods, cold, and the model of AWS's controller", size.pods)
	began, modelBegan := cold.made(), theirs.model.made()
	var wg sync.WaitGroup
	wg.Go(func() {
		theirs.create(theirs.nodes, func(name, node string) *corev1.Pod {
			p := branchPod(theirs.namespace, name, node)
			one := corev1.ResourceList{vpc.ResourcePodENI: resource.MustParse("1")}
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: one, Requests: one}
			return p
		})
	})
	cold.start()
	wg.Wait()
	coldTook := cold.seconds(readyWithin)
	cold.check(cold.account, "web")
	coldCalls := callsOf(began, cold.made())
	stop()
	cold.forget()
	modelTook := theirs.seconds(readyWithin)
	theirs.check(theirs.model.account, "web")
	modelCalls := callsOf(modelBegan, theirs.model.made())
	r.Logf("cold p50 %.3g s, p99 %.3g; model %.3g, %.3g; calls %s; of the model %s",
		quantile(coldTook, 0.5), quantile(coldTook, 0.99), quantile(modelTook, 0.5), quantile(modelTook, 0.99), coldCalls, modelCalls)
	warm := c.fleet(o.Source, "warm")
	warmTook, warmCalls := warm.warm()
	half, tenth := budget{limit: 0.5, ofRatio: true}, budget{limit: 0.1, ofRatio: true}
	note := func(calls string) string {
		return fmt.Sprintf("%d pods on %d nodes, EC2 calls %s; baseline: AWS's controller, modelled, %s", size.pods, size.nodes, calls, modelCalls)
	}
	return []Result{
		against("sgp.ready1000.cold_s.p50", 0.5, coldTook, modelTook, half, note(coldCalls)),
		against("sgp.ready1000.cold_s.p99", 0.99, coldTook, modelTook, half, note(coldCalls)),
		against("sgp.ready1000.warm_s.p50", 0.5, warmTook, modelTook, budget{limit: 1}, note(warmCalls)),
		against("sgp.ready1000.warm_s.p99", 0.99, warmTook, modelTook, tenth, note(warmCalls)),
	}
}

// against is a quantile of seconds, compared with that of a baseline of the same run.
func against(name string, q float64, ours, theirs []float64, b budget, note string) Result {
	result := single(name, "s", quantile(ours, q), b, note)
	baseline := quantile(theirs, q)
	ratio := result.Value / baseline
	result.Baseline, result.Ratio, result.interval = &baseline, &ratio, [2]float64{ratio, ratio}
	return result
}

// modelled is the model of AWS's controller with its kubelets.
type modelled struct {
	*kubelets
	model *model
	nodes []string
}

func (c *realCluster) model(source string) *modelled {
	a := newAccount(c.run, source, c.size.nodes)
	t := &modelled{nodes: c.join(a, "model")}
	t.model = startModel(c, a, t.nodes)
	c.namespace("model")
	c.policy("model", "web", a.groups["web"])
	t.kubelets = startKubelets(c, "model", true)
	a.slow()
	return t
}

// join creates the Nodes of an account's instances.
func (c *realCluster) join(a *account, prefix string) (names []string) {
	for n := range c.size.nodes {
		name := fmt.Sprintf("%s-%d", prefix, n)
		of := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelInstanceTypeStable: sgpType, corev1.LabelOSStable: "linux"}},
			Spec:       corev1.NodeSpec{ProviderID: vpc.ProviderID(sgpRegion+"a", a.instance(n))},
		}
		if _, err := c.Client().CoreV1().Nodes().Create(c.ctx, of, metav1.CreateOptions{}); err != nil {
			c.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// fleet is nodes that Trunkline's controller serves, with their kubelets. Its namespace has a policy
// that selects all of its pods.
type fleet struct {
	*kubelets
	*account
	nodes []string
}

func (c *realCluster) fleet(source, name string) *fleet {
	f := &fleet{account: newAccount(c.run, source, c.size.nodes)}
	f.nodes = c.join(f.account, name)
	client, err := kube.FromREST(c.access(""))
	if err != nil {
		c.Fatal(err)
	}
	for _, node := range f.nodes {
		of, err := c.Client().CoreV1().Nodes().Get(c.ctx, node, metav1.GetOptions{})
		if err == nil {
			err = kube.CreateCNINode(c.ctx, client, vpcresources.CNINode{
				ObjectMeta: metav1.ObjectMeta{Name: node, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: of.UID}}},
				Spec:       vpcresources.CNINodeSpec{Features: []vpcresources.Feature{{Name: vpcresources.SecurityGroupsForPods}}},
			})
		}
		if err != nil {
			c.Fatal(err)
		}
	}
	c.namespace(name)
	c.policy(name, "web", f.groups["web"])
	c.until("pods of the policy are admitted with a request", func() bool {
		p, err := c.Client().CoreV1().Pods(name).Create(c.ctx, branchPod(name, "probe", f.nodes[0]), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && p.Spec.Containers[0].Resources.Limits.Name(vpc.ResourcePodENI, "").Value() == 1
	})
	f.kubelets = startKubelets(c, name, false)
	stop := f.control(trunk.DefaultConfig(), ample)
	c.until("trunks", func() bool {
		return f.every(func(l *vpcresources.BranchLedger) bool {
			return l.Trunk != nil && l.Trunk.Phase == vpcresources.TrunkReady
		})
	})
	stop()
	return f
}

// ample is the budget of what is not measured.
func ample(string) ec2.Budget { return ec2.Budget{PerSecond: 1000, Burst: 1000} }

// every reports whether the record of every node is as it should be.
func (f *fleet) every(ok func(*vpcresources.BranchLedger) bool) bool {
	client, err := kube.FromREST(f.access(""))
	if err != nil {
		f.kubelets.Fatal(err)
	}
	all, _, err := kube.CNINodes(f.kubelets.ctx, client)
	n := 0
	for i := range all {
		if slices.Contains(f.nodes, all[i].Name) && all[i].Status.Trunkline != nil && ok(all[i].Status.Trunkline) {
			n++
		}
	}
	return err == nil && n == len(f.nodes)
}

// control runs Trunkline's controller, with the rights of its service account, until stop is called.
func (f *fleet) control(plan trunk.Config, budget func(string) ec2.Budget) (stop func()) {
	log := slog.New(slog.DiscardHandler)
	executor, err := ec2.NewExecutor(ec2.Options{Clients: ec2.NewClients(f.config), Log: log, Budget: budget})
	if err != nil {
		f.kubelets.Fatal(err)
	}
	access := f.access("trunkline-controller")
	access.QPS, access.Burst = controller.RequestRate, 2*controller.RequestRate
	client, err := kube.FromREST(access)
	if err != nil {
		f.kubelets.Fatal(err)
	}
	forEvents, err := client.ForEvents()
	if err != nil {
		f.kubelets.Fatal(err)
	}
	events := kube.NewEvents(forEvents, "")
	own, err := branches.New(branches.Options{Client: client, EC2: ec2.Trunks{Executor: executor, Cluster: sgpCluster}, Events: events, Config: plan, Log: log})
	if err != nil {
		f.kubelets.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.kubelets.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { events.Run(ctx) })
	wg.Go(func() { own.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	f.kubelets.Cleanup(stop)
	return stop
}

// forget deletes the CNINodes: the controller of another account would serve them too.
func (f *fleet) forget() {
	f.kubectl("", slices.Concat([]string{"patch", "cninode", "--type=merge", "--patch", `{"metadata":{"finalizers":[]}}`}, f.nodes)...)
	f.kubectl("", slices.Concat([]string{"delete", "cninode"}, f.nodes)...)
}

func (f *fleet) start() {
	f.create(f.nodes, func(name, node string) *corev1.Pod { return branchPod(f.namespace, name, node) })
}

// warm measures pods that get branches which already carry their groups.
func (f *fleet) warm() (took []float64, calls string) {
	f.kubelets.Logf("%d warm branches on each of %d nodes", f.size.warm, f.size.nodes)
	plan := trunk.DefaultConfig()
	plan.Quarantine = trunk.NewGroups(f.groups["quarantine"])
	plan.Exact = []trunk.Exact{{Groups: trunk.NewGroups(f.groups["web"]), Count: f.size.warm}}
	stop := f.control(plan, ample)
	f.kubelets.within(readyWithin, "warm branches", func() bool {
		return f.every(func(l *vpcresources.BranchLedger) bool {
			idle := 0
			for _, b := range l.Branches {
				if b.Phase == vpcresources.BranchIdle {
					idle++
				}
			}
			return idle == f.size.warm
		})
	})
	stop()
	f.slow()
	stop = f.control(plan, controller.Budget)
	defer stop()
	f.kubelets.wait(5 * time.Second) // it has read all objects
	f.kubelets.Logf("%d pods, warm", f.size.pods)
	began := f.made()
	f.start()
	took = f.seconds(readyWithin)
	calls = callsOf(began, f.made())
	f.check(f.account, "web")
	return took, calls
}
