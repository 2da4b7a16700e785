//go:build netns

package podgroups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

const (
	web  = "sg-0000000a"
	db   = "sg-0000000b"
	ops  = "sg-0000000c"
	node = "sg-0000000d"

	deny = 300 * time.Millisecond // for how long a connection is tried
)

// serve answers connections to ports of a pod.
func (c *Cluster) serve(p *Pod, ports ...int) {
	c.T.Helper()
	for _, port := range ports {
		p.NS.Do(c.T, func() {
			l, err := net.Listen("tcp4", fmt.Sprint("0.0.0.0:", port))
			if err != nil {
				c.T.Fatal(err)
			}
			c.T.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
				}
			}()
		})
	}
}

// dial opens a connection from a pod.
func dial(t testing.TB, from *Pod, to netip.Addr, port int) (conn net.Conn, err error) {
	from.NS.Do(t, func() {
		conn, err = net.DialTimeout("tcp4", netip.AddrPortFrom(to, uint16(port)).String(), deny)
	})
	return conn, err
}

func connects(t testing.TB, from *Pod, to netip.Addr, port int) bool {
	conn, err := dial(t, from, to, port)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// until waits until a connection has a verdict.
func (c *Cluster) until(want bool, from *Pod, to netip.Addr, port int) {
	c.T.Helper()
	for end := time.Now().Add(Timeout); connects(c.T, from, to, port) != want; {
		if time.Now().After(end) {
			c.T.Fatalf("%s to %s port %d: connects is still %v", from.Name, to, port, !want)
		}
	}
}

func (c *Cluster) expect(want bool, from *Pod, to netip.Addr, port int) {
	c.T.Helper()
	if got := connects(c.T, from, to, port); got != want {
		c.T.Errorf("%s to %s port %d: connects = %v, want %v", from.Name, to, port, got, want)
	}
}

// world has pods of web and db on two nodes, and pods without groups.
type world struct {
	*Cluster
	web, db, plain, other *Pod
}

// ofNodes is the VPC of the nodes.
const ofNodes = "vpc-0123456789abcdef0"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Cluster: NewCluster(t, ofNodes)}
	w.Policy("web", "web", web)
	w.Policy("db", "db", db)
	w.Group(web, nil, TCP(trunkline.RuleEgress, 5432, 5432, db))
	w.Group(db, []string{"10.0.9.9/32"}, TCP(trunkline.RuleIngress, 5432, 5432, web))
	w.synced()
	w.db = w.Pod(1, "db-0", "db", "default", "10.0.2.20")
	w.web = w.Pod(0, "web-0", "web", "default", "10.0.1.20")
	w.plain = w.Pod(0, "plain-0", "plain", "default", "10.0.1.21")
	w.other = w.Pod(1, "other-0", "plain", "default", "10.0.2.21")
	w.serve(w.db, 5432, 22)
	w.serve(w.other, 5432)
	w.serve(w.web, 80)
	return w
}

// synced waits until both nodes know the objects of the API server.
func (c *Cluster) synced() {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), Timeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, n := range c.Nodes {
		for !n.judged.Known() || !n.judged.Synced() || !n.Enforcing() {
			select {
			case <-ctx.Done():
				c.T.Fatalf("node %s is not synced: known %v, synced %v, enforcing %v %s", n.Address, n.judged.Known(), n.judged.Synced(), n.Enforcing(), n.Problem())
			case <-tick.C:
			}
		}
	}
}

func TestGroupsOfPodsOnTwoNodesReferToEachOther(t *testing.T) {
	w := newWorld(t)
	w.until(true, w.web, w.db.Address, 5432)
	w.expect(false, w.web, w.db.Address, 22)       // no rule of db
	w.expect(false, w.web, w.other.Address, 5432)  // no rule of web
	w.expect(false, w.plain, w.db.Address, 5432)   // not in web
	w.expect(false, w.db, w.web.Address, 80)       // the other way
	w.expect(false, w.other, w.web.Address, 80)    // no ingress rule at all
	w.expect(true, w.plain, w.other.Address, 5432) // no groups at either end
	w.expect(true, w.plain, w.other.Address, 5432) // by the connection's entry
	w.expect(false, w.plain, w.web.Address, 80)    // on one node
	w.expect(true, w.web, w.db.Address, 5432)
}

