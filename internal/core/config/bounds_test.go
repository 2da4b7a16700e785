package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each setting takes its bounds, and nothing beyond them.
func TestAValueBeyondItsBoundsIsRefused(t *testing.T) {
	for _, c := range []struct{ name, value, why string }{
		{"warm-ips", "0", ""},
		{"warm-ips", "10000", ""},
		{"warm-ips", "-1", "must be from 0 to 10000"},
		{"warm-ips", "10001", "must be from 0 to 10000"},
		{"max-enis", "-1", ""},
		{"max-enis", "-2", "must be from -1 to 100"},
		{"idle-after", "1s", ""},
		{"idle-after", "999ms", "must be from 1s to 24h0m0s"},
		{"idle-after", "24h", ""},
		{"idle-after", "24h1ns", "must be from 1s to 24h0m0s"},
		{"cool-down", "0", ""},
		{"cool-down", "3600", ""},
		{"cool-down", "3601", "must be"},
		{"cool-down", "18446744074", "must be"}, // 0.3 s, if its nanoseconds were counted in 64 bits
		{"cool-down", "-1s", "must be from 0s to 1h0m0s"},
		{"pod-mtu", "9001", ""}, // as mtu
		{"metrics-address", "localhost", "must be an address"},
		{"metrics-address", "localhost:", "must be an address"},
		{"metrics-address", "127.0.0.1:1", ""},
		{"metrics-address", "127.0.0.1:65535", ""},
		{"metrics-address", "127.0.0.1:65536", "is not a port"},
		{"metrics-address", "127.0.0.1:61679", "must differ from introspection-address"},
		{"veth-prefix", "", "must have one to four characters"},
		{"veth-prefix", "abcd", ""},
		{"veth-prefix", "abcde", "must have one to four characters"},
		{"veth-prefix", "a-1_", ""},
		{"veth-prefix", "9", ""},
		{"veth-prefix", "a\x7f", "must have one to four characters"},
		{"veth-prefix", "é", "must have one to four characters"},
		{"cluster-name", strings.Repeat("é", 256), ""},
		{"cluster-name", strings.Repeat("é", 257), "must have at most 256 characters"},
		{"cluster-name", "<your cluster>", "must be the cluster's name"},
		{"cluster-name", "a>", "must be the cluster's name"},
		{"node-name", "Node-A", ""},
	} {
		cfg, err := Load(Sources{Flags: map[string]string{c.name: c.value}})
		if c.why == "" && err != nil || c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why)) {
			t.Errorf("%s=%q: %v, want an error that contains %q", c.name, c.value, err, c.why)
		}
		if c.name == "node-name" && cfg.NodeName != c.value {
			t.Errorf("the name of the node reads as %q, want it as it is", cfg.NodeName)
		}
	}
}

func TestANumberWithoutAUnitIsInSeconds(t *testing.T) {
	for value, want := range map[string]time.Duration{"0": 0, "1": time.Second, "90": 90 * time.Second, "1.5s": 1500 * time.Millisecond} {
		if c, err := Load(Sources{Flags: map[string]string{"cool-down": value}}); err != nil || c.CoolDown != want {
			t.Errorf("%s: %s, %v; want %s", value, c.CoolDown, err, want)
		}
	}
}

// AWS's targets replace each other, and our defaults for what AWS does not have.
func TestAWarmTargetOfAWSReplacesOurDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		src                       Sources
		ips, headroom             int
		ipsOrigin, headroomOrigin string
	}{
		"WARM_ENI_TARGET": {
			Sources{Env: env(map[string]string{"WARM_ENI_TARGET": "1"})}, 0, 0, "warm-enis is set", "warm-enis is set",
		},
		"WARM_ENI_TARGET and warm-ips": {
			Sources{Env: env(map[string]string{"WARM_ENI_TARGET": "1"}), Flags: map[string]string{"warm-ips": "3"}}, 3, 8, "flag --warm-ips", "default",
		},
		"WARM_IP_TARGET": {
			Sources{Env: env(map[string]string{"WARM_IP_TARGET": "3"})}, 3, 0, "environment WARM_IP_TARGET", "WARM_IP_TARGET is set",
		},
		"WARM_IP_TARGET and headroom": {
			Sources{Env: env(map[string]string{"WARM_IP_TARGET": "3"}), Flags: map[string]string{"headroom": "2"}}, 3, 2, "environment WARM_IP_TARGET", "flag --headroom",
		},
		"our own name": {
			Sources{Flags: map[string]string{"warm-ips": "3"}}, 3, 8, "flag --warm-ips", "default",
		},
	} {
		cfg, err := Load(c.src)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.WarmIPs != c.ips || cfg.Headroom != c.headroom {
			t.Errorf("%s: %d addresses, headroom %d; want %d, %d", name, cfg.WarmIPs, cfg.Headroom, c.ips, c.headroom)
		}
		if got := [2]string{cfg.Origin("warm-ips"), cfg.Origin("headroom")}; got != [2]string{c.ipsOrigin, c.headroomOrigin} {
			t.Errorf("%s: from %q, want %q and %q", name, got, c.ipsOrigin, c.headroomOrigin)
		}
	}
}

func TestAnUnknownSettingIsMetWithTheNearestName(t *testing.T) {
	for key, want := range map[string]string{
		"warm_ips":      "; did you mean warm-ips?",
		"WARM-IPS":      "; did you mean warm-ips?",
		"cidrs":         "; did you mean exclude-snat-cidrs?", // the first of two
		"service-cidrs": "; did you mean external-service-cidrs?",
		"cni":           "; did you mean cni-bin-dir?",
		"ips-warm":      "; did you mean warm-ips?",
		"ip":            "", // too short a word
		"fly":           "",
	} {
		_, err := Load(Sources{Flags: map[string]string{key: "1"}})
		if err == nil || !strings.HasSuffix(err.Error(), "unknown setting"+want) {
			t.Errorf("%s: %v, want %q", key, err, want)
		}
	}
}

func TestADescriptionHasEverySettingWithItsValueAndOrigin(t *testing.T) {
	c, err := Load(Sources{Flags: map[string]string{"log-level": "DEBUG"}, Env: env(map[string]string{"CLUSTER_NAME": "Prod"})})
	if err != nil {
		t.Fatal(err)
	}
	rows := c.Describe()
	if len(rows) != len(Settings()) {
		t.Errorf("%d rows for %d settings", len(rows), len(Settings()))
	}
	for name, want := range map[string][2]string{
		"log-level": {"debug", "flag --log-level"}, "cluster-name": {"Prod", "environment CLUSTER_NAME"}, "mtu": {"9001", "default"},
	} {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Name == name })
		if i < 0 || [2]string{rows[i].Value, rows[i].Origin} != want {
			t.Errorf("%s is not described as %q in %v", name, want, rows)
		}
	}
}

func TestASettingOfTheWarmPoolInAFileIsNamedAsUnused(t *testing.T) {
	cfg, err := Load(Sources{File: map[string]string{"min-ips": "4"}, FileName: "t.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Unused(BackendPodCIDR); !slices.Equal(got, []string{"min-ips (file t.yaml)"}) {
		t.Errorf("%q", got)
	}
}

// The Service's address decides where it is known.
func TestAnIPv6NodeOfAnIPv4ClusterIsServed(t *testing.T) {
	if got := RefuseFamily(netip.MustParseAddr("172.20.0.1"), []netip.Addr{netip.MustParseAddr("2600:1f13::4")}); got != "" {
		t.Error(got)
	}
}
