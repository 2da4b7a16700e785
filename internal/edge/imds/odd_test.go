package imds_test

import (
	"net/http"
	"strings"
	"testing"
)

// odd answers one value of an interface otherwise than EC2 documents it; "": it is missing.
func odd(path, value string) func(http.ResponseWriter, string) bool {
	return func(w http.ResponseWriter, asked string) bool {
		if !strings.HasSuffix(asked, path) {
			return false
		}
		if value == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(value))
		return true
	}
}

func TestAnOddValueLeavesItsInterfaceOutOfTheListing(t *testing.T) {
	first, second := macs()
	for _, c := range []struct {
		name, path, value string
		want              []string // the interfaces that are listed
		reported          bool
	}{
		{"a device number that is none", second.String() + "/device-number", "one", []string{"eni-1"}, true},
		{"addresses that are none", second.String() + "/local-ipv4s", "10.0.0.7/32", []string{"eni-1"}, true},
		{"prefixes that are none", second.String() + "/ipv4-prefix", "all", []string{"eni-1"}, true},
		{"the primary interface's device number", first.String() + "/device-number", "zero", []string{"eni-1", "eni-2"}, true},
		{"no device number of the primary interface", first.String() + "/device-number", "", []string{"eni-1", "eni-2"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := counted(t, m5xlarge(), odd(c.path, c.value))
			listed, unreadable, err := client.Listed(t.Context())
			if err != nil || len(listed) != len(c.want) {
				t.Fatalf("listed %+v, %v; want %q", listed, err, c.want)
			}
			for i, l := range listed {
				if string(l.ENI) != c.want[i] || l.Device != i {
					t.Errorf("listed %+v, want %s at device %d", l, c.want[i], i)
				}
			}
			if c.reported != (len(unreadable) == 1 && strings.Contains(unreadable[0], c.path)) {
				t.Errorf("unreadable %q, want what is odd: %v", unreadable, c.reported)
			}
		})
	}
}

// The agent learns from the primary interface which instance it is on.
func TestAnOddValueOfThePrimaryInterfaceIsReportedBesideTheOthers(t *testing.T) {
	first, _ := macs()
	for path, value := range map[string]string{
		"device-number": "zero", "network-card": "-", "subnet-ipv4-cidr-block": "10.0.0.0", "vpc-ipv6-cidr-blocks": "none", "local-ipv4s": "?",
	} {
		client, _ := counted(t, m5xlarge(), odd(first.String()+"/"+path, value))
		got, err := client.Interface(t.Context(), first)
		if err != nil || got.ID != "eni-1" || got.Device != 0 || len(got.VPCv4CIDRs) != 2 || len(got.Groups) != 2 {
			t.Errorf("%s %q: %+v, %v; want the other values", path, value, got, err)
		}
		if len(got.Unreadable) != 1 || !strings.Contains(got.Unreadable[0], path) {
			t.Errorf("%s %q: unreadable %q", path, value, got.Unreadable)
		}
	}
	client, _ := counted(t, m5xlarge(), odd(first.String()+"/device-number", ""))
	if got, err := client.Interface(t.Context(), first); err != nil || got.Device != 0 {
		t.Errorf("without a device number: %+v, %v", got, err)
	}
	client, _ = counted(t, m5xlarge(), odd(first.String()+"/vpc-ipv4-cidr-blocks", "?"))
	if _, err := client.Interface(t.Context(), first); err == nil {
		t.Error("it has no ranges of the VPC, and no error")
	}
}