func TestMembershipIsFollowed(t *testing.T) {
	w := newWorld(t)
	w.until(true, w.web, w.db.Address, 5432)
	t.Run("a pod that comes to match is a member", func(t *testing.T) {
		late := w.Pod(0, "late-0", "none", "default", "10.0.1.40")
		w.expect(false, late, w.db.Address, 5432)
		late.Labels = map[string]string{"app": "web"}
		w.Show(0, late)
		w.until(true, late, w.db.Address, 5432)
		w.serve(late, 80)
		w.expect(false, w.plain, late.Address, 80) // and its groups apply to it
	})
	t.Run("a pod that matches no more is none", func(t *testing.T) {
		w.web.Labels = map[string]string{"app": "none"}
		w.Show(0, w.web)
		w.until(false, w.web, w.db.Address, 5432)
		w.until(true, w.plain, w.web.Address, 80)
		w.web.Labels = map[string]string{"app": "web"}
		w.Show(0, w.web)
		w.until(true, w.web, w.db.Address, 5432)
	})
	t.Run("a forged label makes no member", func(t *testing.T) {
		w.plain.Labels = map[string]string{"app": "plain", "member.groups.trunkline.dev/" + web: "true"}
		w.Show(0, w.plain)
		w.until(true, w.web, w.db.Address, 5432)
		w.expect(false, w.plain, w.db.Address, 5432)
	})
	t.Run("an interface of the VPC joins and leaves", func(t *testing.T) {
		w.Policy("ops", "ops", ops)
		w.Group(ops, nil, TCP(trunkline.RuleEgress, 0, 65535, db))
		client := w.Pod(0, "ops-0", "ops", "default", "10.0.1.41")
		w.expect(false, client, w.other.Address, 5432)
		w.Group(db, []string{w.other.Address.String() + "/32"}, TCP(trunkline.RuleIngress, 5432, 5432, web))
		w.until(true, client, w.other.Address, 5432)
		w.Group(db, nil, TCP(trunkline.RuleIngress, 5432, 5432, web))
		w.until(false, client, w.other.Address, 5432)
	})
	t.Run("a pod without groups has those of its node's interface", func(t *testing.T) {
		w.NodeGroup(node, "10.0.1.16/28")
		w.expect(false, w.plain, w.db.Address, 5432)
		w.Group(db, nil, TCP(trunkline.RuleIngress, 5432, 5432, web), TCP(trunkline.RuleIngress, 5432, 5432, node))
		w.until(true, w.plain, w.db.Address, 5432)
		w.Policy("all", "plain", ops)
		w.until(false, w.plain, w.db.Address, 5432)
	})
}

func TestRulesAndPoliciesAreEditedLive(t *testing.T) {
	w := newWorld(t)
	w.until(true, w.web, w.db.Address, 5432)
	open, err := dial(t, w.web, w.db.Address, 5432)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	echo := func() error {
		if err := open.SetDeadline(time.Now().Add(deny)); err != nil {
			return err
		}
		if _, err := open.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(open, make([]byte, 1))
		return err
	}
	if err := echo(); err != nil {
		t.Fatalf("the connection is open: %v", err)
	}
	w.Group(db, nil, TCP(trunkline.RuleIngress, 22, 22, web))
	w.Group(web, nil, TCP(trunkline.RuleEgress, 0, 65535, "10.0.0.0/16"))
	w.until(true, w.web, w.db.Address, 22)
	w.until(false, w.web, w.db.Address, 5432)
	if err := echo(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection that no rule allows any more: %v, want a timeout", err)
	}
	w.NetworkPolicy("closed", networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}})
	w.until(false, w.web, w.db.Address, 22) // groups and network policies must both allow
	w.NetworkPolicy("closed", networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
	})
	w.until(true, w.web, w.db.Address, 22)
	w.expect(false, w.web, w.db.Address, 5432) // which the network policy allows, and no group
	w.Server.Delete(groupsPath, db)
	w.until(false, w.web, w.db.Address, 22) // what is not known allows nothing
}

