package config

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

//go:generate go test -run TestTheDocumentationIsUpToDate -update .

var update = flag.Bool("update", false, "write docs/config.md")

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestPrecedenceIsFlagEnvironmentFileDefault(t *testing.T) {
	src := Sources{}
	for _, step := range []struct {
		add    func()
		want   int
		origin string
	}{
		{func() {}, 8, "default"},
		{func() { src.File, src.FileName = map[string]string{"warm-ips": "1"}, "t.yaml" }, 1, "file t.yaml"},
		{func() { src.Env = env(map[string]string{"WARM_IP_TARGET": "2"}) }, 2, "environment WARM_IP_TARGET"},
		{func() { src.Env = env(map[string]string{"WARM_IP_TARGET": "2", "TRUNKLINE_WARM_IPS": "3"}) }, 3, "environment TRUNKLINE_WARM_IPS"},
		{func() { src.Flags = map[string]string{"warm-ips": "4"} }, 4, "flag --warm-ips"},
	} {
		step.add()
		c, err := Load(src)
		if err != nil {
			t.Fatal(err)
		}
		if c.WarmIPs != step.want || c.Origin("warm-ips") != step.origin {
			t.Errorf("warm-ips = %d from %s, want %d from %s", c.WarmIPs, c.Origin("warm-ips"), step.want, step.origin)
		}
	}
}

func TestAWSNamesKeepTheirMeaning(t *testing.T) {
	c, err := Load(Sources{Env: env(map[string]string{
		"WARM_ENI_TARGET": "1", "MINIMUM_IP_TARGET": "12", "MAX_ENI": "-1", "IP_COOLDOWN_PERIOD": "45",
		"AWS_VPC_K8S_CNI_EXTERNALSNAT": "true", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": "192.168.0.0/16, 100.64.0.1/10",
		"AWS_VPC_ENI_MTU": "1500", "POD_MTU": "1400", "AWS_VPC_K8S_CNI_VETHPREFIX": "pod", "CLUSTER_NAME": "prod",
		"AWS_VPC_K8S_CNI_LOGLEVEL": "DEBUG", "AWS_VPC_CNI_NODE_PORT_SUPPORT": "false", "ENABLE_PREFIX_DELEGATION": "false", "ENABLE_POD_ENI": "",
	})})
	if err != nil {
		t.Fatal(err)
	}
	if c.WarmENIs != 1 || c.WarmIPs != 0 || c.Headroom != 0 {
		t.Errorf("WARM_ENI_TARGET=1: %d ENIs, %d addresses, %d headroom", c.WarmENIs, c.WarmIPs, c.Headroom)
	}
	if c.MinIPs != 12 || c.MaxENIs != 0 || c.CoolDown != 45*time.Second || !c.ExternalSNAT || c.NodePort || c.MTU != 1500 || c.PodMTU != 1400 {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.ExcludeSNATCIDRs, []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10")}) {
		t.Errorf("exclusions %v", c.ExcludeSNATCIDRs)
	}
	if c.VethPrefix != "pod" || c.ClusterName != "prod" || c.LogLevel != "debug" {
		t.Errorf("%+v", c)
	}
	if c, err = Load(Sources{Env: env(map[string]string{"WARM_IP_TARGET": "3"})}); err != nil || c.WarmIPs != 3 || c.Headroom != 0 {
		t.Errorf("WARM_IP_TARGET=3: %d and %d headroom, %v", c.WarmIPs, c.Headroom, err)
	}
}

func TestEveryInvalidSettingIsReportedWithValueSourceAndReason(t *testing.T) {
	_, err := Load(Sources{
		Flags: map[string]string{"mtu": "90000", "fly": "1"},
		Env: env(map[string]string{
			"WARM_IP_TARGET": "many", "IP_COOLDOWN_PERIOD": "-3", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS": "10.0.0.0",
			"AWS_VPC_K8S_CNI_VETHPREFIX": "eth", "TRUNKLINE_SOCKET": "agent.sock", "ENABLE_PREFIX_DELEGATION": "true", "AWS_VPC_K8S_CNI_EXTERNALSNAT": "maybe",
		}),
		File: map[string]string{"warm_ips": "3", "metrics-address": "here"}, FileName: "t.yaml",
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`mtu: "90000" from flag --mtu: must be from 576 to 9001`,
		`fly: "1" from flag --fly: unknown setting`,
		`warm-ips: "many" from environment WARM_IP_TARGET: must be a whole number`,
		`cool-down: "-3" from environment IP_COOLDOWN_PERIOD: must be a duration`,
		`exclude-snat-cidrs: "10.0.0.0" from environment AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS: "10.0.0.0" is not a CIDR`,
		`veth-prefix: "eth" from environment AWS_VPC_K8S_CNI_VETHPREFIX: must not be a prefix of other links' names`,
		`socket: "agent.sock" from environment TRUNKLINE_SOCKET: must be an absolute path`,
		`ENABLE_PREFIX_DELEGATION: "true" from environment: prefix delegation is not supported in this version; unset it`,
		`external-snat: "maybe" from environment AWS_VPC_K8S_CNI_EXTERNALSNAT: must be true or false`,
		`warm_ips: "3" from file t.yaml: unknown setting; did you mean warm-ips?`,
		`metrics-address: "here" from file t.yaml: must be an address`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not in the error: %s", want)
		}
	}
	if _, err := Load(Sources{Flags: map[string]string{"mtu": "1500", "pod-mtu": "9001"}}); err == nil || !strings.Contains(err.Error(), "must not exceed mtu, which is 1500") {
		t.Errorf("pod-mtu above mtu: %v", err)
	}
}

