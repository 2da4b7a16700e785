package bench

import (
	"log/slog"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/resourcecontroller"
)

// model is a model of AWS's VPC resource controller, for the nodes of an account. All its calls of EC2
// share one rate, as they do where AWS's controller has one role.
type model struct{ *account }

// startModel runs the model until the benchmark ends, and returns once all nodes have trunks. nodes are
// named by their index.
func startModel(c *realCluster, a *account, nodes []string) *model {
	user := podeni.AWSWriters()[1]
	c.kubectl("", "create", "clusterrolebinding", "model", "--clusterrole=cluster-admin", "--user="+user)
	access := c.access("")
	access.Impersonate = restclient.ImpersonationConfig{UserName: user, Groups: accountGroups()}
	serves := map[string]bool{}
	for _, name := range nodes {
		serves[name] = true
	}
	limits := a.cloud.State().InstanceNamed(instanceName(0)).Limits
	controller, err := resourcecontroller.New(resourcecontroller.Options{
		API: access, User: a.eks, Cluster: sgpCluster, Account: a.cloud.State().Account,
		Limits: func(string) vpc.Limits { return limits }, Serves: func(node string) bool { return serves[node] }, Unasked: true,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		c.Fatal(err)
	}
	c.background("model of AWS's controller", func() error { controller.Run(c.ctx); return nil })
	c.until("trunks of AWS's controller", func() bool {
		all, err := c.Client().CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(all.Items, func(n corev1.Node) bool {
			return serves[n.Name] && n.Status.Capacity.Name(vpc.ResourcePodENI, "").IsZero()
		})
	})
	return &model{a}
}
