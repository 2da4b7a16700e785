//go:build netns

package world_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/testns"
)

// timeout bounds the wait for an expected change.
const timeout = time.Minute

// lab is a world with one instance, and a namespace of the test as its machine.
type lab struct {
	*world.World
	t     *testing.T
	guest *testns.NS
	node  *cloud.Instance

	mu         sync.Mutex // guards what follows
	reboots    int
	terminated bool
}

func newLab(t *testing.T, change ...func(*world.Config)) *lab {
	t.Helper()
	policy, err := os.ReadFile("../../deploy/iam/node-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, guest: testns.New(t, "node")}
	seq := testns.New(t, "seq") // reserves a unique name
	spec := smallSpec()
	spec.Instances[0].Namespace = l.guest.Name
	config := world.Config{
		Spec: spec, Namespace: seq.Name + "-vpc", Internet: seq.Name + "-net", Machines: l,
		Latency: 5 * time.Millisecond, // AWS's SDK loses long answers that come at once: see query.Options
		Roles:   []iam.Role{{Name: "node", Instances: true, Policies: map[string][]byte{"node-policy": policy}}},
	}
	for _, f := range change {
		f(&config)
	}
	l.World, err = world.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, name := range []string{seq.Name + "-vpc", seq.Name + "-net"} {
			if _, err := os.Stat("/run/netns/" + name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("namespace %s is left over: %v", name, err)
			}
		}
	})
	l.node = l.State().InstanceNamed("node1")
	l.boot()
	return l
}

// boot configures the primary interface as an instance's operating system would.
func (l *lab) boot() {
	l.t.Helper()
	primary := l.State().Primary(l.node.ID)
	subnet := l.State().Subnets[primary.Subnet]
	l.guest.Do(l.t, func() {
		link := l.linkOf(primary.MAC)
		if link == nil {
			l.t.Fatalf("no link with %s in %s", primary.MAC, l.guest.Name)
		}
		address := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(primary.IPv4.Addresses[0], subnet.CIDR.Bits()))}
		if err := errors.Join(netlink.AddrAdd(link, address), netlink.LinkSetUp(link), netlink.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: net.IP(vpc.Gateway(subnet.CIDR).AsSlice()),
		})); err != nil {
			l.t.Fatal(err)
		}
	})
}

// linkOf finds a link by its MAC. Call it inside the guest.
func (l *lab) linkOf(mac vpc.MAC) netlink.Link {
	links, err := netlink.LinkList()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, link := range links {
		if link.Attrs().HardwareAddr.String() == mac.String() {
			return link
		}
	}
	return nil
}

// hasLink reports whether the guest has the link of an interface, and whether it has
// a carrier.
func (l *lab) hasLink(i *cloud.Interface) (present, carrier bool) {
	l.guest.Do(l.t, func() {
		if link := l.linkOf(i.MAC); link != nil {
			if err := netlink.LinkSetUp(link); err != nil {
				l.t.Error(err)
			}
			link = l.linkOf(i.MAC)
			present, carrier = true, link.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
		}
	})
	return present, carrier
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Reboot implements world.Machines: it deletes the machine's links.
func (l *lab) Reboot(context.Context, vpc.InstanceID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reboots++
	return l.guest.Run(func() error {
		links, err := netlink.LinkList()
		for _, link := range links {
			if link.Type() == "veth" {
				err = errors.Join(err, netlink.LinkDel(link))
			}
		}
		return err
	})
}

// Terminate implements world.Machines.
func (l *lab) Terminate(context.Context, vpc.InstanceID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.terminated = true
	return nil
}

// http returns a client with connections from inside the guest.
func (l *lab) http() *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = l.guest.Run(func() error {
				c, err = (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}}
}

// ec2 returns the SDK inside the guest, with the credentials of its role and the SDK's own
// retries: a loaded machine can delay a request past the world's latency, see query.Options.
func (l *lab) ec2() *awsec2.Client {
	metadata := imds.New(imds.Options{HTTPClient: l.http()})
	return awsec2.New(awsec2.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(l.InsideEndpoint()), HTTPClient: l.http(),
		Credentials: aws.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = metadata })),
	})
}

// metadata reads a path below /latest/meta-data/.
func (l *lab) metadata(path string) string {
	l.t.Helper()
	out, err := imds.New(imds.Options{HTTPClient: l.http()}).GetMetadata(l.t.Context(), &imds.GetMetadataInput{Path: path})
	if err != nil {
		return err.Error()
	}
	defer out.Content.Close()
	body, err := io.ReadAll(out.Content)
	if err != nil {
		l.t.Fatal(err)
	}
	return string(body)
}

// await waits until a condition on the account holds.
func (l *lab) await(what string, holds func(*cloud.State) bool) {
	l.t.Helper()
	changed, stop := l.Cloud().Watch()
	defer stop()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for !holds(l.State()) {
		select {
		case <-changed:
		case <-deadline.C:
			l.t.Fatalf("%s: not within %s", what, timeout)
		}
	}
}

