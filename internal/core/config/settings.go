package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const fromDefault = "default"

// Setting is one thing an operator can choose.
type Setting struct {
	Name    string   // flag and file key, such as "warm-ips"
	Aliases []string // AWS's environment names
	Default string
	Unit    string // of a bare number, empty where there is none
	Doc     string

	set func(*Config, string) error
	get func(Config) string
}

// Env is the setting's own environment name.
func (s Setting) Env() string {
	return "TRUNKLINE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// find returns the value that counts and where it comes from. An environment
// variable that is empty is not set, as manifests leave them.
func (s Setting) find(src Sources) (value, origin string) {
	if v, ok := src.Flags[s.Name]; ok {
		return v, "flag --" + s.Name
	}
	if src.Env != nil {
		for _, name := range append([]string{s.Env()}, s.Aliases...) {
			if v, ok := src.Env(name); ok && v != "" {
				return v, "environment " + name
			}
		}
	}
	if v, ok := src.File[s.Name]; ok {
		return v, "file " + src.FileName
	}
	return s.Default, fromDefault
}

// settings is the one table, in the order of the documentation.
func settings() []Setting {
	return slices.Concat(identity(), pool(), datapath(), node())
}

func identity() []Setting {
	return []Setting{
		text("cluster-name", "", "Written on interfaces as the tag cluster.k8s.amazonaws.com/name.", func(c *Config) *string { return &c.ClusterName }, tagValue, "CLUSTER_NAME"),
		text("node-name", "", "The Node this agent serves.", func(c *Config) *string { return &c.NodeName }, nil, "NODE_NAME", "MY_NODE_NAME"),
		text("pod-name", "", "The program's own pod.", func(c *Config) *string { return &c.PodName }, nil, "POD_NAME", "MY_POD_NAME"),
		text("pod-namespace", "kube-system", "The namespace of that pod.", func(c *Config) *string { return &c.PodNamespace }, nil, "POD_NAMESPACE"),
		text("log-level", "info", "debug, info, warn or error.", func(c *Config) *string { return &c.LogLevel }, oneOf("debug", "info", "warn", "error"), "AWS_VPC_K8S_CNI_LOGLEVEL"),
	}
}

func pool() []Setting {
	return []Setting{
		number("warm-ips", "8", 0, 10000, "Addresses kept free beyond what pods need.", func(c *Config) *int { return &c.WarmIPs }, "WARM_IP_TARGET"),
		number("headroom", "8", 0, 10000, "How far beyond warm-ips the pool grows and is left alone, so that one EC2 call serves that many pods. WARM_IP_TARGET sets it to 0, which is AWS's behaviour.", func(c *Config) *int { return &c.Headroom }),
		number("warm-enis", "0", 0, 100, "Interfaces' worth of addresses kept free. Setting it sets warm-ips to 0 unless that is set too, which then wins.", func(c *Config) *int { return &c.WarmENIs }, "WARM_ENI_TARGET"),
		number("min-ips", "0", 0, 10000, "The least number of addresses the node holds.", func(c *Config) *int { return &c.MinIPs }, "MINIMUM_IP_TARGET"),
		number("max-enis", "0", -1, 100, "Most interfaces of the node, below the instance's limit; 0 and -1 are no cap.", func(c *Config) *int { return &c.MaxENIs }, "MAX_ENI"),
		duration("cool-down", "30s", 0, time.Hour, "How long a freed address is not given out again.", func(c *Config) *time.Duration { return &c.CoolDown }, "IP_COOLDOWN_PERIOD"),
		duration("idle-after", "3m", time.Second, 24*time.Hour, "How long addresses must have been unneeded before they are given back.", func(c *Config) *time.Duration { return &c.IdleAfter }),
		duration("release-every", "30s", time.Second, time.Hour, "Pause between two releases.", func(c *Config) *time.Duration { return &c.ReleaseEvery }),
	}
}

func datapath() []Setting {
	return []Setting{
		number("mtu", "9001", 576, 9001, "Largest packet on the interfaces, in bytes.", func(c *Config) *int { return &c.MTU }, "AWS_VPC_ENI_MTU"),
		number("pod-mtu", "0", 0, 9001, "Largest packet on pods' links, in bytes; 0: as mtu.", func(c *Config) *int { return &c.PodMTU }, "POD_MTU"),
		text("veth-prefix", "eni", "First letters of pods' links on the node.", func(c *Config) *string { return &c.VethPrefix }, vethPrefix, "AWS_VPC_K8S_CNI_VETHPREFIX"),
		boolean("external-snat", "false", "Leave translation for what leaves the VPC to somebody outside the node.", func(c *Config) *bool { return &c.ExternalSNAT }, "AWS_VPC_K8S_CNI_EXTERNALSNAT"),
		prefixes("exclude-snat-cidrs", "Ranges outside the VPC that see pods' own addresses.", func(c *Config) *[]netip.Prefix { return &c.ExcludeSNATCIDRs }, "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"),
		text("randomize-snat", "prng", "How translation chooses source ports: prng, hashrandom or none.", func(c *Config) *string { return &c.RandomizeSNAT }, oneOf("prng", "hashrandom", "none"), "AWS_VPC_K8S_CNI_RANDOMIZESNAT"),
		prefixes("external-service-cidrs", "Ranges reached by the primary interface although they are outside the VPC.", func(c *Config) *[]netip.Prefix { return &c.ExternalCIDRs }, "AWS_EXTERNAL_SERVICE_CIDRS"),
		boolean("node-port-support", "true", "Replies to connections that entered by the primary interface leave by it.", func(c *Config) *bool { return &c.NodePort }, "AWS_VPC_CNI_NODE_PORT_SUPPORT"),
		boolean("pod-metadata", "false", "Pods may reach the instance metadata service, and with it the node's role.", func(c *Config) *bool { return &c.PodMetadata }),
	}
}

func node() []Setting {
	return []Setting{
		text("state-dir", "/var/lib/trunkline", "Journal, spool and snapshot.", func(c *Config) *string { return &c.StateDir }, absolute),
		text("socket", "/run/trunkline/agent.sock", "Where the plugin finds the agent.", func(c *Config) *string { return &c.Socket }, absolute),
		text("cni-bin-dir", "/opt/cni/bin", "Where the plugin is installed.", func(c *Config) *string { return &c.CNIBinDir }, absolute, "HOST_CNI_BIN_PATH"),
		text("cni-conf-dir", "/etc/cni/net.d", "Where the conflist is written.", func(c *Config) *string { return &c.CNIConfDir }, absolute, "HOST_CNI_CONFDIR_PATH"),
		text("cni-version", "auto", "Version of the conflist; auto: the highest the node's runtime takes.", func(c *Config) *string { return &c.CNIVersion }, oneOf("auto", "0.4.0", "1.0.0", "1.1.0")),
		duration("add-wait", "90s", time.Second, 10*time.Minute, "How long an ADD waits for an agent and an address.", func(c *Config) *time.Duration { return &c.AddWait }),
		duration("del-wait", "2s", 0, time.Minute, "How long a DEL waits for an agent before it is spooled.", func(c *Config) *time.Duration { return &c.DelWait }),
		text("introspection-address", "127.0.0.1:61679", "Where /v1/*, /healthz and /readyz are served.", func(c *Config) *string { return &c.IntrospectionAddress }, hostPort, "INTROSPECTION_BIND_ADDRESS"),
		text("metrics-address", ":61678", "Where /metrics is served.", func(c *Config) *string { return &c.MetricsAddress }, hostPort),
	}
}

// unsupported are AWS's switches for what this version cannot do, and the value
// that asks for it.
func unsupported() []struct{ env, refuse, what string } {
	return []struct{ env, refuse, what string }{
		{"ENABLE_PREFIX_DELEGATION", "true", "prefix delegation"},
		{"ENABLE_IPv6", "true", "IPv6 for pods"},
		{"ENABLE_IPv4", "false", "a node without IPv4 pods"},
		{"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", "true", "custom networking by ENIConfig"},
		{"ENABLE_POD_ENI", "true", "security groups for pods"},
		{"ENABLE_MULTI_NIC", "true", "several network cards"},
		{"ENABLE_IMDS_ONLY_MODE", "true", "working without EC2"},
		{"DISABLE_NETWORK_RESOURCE_PROVISIONING", "true", "working without EC2"},
	}
}

func text(name, fallback, doc string, field func(*Config) *string, check func(string) error, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Default: fallback, Doc: doc,
		set: func(c *Config, v string) error {
			if name == "log-level" {
				v = strings.ToLower(v) // AWS writes DEBUG
			}
			*field(c) = v
			if check == nil {
				return nil
			}
			return check(v)
		},
		get: func(c Config) string { return *field(&c) },
	}
}

