package imds_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/imds"
	simimds "github.com/trunkline/trunkline/sim/imds"
)

// counted serves metadata and counts requests; edit may answer instead.
func counted(t *testing.T, instance simimds.Instance, edit func(w http.ResponseWriter, path string) bool) (c *imds.Client, requests map[string]int) {
	t.Helper()
	requests = map[string]int{}
	service := simimds.New(machine{instance}, simimds.Config{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests[r.Method]++
		if edit == nil || !edit(w, r.URL.Path) {
			service.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return imds.New(aws.Config{}, imds.Options{Endpoint: server.URL, Tries: 1}), requests
}

func TestListedInterfacesAreReadWithOneTokenAndFiveRequestsEach(t *testing.T) {
	instance := m5xlarge()
	instance.Interfaces[1].IPv4Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")}
	c, requests := counted(t, instance, nil)
	var got []ipam.Listed
	for range 3 {
		var err error
		if got, _, err = c.Listed(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	groups := []vpc.SecurityGroupID{"sg-1", "sg-2"}
	want := []ipam.Listed{
		{ENI: "eni-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")}, Groups: groups},
		{
			ENI: "eni-2", Device: 1, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}, Groups: groups,
			Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.16/28")},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	if requests["PUT"] != 1 || requests["GET"] != 3*(1+2*5) {
		t.Errorf("requests %v, want one token and 11 documents for each of three readings", requests)
	}
}

// After a detachment the listing still has the interface's MAC.
func TestAListedInterfaceWithoutADeviceNumberIsLeftOut(t *testing.T) {
	_, second := macs()
	c, _ := counted(t, m5xlarge(), func(w http.ResponseWriter, path string) bool {
		gone := strings.HasSuffix(path, second.String()+"/device-number")
		if gone {
			w.WriteHeader(http.StatusNotFound)
		}
		return gone
	})
	got, _, err := c.Listed(t.Context())
	if err != nil || len(got) != 1 || got[0].ENI != "eni-1" {
		t.Errorf("listed %v, %v", got, err)
	}
}

func TestAListingThatCannotBeTrueIsAnError(t *testing.T) {
	var endless strings.Builder
	for i := range 300 {
		fmt.Fprintf(&endless, "02:00:00:00:%02x:%02x/\n", i/256, i%256)
	}
	for name, body := range map[string]string{"none": "", "too many": endless.String()} {
		c, requests := counted(t, m5xlarge(), func(w http.ResponseWriter, path string) bool {
			listing := strings.HasSuffix(path, "/macs/")
			if listing {
				_, _ = w.Write([]byte(body))
			}
			return listing
		})
		if _, _, err := c.Listed(t.Context()); err == nil || !strings.Contains(err.Error(), "must be from 1 to 256") {
			t.Errorf("%s: %v", name, err)
		}
		if requests["GET"] != 1 {
			t.Errorf("%s: %d requests", name, requests["GET"])
		}
	}
}
