package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/sim/cloud"
)

// Numbers of AWS's VPC resource controller. Source: main.go and pkg/worker of
// github.com/aws/amazon-vpc-resource-controller-k8s.
const (
	modelCalls, modelBurst = 12, 18 // to EC2, a second
	modelAPI, modelAPIMost = 20, 30 // to the API server, a second
	modelWorkers           = 30
	modelRetries           = 5
	modelFirstPause        = 5 * time.Millisecond // doubles with each retry
)

// model does for the pods of some nodes what AWS's VPC resource controller does: a queue of pods,
// of which each worker takes one, reads it, creates a branch, permits and associates it, and writes
// the annotation, with an event before and after. All calls of EC2 share one bucket, as they do where the
// controller has one role.
// It has no trunks to make, and deletes nothing.
type model struct {
	*account
	client *kubernetes.Clientset
	events *kube.Events
	ec2    *sdk.Client
	jobs   chan *corev1.Pod

	mu     sync.Mutex
	trunks map[string]vpc.ENIID // by node
	vlans  map[string]int       // the last of each node
	failed int
}

// paced sends requests at the rate of a bucket.
type paced struct {
	next   aws.HTTPClient
	bucket *rate.Limiter
}

// Do implements aws.HTTPClient.
func (p paced) Do(r *http.Request) (*http.Response, error) {
	if err := p.bucket.Wait(r.Context()); err != nil {
		return nil, err
	}
	return p.next.Do(r)
}

// startModel runs until the benchmark ends. nodes are named by their index.
func startModel(c *realCluster, a *account, nodes []string) *model {
	user := podeni.AWSWriters()[1]
	c.kubectl("", "create", "clusterrolebinding", "model", "--clusterrole=cluster-admin", "--user="+user)
	m := &model{account: a, client: c.client(modelAPI, modelAPIMost, user), jobs: make(chan *corev1.Pod, 2*c.size.pods), trunks: map[string]vpc.ENIID{}, vlans: map[string]int{}}
	m.events = kube.NewEvents(m.client, "")
	c.background("events of the model", func() error { m.events.Run(c.ctx); return nil })
	m.ec2 = sdk.NewFromConfig(a.config, func(o *sdk.Options) {
		o.HTTPClient = paced{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: modelWorkers}}, rate.NewLimiter(modelCalls, modelBurst)}
	})
	for i, name := range nodes {
		id := a.instance(i)
		made, err := a.cloud.CreateInterface(cloud.NewInterface{Subnet: a.cloud.State().Primary(id).Subnet, Type: vpc.TypeTrunk, Groups: []vpc.SecurityGroupID{a.groups["node"]}})
		if err == nil {
			_, err = a.cloud.Interface(made.ID).Attach(id, 1, 0)
		}
		if err != nil {
			c.Fatal(err)
		}
		m.trunks[name] = made.ID
	}
	for range modelWorkers {
		c.background("model of AWS's controller", func() error { m.work(c.ctx); return nil })
	}
	return m
}

func (m *model) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-m.jobs:
			pause, err := modelFirstPause, error(nil)
			for range modelRetries + 1 {
				if err = m.serve(ctx, p); err == nil || ctx.Err() != nil {
					break
				}
				m.wait(pause)
				pause *= 2
			}
			if err != nil && ctx.Err() == nil {
				m.mu.Lock()
				m.failed++
				m.mu.Unlock()
				m.Logf("model: pod %s is given up: %v", p.Name, err)
			}
		}
	}
}

// serve gives a pod a branch, by three calls.
func (m *model) serve(ctx context.Context, p *corev1.Pod) error {
	p, err := m.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ref := kube.PodRef{Namespace: p.Namespace, Name: p.Name}
	m.events.PodNormal(ref, string(p.UID), "SecurityGroupRequested", fmt.Sprintf("Pod will get the following Security Groups [%s]", m.groups["web"]))
	parent, vlan := m.next(p.Spec.NodeName)
	subnet := m.cloud.State().Interfaces[parent].Subnet
	tag := func(key, value string) ec2types.Tag {
		return ec2types.Tag{Key: aws.String(key), Value: aws.String(value)}
	}
	made, err := m.ec2.CreateNetworkInterface(ctx, &sdk.CreateNetworkInterfaceInput{
		SubnetId: aws.String(string(subnet)), Groups: []string{string(m.groups["web"])}, Description: aws.String(vpc.DescriptionBranch),
		TagSpecifications: []ec2types.TagSpecification{{ResourceType: ec2types.ResourceTypeNetworkInterface, Tags: []ec2types.Tag{
			tag(vpc.TagOwner, vpc.OwnerResourceController), tag(vpc.TagTrunkVLAN, fmt.Sprint(vlan)), tag(vpc.TagTrunkENI, string(parent)),
			tag(vpc.TagClusterName, sgpCluster), tag(vpc.TagManagedBy, vpc.ManagedByController),
		}}},
	})
	if err != nil {
		return err
	}
	eni := made.NetworkInterface
	if _, err := m.ec2.CreateNetworkInterfacePermission(ctx, &sdk.CreateNetworkInterfacePermissionInput{
		NetworkInterfaceId: eni.NetworkInterfaceId, Permission: ec2types.InterfacePermissionTypeInstanceAttach, AwsAccountId: aws.String("111122223333"),
	}); err != nil {
		return err
	}
	on, err := m.ec2.AssociateTrunkInterface(ctx, &sdk.AssociateTrunkInterfaceInput{
		BranchInterfaceId: eni.NetworkInterfaceId, TrunkInterfaceId: aws.String(string(parent)), VlanId: aws.Int32(int32(vlan)),
	})
	if err != nil {
		return err
	}
	return m.annotate(ctx, p, vpc.ENIID(*eni.NetworkInterfaceId), trunk.AssociationID(*on.InterfaceAssociation.AssociationId))
}

// next is the trunk of a node, and its next VLAN.
func (m *model) next(node string) (vpc.ENIID, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.vlans[node]++
	return m.trunks[node], m.vlans[node]
}

func (m *model) annotate(ctx context.Context, p *corev1.Pod, id vpc.ENIID, association trunk.AssociationID) error {
	i := m.cloud.State().Interfaces[id]
	text, err := podeni.Encode([]podeni.Entry{{
		ENI: id, MAC: i.MAC, IPv4: i.PrimaryIPv4(), VLAN: i.Trunk.VLAN, Subnet4: m.cloud.State().Subnets[i.Subnet].CIDR, Association: string(association),
	}})
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{vpc.AnnotationPodENI: text}}})
	if err != nil {
		return err
	}
	if _, err = m.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return err
	}
	ref := kube.PodRef{Namespace: p.Namespace, Name: p.Name}
	m.events.PodNormal(ref, string(p.UID), "ResourceAllocated", fmt.Sprintf("Allocated %s to the pod", text))
	return nil
}
