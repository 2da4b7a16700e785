package podgroups

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// Paths of the API server.
const (
	namespacesPath      = "/api/v1/namespaces"
	podsPath            = "/api/v1/pods"
	accountsPath        = "/api/v1/serviceaccounts"
	networkPoliciesPath = "/apis/networking.k8s.io/v1/networkpolicies"
	groupPoliciesPath   = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	groupsPath          = "/apis/trunkline.dev/v1alpha1/securitygroups"
)

// Cluster is an API server and two nodes.
type Cluster struct {
	T      testing.TB
	Server *kubetest.Server
	Nodes  [2]*Node
	VPC    vpc.ID
}

// NewCluster makes a cluster in a VPC with the namespace shop and its service accounts.
func NewCluster(t testing.TB, id vpc.ID) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Server: kubetest.New(t), VPC: id}
	c.Server.Put(namespacesPath, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	for name, labels := range map[string]map[string]string{"default": nil, "payments": {"group": "db"}} {
		c.Server.Put(accountsPath, &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels}})
	}
	for i := range c.Nodes {
		c.Nodes[i] = New(t, i+1, c.Server, id)
	}
	Connect(c.Nodes[0], c.Nodes[1])
	return c
}

// Policy puts a SecurityGroupPolicy that gives groups to pods with a label.
func (c *Cluster) Policy(name, app string, groups ...string) {
	c.putPolicy(name, vpcresources.SecurityGroupPolicySpec{
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, SecurityGroups: vpcresources.GroupIDs{Groups: groups},
	})
}

// AccountPolicy puts a SecurityGroupPolicy that gives groups to pods of accounts with a label.
func (c *Cluster) AccountPolicy(name, label string, groups ...string) {
	c.putPolicy(name, vpcresources.SecurityGroupPolicySpec{
		ServiceAccountSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": label}}, SecurityGroups: vpcresources.GroupIDs{Groups: groups},
	})
}

func (c *Cluster) putPolicy(name string, spec vpcresources.SecurityGroupPolicySpec) {
	c.Server.Put(groupPoliciesPath, &vpcresources.SecurityGroupPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: vpcresources.KindSecurityGroupPolicy},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec,
	})
}

// NetworkPolicy puts a NetworkPolicy.
func (c *Cluster) NetworkPolicy(name string, spec networkingv1.NetworkPolicySpec) {
	c.Server.Put(networkPoliciesPath, &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec,
	})
}

// Group puts a security group, as the controller writes it.
func (c *Cluster) Group(id string, members []string, rules ...trunkline.SecurityGroupRule) {
	c.put(id, trunkline.SecurityGroupSpec{Members: members, Rules: rules})
}

// NodeGroup puts the group of a node's interface, which has addresses for pods.
func (c *Cluster) NodeGroup(id string, pools ...string) {
	c.put(id, trunkline.SecurityGroupSpec{Pools: pools})
}

func (c *Cluster) put(id string, spec trunkline.SecurityGroupSpec) {
	spec.VPCID = string(c.VPC)
	for i := range spec.Rules {
		spec.Rules[i].ID = fmt.Sprintf("sgr-%08x", i+1)
	}
	c.Server.Put(groupsPath, &trunkline.SecurityGroup{
		TypeMeta: metav1.TypeMeta{APIVersion: trunkline.GroupVersion().String(), Kind: "SecurityGroup"}, ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: spec,
	})
}

// TCP is a rule for ports of TCP; peer is a range or the id of a group.
func TCP(d trunkline.RuleDirection, from, to int32, peer string) trunkline.SecurityGroupRule {
	const protocol = 6
	r := trunkline.SecurityGroupRule{Direction: d, Protocol: protocol, FromPort: from, ToPort: to}
	if _, err := netip.ParsePrefix(peer); err == nil {
		r.Prefixes = []string{peer}
	} else {
		r.GroupID = peer
	}
	return r
}

// Pod wires a pod of the namespace shop on a node, and has the API server show its address.
func (c *Cluster) Pod(node int, name, app, account, address string) *Pod {
	c.T.Helper()
	p := &Pod{Address: netip.MustParseAddr(address), Pod: kube.Pod{
		PodRef: kube.PodRef{Namespace: "shop", Name: name}, UID: "uid-" + name, Labels: map[string]string{"app": app}, ServiceAccount: account,
	}}
	c.known()
	if err := c.Nodes[node].Retry(p); err != nil {
		c.T.Fatalf("add pod %s: %v", name, err)
	}
	p.Addresses = []netip.Addr{p.Address}
	c.Show(node, p)
	return p
}

// known waits until both nodes know as many policies and groups as the API server has.
func (c *Cluster) known() {
	c.T.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, n := range c.Nodes {
		for end := time.Now().Add(Timeout); ; <-tick.C {
			s := n.groups.State()
			if len(s.Policies) == len(c.Server.Keys(groupPoliciesPath)) && len(s.Groups) == len(c.Server.Keys(groupsPath)) {
				break
			}
			if time.Now().After(end) {
				c.T.Fatalf("node %s knows %d policies and %d groups", n.Address, len(s.Policies), len(s.Groups))
			}
		}
	}
}

// Show has the API server and the node's own watch show a pod as it is now.
func (c *Cluster) Show(node int, p *Pod) {
	c.Server.Put(podsPath, &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec:   corev1.PodSpec{NodeName: fmt.Sprint("node", node), ServiceAccountName: p.ServiceAccount},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.Address.String(), PodIPs: []corev1.PodIP{{IP: p.Address.String()}}},
	})
	c.Nodes[node].SetPod(p.Pod)
}