// One pass of the controller after a change of EC2 is enough.
func TestGroupsOfEC2AreFollowedWithOnePass(t *testing.T) {
	v := NewVPC(t)
	w := &world{Cluster: NewCluster(t, v.ID)}
	feed := v.Feed(t, w.Server)
	ingress := []types.IpPermission{{IpProtocol: aws.String("tcp"), FromPort: aws.Int32(5432), ToPort: aws.Int32(5432), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: aws.String(v.Web)}}}}
	w.Policy("web", "web", v.Web)
	w.Policy("db", "db", v.DB)
	for end := time.Now().Add(Timeout); !feed.Policies.Synced() || len(feed.Policies.State().Policies) != 2; {
		if time.Now().After(end) {
			t.Fatal("the controller does not know the policies")
		}
	}
	pass := func(change error) {
		t.Helper()
		if err := errors.Join(change, feed.Pass(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	pass(nil)
	w.db = w.Pod(1, "db-0", "db", "default", "10.0.2.20")
	w.web = w.Pod(0, "web-0", "web", "default", "10.0.1.20") // web may send everything, as each new group of EC2
	w.plain = w.Pod(0, "plain-0", "plain", "default", "10.0.1.21")
	w.serve(w.db, 5432)
	w.expect(false, w.web, w.db.Address, 5432)
	_, err := v.EC2.AuthorizeSecurityGroupIngress(t.Context(), &sdk.AuthorizeSecurityGroupIngressInput{GroupId: aws.String(v.DB), IpPermissions: ingress})
	pass(err)
	w.until(true, w.web, w.db.Address, 5432)
	w.expect(false, w.plain, w.db.Address, 5432)
	made, err := v.EC2.CreateNetworkInterface(t.Context(), &sdk.CreateNetworkInterfaceInput{SubnetId: aws.String(v.Subnet), Groups: []string{v.Web}, PrivateIpAddress: aws.String(w.plain.Address.String())})
	pass(err)
	w.until(true, w.plain, w.db.Address, 5432) // an interface with its address has joined
	_, err = v.EC2.ModifyNetworkInterfaceAttribute(t.Context(), &sdk.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: made.NetworkInterface.NetworkInterfaceId, Groups: []string{v.DB}})
	pass(err)
	w.until(false, w.plain, w.db.Address, 5432)
	_, err = v.EC2.RevokeSecurityGroupIngress(t.Context(), &sdk.RevokeSecurityGroupIngressInput{GroupId: aws.String(v.DB), IpPermissions: ingress})
	pass(err)
	w.until(false, w.web, w.db.Address, 5432)
}

func TestPodsAreRefusedWithoutTheirGroups(t *testing.T) {
	w := newWorld(t)
	w.AccountPolicy("payments", "db", "sg-00000099")
	w.until(true, w.web, w.db.Address, 5432)
	p := &Pod{Address: netip.MustParseAddr("10.0.1.50"), Pod: w.web.Pod}
	p.Name, p.UID, p.Labels, p.ServiceAccount = "pay-0", "uid-pay-0", nil, "payments"
	var err error
	for end := time.Now().Add(Timeout); time.Now().Before(end); {
		if err = w.Nodes[0].Component.Admit(t.Context(), p.Pod); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), `security group "sg-00000099": the security group has not been read from EC2 yet`) {
		t.Fatalf("admitted: %v", err)
	}
	w.Group("sg-00000099", nil)
	if err := w.Nodes[0].Retry(p); err != nil {
		t.Fatal(err)
	}
	w.expect(false, p, w.other.Address, 5432) // from its first packet: the group has no rule
	w.expect(true, w.plain, w.other.Address, 5432)
}

func TestGroupsStayInForceWithoutTheAPIServer(t *testing.T) {
	w := newWorld(t)
	w.until(true, w.web, w.db.Address, 5432)
	node := w.Nodes[1]
	node.Saved(w.web.Name, w.db.Name)
	w.Server.SetDown(true)
	node.Stop()
	w.expect(true, w.web, w.db.Address, 5432) // the programs go on
	w.expect(false, w.plain, w.db.Address, 5432)
	node.SetVPC("")
	node.Start()
	w.expect(true, w.web, w.db.Address, 5432) // no pod is cut off before the node knows its VPC
	if err := node.Component.Admit(t.Context(), w.db.Pod); err == nil || !strings.Contains(err.Error(), "the pod's security groups are not known to this node yet") {
		t.Errorf("a pod on a node that does not know its VPC: %v", err)
	}
	node.SetVPC(ofNodes)
	w.until(true, w.web, w.db.Address, 5432)
	w.expect(false, w.web, w.db.Address, 22)
	w.expect(false, w.plain, w.db.Address, 5432)
	p := &Pod{Address: netip.MustParseAddr("10.0.2.50"), Pod: w.db.Pod}
	p.Name, p.UID, p.Addresses = "db-1", "uid-db-1", nil
	if err := node.Retry(p); err != nil {
		t.Fatal(err)
	}
	w.serve(p, 5432)
	w.expect(false, w.web, p.Address, 5432) // the other node does not know the pod
	w.expect(false, w.plain, p.Address, 5432)
	w.expect(false, w.other, p.Address, 5432)

	node.Stop()
	if err := os.Remove(node.GroupSnapshot()); err != nil {
		t.Fatal(err)
	}
	node.Start()
	late := &Pod{Address: netip.MustParseAddr("10.0.2.51"), Pod: w.other.Pod}
	late.Name = "late"
	if err := node.Add(late); err == nil || !strings.Contains(err.Error(), "the pod's security groups are not known to this node yet") {
		t.Errorf("a pod on a node that knows no groups: %v", err)
	}
	w.until(true, w.web, w.db.Address, 5432) // what was in force is
	w.expect(false, w.plain, w.db.Address, 5432)
}
