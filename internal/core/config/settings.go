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

	"github.com/trunkline/trunkline/internal/core/config/defaults"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

const fromDefault = "default"

// Setting is one option of the product.
type Setting struct {
	Name    string   // flag and file key, such as "warm-ips"
	Aliases []string // AWS's environment names
	Default string
	Unit    string // of a number without a unit; empty if the value has none
	Doc     string

	set func(*Config, string) error
	get func(Config) string
}

// Env is the setting's own environment name.
func (s Setting) Env() string {
	return "TRUNKLINE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// find returns the value of highest precedence and its source. An empty environment
// variable counts as unset: manifests leave unused variables empty.
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

// settings returns all settings, in the order of the documentation.
func settings() []Setting {
	return slices.Concat(identity(), pool(), datapath(), securityGroups(), node())
}

func identity() []Setting {
	return []Setting{
		text("cluster-name", "", "Written on interfaces as the tag cluster.k8s.amazonaws.com/name.", func(c *Config) *string { return &c.ClusterName }, clusterName, "CLUSTER_NAME"),
		text("node-name", "", "Name of the Node that this agent serves.", func(c *Config) *string { return &c.NodeName }, nil, "NODE_NAME", "MY_NODE_NAME"),
		text("pod-name", "", "Name of the program's own pod, for events and leader election.", func(c *Config) *string { return &c.PodName }, nil, "POD_NAME", "MY_POD_NAME"),
		text("pod-namespace", "kube-system", "Namespace of the program's own pod.", func(c *Config) *string { return &c.PodNamespace }, nil, "POD_NAMESPACE"),
		text("log-level", "info", "Lowest level that is logged: debug, info, warn or error.", func(c *Config) *string { return &c.LogLevel }, oneOf("debug", "info", "warn", "error"), "AWS_VPC_K8S_CNI_LOGLEVEL"),
		text("backend", BackendAuto, "Where pods get their addresses: eni (network interfaces of EC2), podcidr (the Node's spec.podCIDR, without a cloud), or auto: eni where instance metadata answers or the Node's spec.providerID begins with aws://, else podcidr.", func(c *Config) *string { return &c.Backend }, oneOf(BackendAuto, BackendENI, BackendPodCIDR)),
	}
}

// pool has the settings of ipam.Config, and its defaults.
func pool() []Setting {
	is := ipam.DefaultConfig()
	return []Setting{
		number("warm-ips", is.WarmIPs, 0, 10000, "Free addresses kept on the node beyond those that pods use or wait for.", func(c *Config) *int { return &c.WarmIPs }, "WARM_IP_TARGET"),
		number("headroom", is.Headroom, 0, 10000, "Free addresses above warm-ips that one EC2 call adds and that are not released, so that one call serves that many pods. Setting WARM_IP_TARGET sets it to 0, which is AWS's behaviour.", func(c *Config) *int { return &c.Headroom }),
		number("warm-enis", is.WarmENIs, 0, 100, "Free addresses kept on the node, counted in whole interfaces. Setting it sets warm-ips to 0; if warm-ips is also set, warm-ips takes precedence.", func(c *Config) *int { return &c.WarmENIs }, "WARM_ENI_TARGET"),
		number("min-ips", is.MinIPs, 0, 10000, "Minimum number of pod addresses on the node, used or free.", func(c *Config) *int { return &c.MinIPs }, "MINIMUM_IP_TARGET"),
		number("max-enis", is.MaxENIs, -1, 100, "Maximum number of interfaces on the node, within the instance type's limit; 0 and -1 mean no other limit.", func(c *Config) *int { return &c.MaxENIs }, "MAX_ENI"),
		tags("eni-tags", `Tags that the node's interfaces are created with, as a JSON object such as {"team": "a"}. Trunkline's IAM policy permits only its own keys: add these to aws:TagKeys of its statement TagWhileCreating.`, func(c *Config) *map[string]string { return &c.ENITags }, "ADDITIONAL_ENI_TAGS"),
		duration("cool-down", is.CoolDown, 0, time.Hour, "How long a released address is not assigned to another pod.", func(c *Config) *time.Duration { return &c.CoolDown }, "IP_COOLDOWN_PERIOD"),
		duration("idle-after", is.IdleAfter, time.Second, 24*time.Hour, "How long surplus addresses must have been unneeded before they are released to EC2. If they are needed again within an hour of that, it is four times as long for later ones, up to 1h.", func(c *Config) *time.Duration { return &c.IdleAfter }),
		duration("release-every", is.ReleaseEvery, time.Second, time.Hour, "Interval between two releases to EC2.", func(c *Config) *time.Duration { return &c.ReleaseEvery }),
	}
}

func datapath() []Setting {
	return []Setting{
		number("mtu", vpc.MTU, 576, vpc.MTU, "MTU of the interfaces, in bytes.", func(c *Config) *int { return &c.MTU }, "AWS_VPC_ENI_MTU"),
		number("pod-mtu", 0, 0, vpc.MTU, "MTU of pods' links, in bytes; 0 means the value of mtu.", func(c *Config) *int { return &c.PodMTU }, "POD_MTU"),
		text("veth-prefix", endpoint.DefaultLinkPrefix, "Prefix of the names of pods' links on the node.", func(c *Config) *string { return &c.VethPrefix }, vethPrefix, "AWS_VPC_K8S_CNI_VETHPREFIX"),
		boolean("external-snat", "false", "Do not translate source addresses on the node; a NAT gateway or another device outside the node does it.", func(c *Config) *bool { return &c.ExternalSNAT }, "AWS_VPC_K8S_CNI_EXTERNALSNAT"),
		prefixes("exclude-snat-cidrs", "CIDRs outside the VPC to which pods' traffic keeps its own source address.", func(c *Config) *[]netip.Prefix { return &c.ExcludeSNATCIDRs }, "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"),
		text("randomize-snat", "prng", "How SNAT chooses source ports: prng, hashrandom or none.", func(c *Config) *string { return &c.RandomizeSNAT }, oneOf("prng", "hashrandom", "none"), "AWS_VPC_K8S_CNI_RANDOMIZESNAT"),
		prefixes("external-service-cidrs", "CIDRs outside the VPC that pods reach through the primary interface with their own source address.", func(c *Config) *[]netip.Prefix { return &c.ExternalCIDRs }, "AWS_EXTERNAL_SERVICE_CIDRS"),
		boolean("node-port-support", "true", "Route replies to connections that entered through the primary interface back through it.", func(c *Config) *bool { return &c.NodePort }, "AWS_VPC_CNI_NODE_PORT_SUPPORT"),
		boolean("pod-metadata", "false", "Allow pods to reach the instance metadata service, and with it the credentials of the node's IAM role.", func(c *Config) *bool { return &c.PodMetadata }),
		toggle("network-policy", "on", "Enforce the NetworkPolicies of the cluster on pods that Trunkline wired: on or off. A pod's policies are in force before its first packet. Off removes at the agent's start what it had loaded, and allows all traffic.", func(c *Config) *bool { return &c.NetworkPolicy }),
		numbersByName("network-policy-map-sizes", "Sizes of the kernel maps of network policies, in entries, such as tl_rows=524288,tl_connections=262144; others have the sizes of bpf/maps.h. They are in force from the agent's next start on, without a gap: new maps are written beside the old ones, which enforce meanwhile. Connections are judged once more then. Sizes that the kernel refuses change nothing, and the condition PoliciesEnforced names them.", func(c *Config) *map[string]uint32 { return &c.PolicyMapSizes }, parseSizes),
	}
}

func node() []Setting {
	return []Setting{
		text("state-dir", defaults.StateDir, "Directory of the agent's journal, spool and snapshot.", func(c *Config) *string { return &c.StateDir }, absolute),
		text("socket", defaults.Socket, "Unix socket on which the agent serves the CNI plugin.", func(c *Config) *string { return &c.Socket }, absolute),
		text("cni-bin-dir", "/opt/cni/bin", "Directory in which the agent installs the CNI plugin.", func(c *Config) *string { return &c.CNIBinDir }, absolute, "HOST_CNI_BIN_PATH"),
		text("cni-conf-dir", "/etc/cni/net.d", "Directory in which the agent writes the conflist.", func(c *Config) *string { return &c.CNIConfDir }, absolute, "HOST_CNI_CONFDIR_PATH"),
		text("aws-node-checkpoint", "/var/run/aws-node/ipam.json", "File from which AWS's daemon learns at its start which addresses are in use; the agent writes it when it leaves the node.", func(c *Config) *string { return &c.Checkpoint }, absolute, "AWS_VPC_K8S_CNI_BACKING_STORE"),
		text("bpf-root", "/sys/fs/bpf", "Directory of the bpffs in which the programs of network policy are pinned, while the cluster has policies. One that is mounted in the agent's container only does not outlive it.", func(c *Config) *string { return &c.BPFRoot }, absolute),
		text("cni-version", "auto", "cniVersion of the conflist; auto means the highest that the node's container runtime and portmap support.", func(c *Config) *string { return &c.CNIVersion }, oneOf("auto", "0.4.0", "1.0.0", "1.1.0")),
		duration("add-wait", defaults.AddWait, time.Second, 10*time.Minute, "How long an ADD waits for the agent and for an address.", func(c *Config) *time.Duration { return &c.AddWait }),
		duration("del-wait", defaults.DelWait, 0, time.Minute, "How long a DEL waits for the agent before the plugin spools it.", func(c *Config) *time.Duration { return &c.DelWait }),
		duration("stale-after", 10*time.Minute, time.Second, 24*time.Hour, "How long a pod must be gone from the API server before its endpoint is removed without a DEL.", func(c *Config) *time.Duration { return &c.StaleAfter }),
		text("introspection-address", defaults.IntrospectionAddress, "Listen address of /v1/*, /healthz and /readyz. The probes in deploy/base/agent.yaml use the default.", func(c *Config) *string { return &c.IntrospectionAddress }, hostPort, "INTROSPECTION_BIND_ADDRESS"),
		text("metrics-address", ":61678", "Listen address of /metrics.", func(c *Config) *string { return &c.MetricsAddress }, hostPort),
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

func number(name string, fallback, least, most int, doc string, field func(*Config) *int, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Default: strconv.Itoa(fallback), Doc: doc,
		set: func(c *Config, v string) error {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				return errors.New("must be a whole number")
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

func duration(name string, fallback, least, most time.Duration, doc string, field func(*Config) *time.Duration, aliases ...string) Setting {
	return Setting{
		Name: name, Aliases: aliases, Default: fallback.String(), Unit: "seconds", Doc: doc,
		set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if n, numErr := strconv.ParseUint(v, 10, 32); numErr == nil { // 32 bits: as a Duration it cannot overflow
				d, err = time.Duration(n)*time.Second, nil
			}
			if err != nil {
				return fmt.Errorf("must be a duration such as 30s or 5m, from %s to %s", least, most)
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
				return errors.New("must be true or false")
			}
			*field(c) = b
			return nil
		},
		get: func(c Config) string { return strconv.FormatBool(*field(&c)) },
	}
}

// toggle is a boolean that is written on or off. In YAML both words are booleans.
func toggle(name, fallback, doc string, field func(*Config) *bool) Setting {
	return Setting{
		Name: name, Default: fallback, Doc: doc,
		set: func(c *Config, v string) error {
			switch v {
			case "on", "true":
				*field(c) = true
			case "off", "false":
				*field(c) = false
			default:
				return errors.New("must be on or off")
			}
			return nil
		},
		get: func(c Config) string {
			if *field(&c) {
				return "on"
			}
			return "off"
		},
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
					return fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8", part)
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
		return errors.New("must be an absolute path")
	}
	return nil
}

func hostPort(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil || port == "" {
		return errors.New("must be an address such as 127.0.0.1:61679")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q is not a port from 1 to 65535", port)
	}
	return nil
}

// vethPrefix follows AWS's rule: at most four characters, and not the prefix of other
// links. The kernel reserves some characters in link names ('%' starts a pattern).
func vethPrefix(v string) error {
	odd := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	}
	if v == "" || len(v) > 4 || strings.ContainsFunc(v, odd) {
		return errors.New("must have one to four characters: letters, digits, '-' or '_'")
	}
	if slices.Contains([]string{"eth", "vlan", "lo"}, v) {
		return errors.New("must not be a prefix of other links' names, such as eth, vlan or lo")
	}
	return nil
}

// clusterName accepts a tag's value that is no placeholder of a manifest.
func clusterName(v string) error {
	if strings.ContainsAny(v, "<>") {
		return errors.New("must be the cluster's name instead of the manifest's placeholder")
	}
	return tagValue(v)
}

// tagValue accepts values that EC2 accepts for a tag.
// Source: EC2 user guide, "Tag restrictions".
func tagValue(v string) error {
	const most = 256
	if len([]rune(v)) > most {
		return fmt.Errorf("must have at most %d characters, as a tag's value", most)
	}
	if strings.ContainsFunc(v, unicode.IsControl) {
		return errors.New("must not contain control characters")
	}
	return nil
}