func number(name, fallback string, least, most int, doc string, field func(*Config) *int, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Default: fallback, Doc: doc,
		set: func(c *Config, v string) error {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				return errors.New("not a whole number")
			}
			if n < least || n > most {
				return fmt.Errorf("must be from %d to %d", least, most)
			}
			*field(c) = max(n, 0)
			return nil
		},
		get: func(c Config) string { return strconv.Itoa(*field(&c)) },
	}
}

func duration(name, fallback string, least, most time.Duration, doc string, field func(*Config) *time.Duration, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Default: fallback, Unit: "seconds", Doc: doc,
		set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if n, numErr := strconv.Atoi(v); numErr == nil && n >= 0 && n <= int(most/time.Second) {
				d, err = time.Duration(n)*time.Second, nil
			}
			if err != nil {
				return errors.New("not a duration such as 30s or 5m")
			}
			if d < least || d > most {
				return fmt.Errorf("must be from %s to %s", least, most)
			}
			*field(c) = d
			return nil
		},
		get: func(c Config) string { return field(&c).String() },
	}
}

func boolean(name, fallback, doc string, field func(*Config) *bool, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Default: fallback, Doc: doc,
		set: func(c *Config, v string) error {
			b, err := strconv.ParseBool(v)
			if err != nil {
				return errors.New("neither true nor false")
			}
			*field(c) = b
			return nil
		},
		get: func(c Config) string { return strconv.FormatBool(*field(&c)) },
	}
}

