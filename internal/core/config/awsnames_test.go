package config

import (
	"slices"
	"strings"
	"testing"
)

func TestAVariableOfAWSThatIsSetAndHasNoEffectIsNamed(t *testing.T) {
	c, err := Load(Sources{Env: env(map[string]string{
		"ENABLE_BANDWIDTH_PLUGIN": "True", "ANNOTATE_POD_IP": "false", "DISABLE_POD_V6": "0", "AWS_VPC_K8S_CNI_CONNMARK": "0x40",
		"WARM_PREFIX_TARGET": "1", "NETWORK_POLICY_ENFORCING_MODE": "Strict", "DISABLE_METRICS": "", "AWS_EC2_ENDPOINT": "https://ec2", "WARM_IP_TARGET": "3",
	})})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range c.NotServed() {
		got = append(got, n.String())
	}
	want := []string{
		"NETWORK_POLICY_ENFORCING_MODE=Strict is set, and not served: the setting network-policy says",
		"ENABLE_BANDWIDTH_PLUGIN=True is set, and not served: the bandwidth plugin is chained only where AWS's configuration had it",
		"AWS_VPC_K8S_CNI_CONNMARK=0x40 is set, and not served: connections are marked with 0x80",
		"AWS_EC2_ENDPOINT=https://ec2 is set, and not served: set AWS_ENDPOINT_URL_EC2",
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%q, want %q", got, want)
	}
	if c, err := Load(Sources{Env: env(nil)}); err != nil || len(c.NotServed()) > 0 {
		t.Errorf("without variables: %v, %v", c.NotServed(), err)
	}
}

// A word that is no Boolean is not the same value as false.
func TestAValueOfAWSsVariableFitsInAnyCaseAndABooleanInAnyForm(t *testing.T) {
	for _, c := range []struct {
		env, value string
		fits       bool
	}{
		{"NETWORK_POLICY_ENFORCING_MODE", "Standard", true},
		{"NETWORK_POLICY_ENFORCING_MODE", "none", false},
		{"AWS_VPC_K8S_CNI_CONNMARK", "0X80", true},
		{"ANNOTATE_POD_IP", "F", true},
		{"ANNOTATE_POD_IP", "off", false},
		{"NETWORK_POLICY_ENFORCING_MODE", "false", false},
		{"ENABLE_NFTABLES", "0", false},
	} {
		got, err := Load(Sources{Env: env(map[string]string{c.env: c.value})})
		if err != nil || (len(got.NotServed()) == 0) != c.fits {
			t.Errorf("%s=%s: not served: %v, %v; want that the value fits: %v", c.env, c.value, got.NotServed(), err, c.fits)
		}
	}
}

// Each variable of AWS's CNI is an alias of a setting, refused, or not served; in one list
// only. The list is of its README and of the reference of its release 1.23.1.
func TestEveryVariableOfAWSIsInOneList(t *testing.T) {
	lists := map[string]int{}
	for _, s := range settings() {
		for _, name := range s.Aliases {
			lists[name]++
		}
	}
	for _, u := range unsupported() {
		lists[u.env]++
	}
	for _, n := range notServed() {
		lists[n.env]++
		if n.means == "" || strings.HasSuffix(n.means, ".") {
			t.Errorf("%s: %q must be a part of a sentence", n.env, n.means)
		}
	}
	lists["CLUSTER_ENDPOINT"]++ // cmd/trunkline: the flag --endpoint
	for name := range strings.FieldsSeq(`
		ADDITIONAL_ENI_TAGS ANNOTATE_POD_IP AWS_EC2_ENDPOINT AWS_EXTERNAL_SERVICE_CIDRS AWS_MANAGE_ENIS_NON_SCHEDULABLE
		AWS_VPC_CNI_NODE_PORT_SUPPORT AWS_VPC_ENI_MTU AWS_VPC_K8S_CNI_BACKING_STORE AWS_VPC_K8S_CNI_CONFIGURE_RPFILTER
		AWS_VPC_K8S_CNI_CONNMARK AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS AWS_VPC_K8S_CNI_EXTERNALSNAT
		AWS_VPC_K8S_CNI_LOGLEVEL AWS_VPC_K8S_CNI_LOG_FILE AWS_VPC_K8S_CNI_RANDOMIZESNAT AWS_VPC_K8S_CNI_VETHPREFIX
		AWS_VPC_K8S_PLUGIN_LOG_FILE AWS_VPC_K8S_PLUGIN_LOG_LEVEL CLUSTER_ENDPOINT CLUSTER_NAME DISABLE_INTROSPECTION
		DISABLE_LEAKED_ENI_CLEANUP DISABLE_METRICS DISABLE_NETWORK_RESOURCE_PROVISIONING DISABLE_POD_V6 DISABLE_TCP_EARLY_DEMUX
		ENABLE_BANDWIDTH_PLUGIN ENABLE_IMDS_ONLY_MODE ENABLE_IPv4 ENABLE_IPv6 ENABLE_MULTI_NIC ENABLE_NFTABLES ENABLE_POD_ENI
		ENABLE_PREFIX_DELEGATION ENABLE_SUBNET_DISCOVERY ENABLE_V4_EGRESS ENABLE_V6_EGRESS ENI_CONFIG_ANNOTATION_DEF
		ENI_CONFIG_LABEL_DEF HOST_CNI_BIN_PATH HOST_CNI_CONFDIR_PATH HTTP_TIMEOUT INTROSPECTION_BIND_ADDRESS IP_COOLDOWN_PERIOD
		MANAGE_UNTAGGED_ENI MAX_ENI MINIMUM_IP_TARGET MY_NODE_NAME NETWORK_POLICY_ENFORCING_MODE POD_MTU
		POD_SECURITY_GROUP_ENFORCING_MODE WARM_ENI_TARGET WARM_IP_TARGET WARM_PREFIX_TARGET`) {
		if lists[name] != 1 {
			t.Errorf("%s is in %d lists, want one", name, lists[name])
		}
	}
}
