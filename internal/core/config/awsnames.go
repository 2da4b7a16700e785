package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Variables of AWS's CNI that are aliases of no setting. Those that enable a feature which
// pods depend on stop the program; the others are reported while they are set.

// podENI is AWS's name of what the setting security-groups-for-pods does.
const podENI = "ENABLE_POD_ENI"

// unsupported returns AWS's variables for features that this version does not have,
// with the value that enables each feature.
func unsupported() []struct{ env, refuse, feature string } {
	return []struct{ env, refuse, feature string }{
		{"ENABLE_PREFIX_DELEGATION", "true", "prefix delegation"},
		{"ENABLE_IPv6", "true", "IPv6 for pods"},
		{"ENABLE_IPv4", "false", "a node without IPv4 pods"},
		{"AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG", "true", "custom networking with ENIConfig"},
		{podENI, "true", "security groups of pods, unless security-groups-for-pods is set"},
		{"ENABLE_MULTI_NIC", "true", "pods with interfaces of several network cards"},
		{"ENABLE_IMDS_ONLY_MODE", "true", "operation without EC2"},
		{"DISABLE_NETWORK_RESOURCE_PROVISIONING", "true", "operation without EC2"},
	}
}

// unsupportedByAWSName returns an error for every AWS variable that enables a feature
// this version does not have. Ignoring it would fail later and less clearly.
func (c Config) unsupportedByAWSName(src Sources) (problems []error) {
	if src.Env == nil {
		return nil
	}
	for _, u := range unsupported() {
		v, ok := src.Env(u.env)
		if !ok || v == "" {
			continue
		}
		switch enabled, err := strconv.ParseBool(v); { // as AWS reads them
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: %q from environment: must be true or false", u.env, v))
		case enabled != (u.refuse == "true"):
		case u.env == podENI && c.SecurityGroups != SecurityGroupsOff:
		case u.env == podENI:
			problems = append(problems, fmt.Errorf("%s: %q from environment: set security-groups-for-pods, which is off, or unset it", u.env, v))
		default:
			problems = append(problems, fmt.Errorf("%s: %q from environment: %s is not supported in this version; unset it", u.env, v, u.feature))
		}
	}
	return problems
}

// NotServed is a variable of AWS's CNI that is set to a value without effect.
type NotServed struct {
	Env, Value string
	Means      string // what is otherwise than the value says
}

func (n NotServed) String() string {
	return fmt.Sprintf("%s=%s is set, and not served: %s", n.Env, n.Value, n.Means)
}

// NotServed returns the variables of AWS's CNI that are set and have no effect.
func (c Config) NotServed() []NotServed { return c.notServed }

func notServedByAWSName(src Sources) (all []NotServed) {
	if src.Env == nil {
		return nil
	}
	for _, n := range notServed() {
		if v, ok := src.Env(n.env); ok && v != "" && !slices.ContainsFunc(n.fits, func(fit string) bool { return sameValue(v, fit) }) {
			all = append(all, NotServed{Env: n.env, Value: v, Means: n.means})
		}
	}
	return all
}

// sameValue compares values as AWS's CNI reads them: in any case, and Booleans in any form.
func sameValue(a, b string) bool {
	x, errX := strconv.ParseBool(a)
	y, errY := strconv.ParseBool(b)
	return strings.EqualFold(a, b) || errX == nil && errY == nil && x == y
}

// notServed returns AWS's other variables, with the values that describe what Trunkline does
// in any case, or that AWS's manifest has and that change nothing without a feature which is
// refused. Source: README and config/master of aws/amazon-vpc-cni-k8s 1.23.1.
func notServed() []struct {
	env   string
	fits  []string
	means string
} {
	return []struct {
		env   string
		fits  []string
		means string
	}{
		{"NETWORK_POLICY_ENFORCING_MODE", []string{"standard"}, "the setting network-policy says whether policies are enforced; those of a pod are in force before its first packet, and a pod without a policy is not isolated"},
		{"DISABLE_TCP_EARLY_DEMUX", []string{"false", "true"}, "net.ipv4.tcp_early_demux is 0 where pods on branches are strict, and not changed elsewhere"},
		{"ENABLE_BANDWIDTH_PLUGIN", []string{"false"}, "the bandwidth plugin is chained only where AWS's configuration had it: without it the annotations kubernetes.io/ingress-bandwidth and egress-bandwidth limit nothing"},
		{"ANNOTATE_POD_IP", []string{"false"}, "pods do not get the annotation vpc.amazonaws.com/pod-ips; what reads it must read the pod's status"},
		{"DISABLE_POD_V6", []string{"false"}, "the sysctl net.ipv6.conf.all.disable_ipv6 of pods is not changed; they have no IPv6 address of the VPC"},
		{"ENABLE_V6_EGRESS", []string{"false"}, "pods have IPv4 addresses only"},
		{"ENABLE_V4_EGRESS", []string{"true"}, "it concerns IPv6 clusters, which are refused"},
		{"WARM_PREFIX_TARGET", []string{"0", "1"}, "it concerns prefix delegation, which is not supported: set WARM_IP_TARGET"},
		{"AWS_MANAGE_ENIS_NON_SCHEDULABLE", []string{"true"}, "the pool of a cordoned node is kept like that of others; a Brake with freeze: all stops it"},
		{"ENABLE_SUBNET_DISCOVERY", []string{"true"}, "interfaces are created in every subnet with the tag kubernetes.io/role/cni: remove the tag, or set it to 0"},
		{"MANAGE_UNTAGGED_ENI", []string{"false"}, "an interface is used only if its tag names the instance"},
		{"DISABLE_LEAKED_ENI_CLEANUP", []string{"false"}, "the controller deletes leaked interfaces; a Brake with freeze: release stops it"},
		{"ENI_CONFIG_LABEL_DEF", []string{"k8s.amazonaws.com/eniConfig"}, "custom networking is not supported"},
		{"ENI_CONFIG_ANNOTATION_DEF", []string{"k8s.amazonaws.com/eniConfig"}, "custom networking is not supported"},
		{"AWS_VPC_K8S_CNI_CONNMARK", []string{"0x80", "128"}, "connections are marked with 0x80"},
		{"AWS_VPC_K8S_CNI_CONFIGURE_RPFILTER", []string{"true"}, "rp_filter of the primary interface is set in any case"},
		{"ENABLE_NFTABLES", []string{"true"}, "nftables is used in any case"},
		{"AWS_EC2_ENDPOINT", nil, "set AWS_ENDPOINT_URL_EC2, which the SDK reads"},
		{"HTTP_TIMEOUT", []string{"10"}, "each call of EC2 has a timeout of its own"},
		{"DISABLE_INTROSPECTION", []string{"false"}, "it is served on 127.0.0.1:61679, which only the node reaches and the probes of the agent need"},
		{"DISABLE_METRICS", []string{"false"}, "they are served: set metrics-address to an address that only the node reaches"},
		{"AWS_VPC_K8S_CNI_LOG_FILE", []string{"stdout", "/host/var/log/aws-routed-eni/ipamd.log"}, "the agent logs to its container's standard error"},
		{"AWS_VPC_K8S_PLUGIN_LOG_FILE", []string{"stderr", "/var/log/aws-routed-eni/plugin.log"}, "the plugin writes no log; the agent's log has its calls"},
		{"AWS_VPC_K8S_PLUGIN_LOG_LEVEL", []string{"debug"}, "the plugin writes no log; the agent's log has its calls"},
	}
}
