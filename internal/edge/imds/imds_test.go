package imds_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/imds"
	simimds "github.com/trunkline/trunkline/sim/imds"
)

// machine is one instance with its metadata, for any client.
type machine struct{ instance simimds.Instance }

func (m machine) ByAddress(netip.Addr) (simimds.Instance, bool) { return m.instance, true }
func (m machine) Credentials(vpc.InstanceID) (simimds.Credentials, bool) {
	return simimds.Credentials{}, false
}

func macs() (primary, secondary vpc.MAC) {
	return vpc.MAC{2, 0, 0, 0, 0, 1}, vpc.MAC{2, 0, 0, 0, 0, 2}
}

func m5xlarge() simimds.Instance {
	first, second := macs()
	prefix := netip.MustParsePrefix
	eni := func(id vpc.ENIID, mac vpc.MAC, device int, addrs ...netip.Addr) simimds.Interface {
		return simimds.Interface{
			ID: id, MAC: mac, DeviceNumber: device, Owner: "111122223333",
			Groups: []simimds.Group{{ID: "sg-1", Name: "node"}, {ID: "sg-2", Name: "more"}}, IPv4: addrs,
			Subnet: simimds.Subnet{ID: "subnet-1", CIDRs: []netip.Prefix{prefix("10.0.0.0/19")}},
			VPC:    simimds.VPC{ID: "vpc-1", CIDRs: []netip.Prefix{prefix("10.0.0.0/16"), prefix("100.64.0.0/16")}},
		}
	}
	return simimds.Instance{
		ID: "i-0123456789abcdef0", Type: "m5.xlarge", Account: "111122223333",
		Placement: simimds.Placement{Region: "us-west-2", Zone: "us-west-2a", ZoneID: "usw2-az1"}, Launched: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		Interfaces: []simimds.Interface{
			eni("eni-1", first, 0, netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")),
			eni("eni-2", second, 1, netip.MustParseAddr("10.0.0.7")),
		},
		Options: simimds.Options{TokensRequired: true},
	}
}

// serve answers for an instance on loopback and returns a client.
func serve(t *testing.T, instance simimds.Instance) *imds.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- simimds.New(machine{instance}, simimds.Config{}).Serve(ctx, listener) }()
	t.Cleanup(func() { stop(); <-done })
	return imds.New(aws.Config{}, imds.Options{Endpoint: "http://" + listener.Addr().String(), Tries: 1})
}

func TestIdentityIsReadFromAServiceThatRequiresTokens(t *testing.T) {
	got, err := serve(t, m5xlarge()).Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, _ := macs()
	want := imds.Identity{
		Instance: "i-0123456789abcdef0", Type: "m5.xlarge", Region: "us-west-2", Zone: "us-west-2a",
		Account: "111122223333", PrimaryMAC: first, PrimaryIP: netip.MustParseAddr("10.0.0.5"),
	}
	if got != want {
		t.Errorf("identity = %+v, want %+v", got, want)
	}
}

func TestInterfacesAreReadByMAC(t *testing.T) {
	c := serve(t, m5xlarge())
	first, _ := macs()
	got, err := c.Interface(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	want := imds.Interface{
		MAC: first, ID: "eni-1", VPC: "vpc-1", Subnet: "subnet-1", SubnetCIDR: netip.MustParsePrefix("10.0.0.0/19"),
		VPCv4CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16")},
		Groups:     []vpc.SecurityGroupID{"sg-1", "sg-2"},
		LocalIPv4s: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("interface (-want +got):\n%s", diff)
	}
	_, second := macs()
	if got, err := c.Interface(t.Context(), second); err != nil || got.ID != "eni-2" || got.Device != 1 {
		t.Errorf("the second interface is %s, device %d, %v", got.ID, got.Device, err)
	}
	cidrs, unreadable, err := c.VPCCIDRs(t.Context(), first)
	if err != nil || len(cidrs) != 2 || len(unreadable) > 0 {
		t.Errorf("ranges of the VPC = %v, %v; want both", cidrs, err)
	}
}

func TestAnUnknownInterfaceIsErrNone(t *testing.T) {
	_, err := serve(t, m5xlarge()).Interface(t.Context(), vpc.MAC{2, 9, 9, 9, 9, 9})
	if !errors.Is(err, imds.ErrNone) {
		t.Errorf("error = %v, want ErrNone", err)
	}
}

func TestAnInvalidValueIsNamed(t *testing.T) {
	for _, c := range []struct{ name, value, words string }{
		{"a range that is none", "10.0.0.0", "vpc-ipv4-cidr-blocks"},
		{"an endless value", strings.Repeat("10.0.0.0/16\n", 8000), "more than 65536 bytes"},
		{"nothing", "", "no such value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := answering(t, c.value)
			first, _ := macs()
			_, _, err := client.VPCCIDRs(t.Context(), first)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error = %v, want one that names %q", err, c.words)
			}
		})
	}
}

func TestIMDSv1IsNeverUsed(t *testing.T) {
	asked := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusForbidden) // tokens are off: a client may fall back
			return
		}
		asked = true
		_, _ = w.Write([]byte("i-1"))
	}))
	defer server.Close()
	_, err := imds.New(aws.Config{}, imds.Options{Endpoint: server.URL, Tries: 1}).Identity(t.Context())
	if err == nil || asked {
		t.Errorf("error = %v, asked without a token: %v; want an error and no request", err, asked)
	}
}

// answering is a client of a service that answers every question with a value.
func answering(t *testing.T, value string) *imds.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			_, _ = w.Write([]byte("token"))
			return
		}
		_, _ = w.Write([]byte(value))
	}))
	t.Cleanup(server.Close)
	return imds.New(aws.Config{}, imds.Options{Endpoint: server.URL, Tries: 1})
}

// One line that cannot be read does not keep the node from the others.
func TestAnUnreadableLineIsSkippedAndReported(t *testing.T) {
	first, _ := macs()
	cidrs, unreadable, err := answering(t, "10.0.0.0/16\n10.1.0.0/99\n100.64.0.0/16\n").VPCCIDRs(t.Context(), first)
	if err != nil || !slices.Equal(cidrs, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16")}) {
		t.Errorf("%v, %v; want the two that can be read", cidrs, err)
	}
	if len(unreadable) != 1 || !strings.Contains(unreadable[0], "10.1.0.0/99") || !strings.Contains(unreadable[0], "vpc-ipv4-cidr-blocks") {
		t.Errorf("unreadable %q, want the line and where it is", unreadable)
	}
}