// newInterface creates and attaches an interface from inside the guest, as the
// agent does.
func (l *lab) newInterface(c *awsec2.Client, index int32) vpc.ENIID {
	l.t.Helper()
	ctx := l.t.Context()
	made, err := c.CreateNetworkInterface(ctx, &awsec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(string(l.node.Subnet)), SecondaryPrivateIpAddressCount: aws.Int32(3),
		TagSpecifications: []types.TagSpecification{{
			ResourceType: types.ResourceTypeNetworkInterface,
			Tags: []types.Tag{
				{Key: aws.String(vpc.TagManagedBy), Value: aws.String("trunkline")},
				{Key: aws.String(vpc.TagInstanceID), Value: aws.String(string(l.node.ID))},
			},
		}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	id := made.NetworkInterface.NetworkInterfaceId
	if _, err := c.AttachNetworkInterface(ctx, &awsec2.AttachNetworkInterfaceInput{
		NetworkInterfaceId: id, InstanceId: aws.String(string(l.node.ID)), DeviceIndex: aws.Int32(index),
	}); err != nil {
		l.t.Fatal(err)
	}
	return vpc.ENIID(*id)
}

func attached(id vpc.ENIID) func(*cloud.State) bool {
	return func(s *cloud.State) bool {
		i := s.Interfaces[id]
		return i.Attachment != nil && i.Attachment.Status == cloud.Attached
	}
}

// From inside an instance, with its role's credentials from instance metadata and the
// shipped policy, an interface is created, attached and detached, and the link is
// added and removed.
func TestInstanceAttachesAnInterfaceToItself(t *testing.T) {
	l := newLab(t)
	if got := l.metadata("instance-id"); got != string(l.node.ID) {
		t.Fatalf("metadata says %s, want %s", got, l.node.ID)
	}
	c := l.ec2()
	id := l.newInterface(c, 1)
	l.await("attached", attached(id))
	i := l.State().Interfaces[id]
	if present, carrier := l.hasLink(i); !present || !carrier {
		t.Fatalf("link present %v, carrier %v", present, carrier)
	}
	if macs := l.metadata("network/interfaces/macs/"); !strings.Contains(macs, i.MAC.String()) {
		t.Errorf("metadata lists %q, want %s among them", macs, i.MAC)
	}
	if got := l.metadata("network/interfaces/macs/" + i.MAC.String() + "/local-ipv4s"); len(strings.Fields(got)) != 4 {
		t.Errorf("local-ipv4s %q, want four", got)
	}
	if _, err := c.DetachNetworkInterface(t.Context(), &awsec2.DetachNetworkInterfaceInput{
		AttachmentId: aws.String(string(i.Attachment.ID)),
	}); err != nil {
		t.Fatal(err)
	}
	l.await("detached", func(s *cloud.State) bool { return s.Interfaces[id].Attachment == nil })
	if present, _ := l.hasLink(i); present {
		t.Error("the link still exists after the interface was detached")
	}
	if _, err := c.DeleteNetworkInterface(t.Context(), &awsec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(string(id))}); err != nil {
		t.Fatal(err)
	}
}

func TestResolverAnswersForTheAPIAndPrivateNames(t *testing.T) {
	l := newLab(t)
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = l.guest.Run(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, "10.0.0.2:53")
			return err
		})
		return c, err
	}}
	primary := l.State().Primary(l.node.ID).IPv4.Addresses[0]
	for name, want := range map[string]string{
		"ec2.us-west-2.amazonaws.com":            world.APIAddress,
		"sts.us-west-2.amazonaws.com":            world.APIAddress,
		vpc.PrivateDNSName(primary, "us-west-2"): primary.String(),
	} {
		got, err := resolver.LookupHost(t.Context(), name)
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s is %v (%v), want %s", name, got, err, want)
		}
	}
}