func prefixes(name, doc string, field func(*Config) *[]netip.Prefix, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Doc: doc,
		set: func(c *Config, v string) error {
			var list []netip.Prefix
			for part := range strings.SplitSeq(v, ",") {
				if part = strings.TrimSpace(part); part == "" {
					continue
				}
				p, err := netip.ParsePrefix(part)
				if err != nil {
					return fmt.Errorf("%q is not a range such as 10.0.0.0/8", part)
				}
				if !p.Addr().Is4() {
					return fmt.Errorf("%s is not IPv4", p)
				}
				list = append(list, p.Masked())
			}
			*field(c) = list
			return nil
		},
		get: func(c Config) string {
			var out []string
			for _, p := range *field(&c) {
				out = append(out, p.String())
			}
			return strings.Join(out, ",")
		},
	}
}

func oneOf(allowed ...string) func(string) error {
	return func(v string) error {
		if slices.Contains(allowed, v) {
			return nil
		}
		return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
	}
}

func absolute(v string) error {
	if !strings.HasPrefix(v, "/") {
		return errors.New("not an absolute path")
	}
	return nil
}

func hostPort(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil || port == "" {
		return errors.New("not an address such as 127.0.0.1:61679")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is not a port from 1 to 65535", port)
	}
	return nil
}

// vethPrefix keeps AWS's rule: at most four characters, and none of the names
// other links have. The kernel takes some characters for itself ('%' is a pattern).
func vethPrefix(v string) error {
	odd := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	}
	if v == "" || len(v) > 4 || strings.ContainsFunc(v, odd) {
		return errors.New("must have one to four characters: letters, digits, '-' or '_'")
	}
	if slices.Contains([]string{"eth", "vlan", "lo"}, v) {
		return errors.New("other links have that name")
	}
	return nil
}

// tagValue is what EC2 takes as a tag's value.
// Source: EC2 user guide, "Tag restrictions".
func tagValue(v string) error {
	const most = 256
	if len([]rune(v)) > most {
		return fmt.Errorf("has more than the %d characters of a tag", most)
	}
	if strings.ContainsFunc(v, unicode.IsControl) {
		return errors.New("has a control character")
	}
	return nil
}