func TestValuesThatTheKernelAListenerOrEC2WouldRejectAreRejectedAtStart(t *testing.T) {
	for _, c := range []struct{ env, value, why string }{
		{"TRUNKLINE_METRICS_ADDRESS", ":99999", `metrics-address: ":99999" from environment TRUNKLINE_METRICS_ADDRESS: "99999" is not a port`},
		{"INTROSPECTION_BIND_ADDRESS", "127.0.0.1:0", `"0" is not a port from 1 to 65535`},
		{"INTROSPECTION_BIND_ADDRESS", "unix:/run/x", "is not a port"},
		{"AWS_VPC_K8S_CNI_VETHPREFIX", "a%d", "veth-prefix"},
		{"AWS_VPC_K8S_CNI_VETHPREFIX", "a\"b", "veth-prefix"},
		{"CLUSTER_NAME", strings.Repeat("x", 257), "at most 256 characters"},
		{"CLUSTER_NAME", "a\nb", "control characters"},
		{"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS", "2600:1f14::/32", "2600:1f14::/32 is not IPv4"},
		{"AWS_EXTERNAL_SERVICE_CIDRS", "10.0.0.0/33", "is not a CIDR"},
		{"IP_COOLDOWN_PERIOD", "99999999999999999999", "must be a duration"},
		{"IP_COOLDOWN_PERIOD", "3601", `cool-down: "3601" from environment IP_COOLDOWN_PERIOD: must be from 0s to 1h0m0s`},
		{"IP_COOLDOWN_PERIOD", "4294967295", "must be from 0s to 1h0m0s"},
		{"IP_COOLDOWN_PERIOD", "3601s", "must be from 0s to 1h0m0s"},
		{"IP_COOLDOWN_PERIOD", "soon", "must be a duration such as 30s or 5m, from 0s to 1h0m0s"},
		{"ENABLE_PREFIX_DELEGATION", "1", "prefix delegation is not supported"},
		{"ENABLE_IPv4", "F", "a node without IPv4 pods is not supported"},
		{"ENABLE_POD_ENI", "true", `ENABLE_POD_ENI: "true" from environment: set security-groups-for-pods, which is off, or unset it`},
		{"ENABLE_POD_ENI", "yes", `ENABLE_POD_ENI: "yes" from environment: must be true or false`},
	} {
		_, err := Load(Sources{Env: env(map[string]string{c.env: c.value})})
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s=%q: %v, want %q", c.env, c.value, err, c.why)
		}
	}
}

func TestAWSsNameOfSecurityGroupsOfPodsAgreesWithTheSetting(t *testing.T) {
	for _, mode := range []string{"managed", "own", "ebpf", "auto"} {
		for _, value := range []string{"true", "false"} {
			if _, err := Load(Sources{Env: env(map[string]string{"ENABLE_POD_ENI": value, "TRUNKLINE_SECURITY_GROUPS_FOR_PODS": mode})}); err != nil {
				t.Errorf("%s with ENABLE_POD_ENI=%s: %v", mode, value, err)
			}
		}
	}
	if _, err := Load(Sources{Env: env(map[string]string{"ENABLE_POD_ENI": "false"})}); err != nil {
		t.Error(err)
	}
	if _, err := Load(Sources{Env: env(map[string]string{"ENABLE_PREFIX_DELEGATION": "true", "TRUNKLINE_SECURITY_GROUPS_FOR_PODS": "own"})}); err == nil {
		t.Error("prefix delegation is not refused beside branches")
	}
}

// In YAML, on and off are booleans: a manifest without quotes gives true or false.
func TestNetworkPolicyIsOnOrOffAlsoAsABoolean(t *testing.T) {
	for value, want := range map[string]bool{"on": true, "true": true, "off": false, "false": false} {
		if c, err := Load(Sources{Flags: map[string]string{"network-policy": value}}); err != nil || c.NetworkPolicy != want {
			t.Errorf("%s: %v, %v; want %v", value, c.NetworkPolicy, err, want)
		}
	}
	for _, value := range []string{"", "On", "1", "yes"} {
		if _, err := Load(Sources{Flags: map[string]string{"network-policy": value}}); err == nil || !strings.Contains(err.Error(), "must be on or off") {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestTheDescriptionReadsBackAsTheSameConfiguration(t *testing.T) {
	c, err := Load(Sources{Env: env(map[string]string{"WARM_IP_TARGET": "5", "AWS_EXTERNAL_SERVICE_CIDRS": "1.2.3.0/24"})})
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	for _, row := range c.Describe() {
		if row.Origin == "" {
			t.Errorf("%s has no origin", row.Name)
		}
		flags[row.Name] = row.Value
	}
	again, err := Load(Sources{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range again.Describe() {
		if want := c.Describe()[i].Value; row.Value != want {
			t.Errorf("%s reads back as %q, was %q", row.Name, row.Value, want)
		}
	}
}

func TestNamesAreUniqueAndDefaultsAreValid(t *testing.T) {
	if _, err := Load(Sources{}); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	seen := map[string]bool{}
	for _, s := range Settings() {
		for _, name := range append([]string{s.Name, s.Env()}, s.Aliases...) {
			if seen[name] {
				t.Errorf("%s names two settings", name)
			}
			seen[name] = true
		}
		if !strings.HasSuffix(s.Doc, ".") {
			t.Errorf("%s is not documented in a sentence", s.Name)
		}
	}
}

func TestTheDocumentationIsUpToDate(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "config.md")
	if *update {
		if err := os.WriteFile(path, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Markdown() {
		t.Error("docs/config.md differs from the settings: run `go generate ./internal/core/config`")
	}
}