func TestDelayedAttachIsAttachingWithoutALink(t *testing.T) {
	l := newLab(t)
	if err := l.Faults().Set(faults.Plan{AttachTime: faults.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	id := l.newInterface(l.ec2(), 1)
	if err := l.Plug(t.Context(), l.node.ID); err != nil {
		t.Fatal(err)
	}
	i := l.State().Interfaces[id]
	if present, _ := l.hasLink(i); present || i.Attachment.Status != cloud.Attaching {
		t.Fatalf("link present %v, status %s; want none, attaching", present, i.Attachment.Status)
	}
	if err := l.Faults().Set(faults.Plan{}); err != nil {
		t.Fatal(err)
	}
	l.await("attached", attached(id))
}

func TestStaleMetadataOmitsANewInterface(t *testing.T) {
	l := newLab(t)
	if err := l.Faults().Set(faults.Plan{MetadataLag: faults.Duration(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	id := l.newInterface(l.ec2(), 1)
	l.await("attached", attached(id))
	mac := l.State().Interfaces[id].MAC.String()
	if macs := l.metadata("network/interfaces/macs/"); strings.Contains(macs, mac) {
		t.Errorf("metadata an hour late lists %q, and %s is new", macs, mac)
	}
	if err := l.Faults().Set(faults.Plan{}); err != nil {
		t.Fatal(err)
	}
	if macs := l.metadata("network/interfaces/macs/"); !strings.Contains(macs, mac) {
		t.Errorf("metadata lists %q, want %s among them", macs, mac)
	}
}

func TestADetachedInterfaceIsInMetadataAndInUseForSeconds(t *testing.T) {
	l := newLab(t)
	id := l.newInterface(l.ec2(), 1)
	l.await("attached", attached(id))
	i := l.State().Interfaces[id]
	if err := l.Cloud().Detach(i.Attachment.ID); err != nil {
		t.Fatal(err)
	}
	until := l.State().Interfaces[id].Attachment.Until
	if macs := l.metadata("network/interfaces/macs/"); !strings.Contains(macs, i.MAC.String()) {
		t.Errorf("metadata lists %q, want %s among them while it is detaching", macs, i.MAC)
	}
	if err := l.Cloud().Interface(id).Delete(); err == nil {
		t.Error("an interface was deleted while it was detaching")
	}
	l.await("detached", func(s *cloud.State) bool { return s.Interfaces[id].Attachment == nil })
	if now := time.Now(); now.Before(until) {
		t.Errorf("detached %s early", until.Sub(now))
	}
	if macs := l.metadata("network/interfaces/macs/"); strings.Contains(macs, i.MAC.String()) {
		t.Errorf("metadata lists %q, and %s is detached", macs, i.MAC)
	}
}

func TestLinkDownFaultCutsAndRestoresTheCarrier(t *testing.T) {
	l := newLab(t)
	id := l.newInterface(l.ec2(), 1)
	l.await("attached", attached(id))
	for _, down := range []bool{true, false} {
		plan := faults.Plan{}
		if down {
			plan.LinkDown = []string{string(id)}
		}
		if err := errors.Join(l.Faults().Set(plan), l.Plug(t.Context(), l.node.ID)); err != nil {
			t.Fatal(err)
		}
		if present, carrier := l.hasLink(l.State().Interfaces[id]); !present || carrier == down {
			t.Errorf("down %v: present %v, carrier %v", down, present, carrier)
		}
	}
}

func TestRebootedMachineGetsItsLinksBack(t *testing.T) {
	l := newLab(t)
	id := l.newInterface(l.ec2(), 1)
	l.await("attached", attached(id))
	if err := l.World.Reboot(t.Context(), l.node.ID); err != nil {
		t.Fatal(err)
	}
	if l.reboots != 1 {
		t.Errorf("the machine was rebooted %d times, want once", l.reboots)
	}
	for _, i := range l.State().InterfacesOf(l.node.ID) {
		if present, _ := l.hasLink(i); !present {
			t.Errorf("%s at index %d has no link", i.ID, i.Attachment.DeviceIndex)
		}
	}
	l.boot()
	if got := l.metadata("instance-id"); got != string(l.node.ID) {
		t.Errorf("after the reboot metadata says %s", got)
	}
}

func TestTerminatedMachineLosesItsLinks(t *testing.T) {
	l := newLab(t)
	primary := l.State().Primary(l.node.ID)
	if err := l.World.Terminate(t.Context(), l.node.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.Plug(t.Context(), l.node.ID); err != nil {
		t.Fatal(err)
	}
	if present, _ := l.hasLink(primary); present || !l.terminated || l.State().Interfaces[primary.ID] != nil {
		t.Errorf("link %v, machine terminated %v, interface %v", present, l.terminated, l.State().Interfaces[primary.ID])
	}
}

func TestWithoutThePlatformOnlyTheResolverAnswers(t *testing.T) {
	for _, without := range []bool{false, true} {
		l := newLab(t, func(c *world.Config) { c.NoPlatform = without })
		l.guest.Do(t, func() {
			for _, at := range []string{vpc.MetadataV4.String() + ":80", world.APIAddress + ":80"} {
				c, err := net.DialTimeout("tcp", at, 2*time.Second)
				if err == nil {
					err = c.Close()
				}
				if (err != nil) != without {
					t.Errorf("without the platform %v: dial %s: %v", without, at, err)
				}
			}
			c, err := net.DialTimeout("tcp", vpc.Resolver(l.State().VPC.CIDRs[0]).String()+":53", timeout)
			if err == nil {
				err = c.Close()
			}
			if err != nil {
				t.Errorf("without the platform %v: dial the resolver: %v", without, err)
			}
		})
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWorldStartsWithAMissingGuestNamespace(t *testing.T) {
	spec := smallSpec()
	spec.Instances[0].Namespace = "tl-no-such-namespace"
	seq := testns.New(t, "seq")
	w, err := world.Start(t.Context(), world.Config{
		Spec: spec, Namespace: seq.Name + "-vpc", Internet: seq.Name + "-net", Roles: []iam.Role{{Name: "node", Instances: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	n := w.State().InstanceNamed("node1")
	if err := w.Plug(t.Context(), n.ID); err == nil {
		t.Error("plugging into a missing namespace returned no error")
	}
	if _, err := os.Stat(netns.Path(seq.Name + "-vpc")); err != nil {
		t.Error(err)
	}
}
