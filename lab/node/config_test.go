package node

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{
		Lab: "lab", Name: "node1", StateDir: t.TempDir(), NetNS: "/run/netns/tl-lab-node1", Cgroup: CgroupV1,
		Instance: Instance{
			ID: "i-0123456789abcdef0", Type: "m5.xlarge", Zone: "us-west-2a", Region: "us-west-2",
			MAC: vpc.MAC{2, 0, 0, 0, 1, 2}, Address: netip.MustParseAddr("10.0.0.11"), Subnet: netip.MustParsePrefix("10.0.0.0/19"),
			Resolver: netip.MustParseAddr("10.0.0.2"), MaxPods: 58,
		},
		Kubernetes: Kubernetes{Server: "https://10.0.0.10:443", ClusterDNS: netip.MustParseAddr("172.20.0.10")},
		Parts:      Parts{Kube: "/p/kube", Lab: "/p/lab", Containerd: "/p/c", Runc: "/p/runc", CNI: "/p/cni", PauseImage: "pause:1"},
	}
}

func TestValidationReportsAllInvalidFields(t *testing.T) {
	c := testConfig(t)
	if err := c.validate(); err != nil {
		t.Fatalf("a valid config is refused: %v", err)
	}
	c.Instance.Address, c.Parts.Runc, c.Cgroup = netip.MustParseAddr("10.9.0.1"), "runc", "v3"
	err := c.validate()
	for _, want := range []string{"node1", "instance.address", "parts.runc", "cgroup"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %s", err, want)
		}
	}
}

func TestTheConfigFileHasEverythingExceptTheKeys(t *testing.T) {
	c := testConfig(t)
	c.Labels = map[string]string{"a": "b"}
	c.Kubernetes.Keys = Keys{CA: []byte("ca"), KubeletKey: []byte("secret")}
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	got, err := readConfig(c.dir().config())
	if err != nil {
		t.Fatal(err)
	}
	want := c
	want.Kubernetes.Keys = Keys{}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Errorf("the config differs after saving and reading (-want +got):\n%s", d)
	}
	key := filepath.Join(c.dir().keys(), "kubelet.key")
	if st, err := os.Stat(key); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("kubelet.key: %v, %v; want mode 0600", st, err)
	}
	if b, _ := os.ReadFile(c.dir().config()); strings.Contains(string(b), "c2VjcmV0") {
		t.Error("the config file holds a key")
	}
}

func TestTheKubeletsConfigurationHasTheInstance(t *testing.T) {
	c := testConfig(t)
	c.Labels = map[string]string{"team": "net"}
	k := c.kubeletConfig(true)
	for key, want := range map[string]any{
		"providerID": "aws:///us-west-2a/i-0123456789abcdef0", "maxPods": 58, "cgroupsPerQOS": true,
		"failCgroupV1": false, "oomScoreAdj": 0, "resolvConf": "/etc/resolv.conf", "staticPodPath": "/etc/kubernetes/manifests",
	} {
		if k[key] != want {
			t.Errorf("%s is %v, want %v", key, k[key], want)
		}
	}
	if c.kubeletConfig(false)["cgroupsPerQOS"] != false {
		t.Error("without controllers the kubelet must set no limits")
	}
	argv := strings.Join(c.kubeletArgv(), " ")
	for _, want := range []string{
		"--hostname-override=ip-10-0-0-11.us-west-2.compute.internal", "--node-ip=10.0.0.11",
		"node.kubernetes.io/instance-type=m5.xlarge,team=net,topology.kubernetes.io/region=us-west-2,topology.kubernetes.io/zone=us-west-2a",
	} {
		if !strings.Contains(argv, want) {
			t.Errorf("kubelet's arguments lack %s: %s", want, argv)
		}
	}
}

func TestANodeWithoutACloudHasNothingOfAnInstance(t *testing.T) {
	c := testConfig(t)
	c.Instance.Name, c.Labels = "node1", map[string]string{"team": "net"}
	if got := c.kubeletConfig(true)["providerID"]; got != "trunkline-lab://"+c.Lab+"/node1" {
		t.Errorf("providerID is %v", got)
	}
	argv := strings.Join(c.kubeletArgv(), " ")
	if !strings.Contains(argv, "--hostname-override=node1 ") || !strings.Contains(argv, "--node-labels=team=net ") {
		t.Errorf("kubelet's arguments: %s", argv)
	}
}

func TestKubeProxyDoesNotSetTheMachinesConntrackSysctls(t *testing.T) {
	conntrack := testConfig(t).proxyConfig()["conntrack"].(map[string]any)
	for _, key := range []string{"maxPerCore", "min"} {
		if conntrack[key] != 0 {
			t.Errorf("conntrack.%s is %v; it cannot be set from a network namespace", key, conntrack[key])
		}
	}
}

func TestKubeProxyRunsInTheModeOfTheLab(t *testing.T) {
	c := testConfig(t)
	for proxy, want := range map[string]string{"": "nftables", "nftables": "nftables", "iptables": "iptables"} {
		c.Kubernetes.Proxy = proxy
		config := c.proxyConfig()
		if config["mode"] != want || config[want].(map[string]any)["minSyncPeriod"] != "1s" {
			t.Errorf("proxy %q: mode %v with %v, want %s", proxy, config["mode"], config[want], want)
		}
	}
}

func TestTheMachinesFilesAreReadOnlyInANode(t *testing.T) {
	c := testConfig(t)
	for _, m := range (rootFS{config: c}).mounts() {
		own := strings.HasPrefix(m.source, c.StateDir) || m.fstype != "" || strings.HasPrefix(m.source, "/dev/")
		if !own && m.flags&readOnly == 0 {
			t.Errorf("%s of the machine is bound writable on %s", m.source, m.target)
		}
	}
}

func TestCgroupTreesAreParsedFromMountinfo(t *testing.T) {
	const table = `25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
29 25 0:26 / /mnt/cgroup rw - cgroup2 cgroup2 rw
`
	got, err := parseHierarchies(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []Hierarchy{
		{Mount: "/sys/fs/cgroup/cpu,cpuacct", Options: "cpu,cpuacct"},
		{Mount: "/sys/fs/cgroup/systemd", Options: "name=systemd"},
		{Mount: "/sys/fs/cgroup/unified", V2: true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("trees (-want +got):\n%s", d)
	}
	if onlyV2(got) {
		t.Error("a hybrid machine counts as version 2 only")
	}
	only, err := parseHierarchies(strings.NewReader("28 25 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"))
	if err != nil || !onlyV2(only) || only[0].Name() != "" {
		t.Errorf("version 2 machine: %+v, %v", only, err)
	}
	if _, err := parseHierarchies(strings.NewReader("")); err == nil {
		t.Error("a machine without cgroups is accepted")
	}
}

func TestOnlyLimitsAreRemovedFromABundle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	const spec = `{"ociVersion":"1.0.2","process":{"args":["x"]},"linux":{"resources":{"memory":{"limit":1}},"namespaces":[{"type":"pid"}]}}`
	if err := os.WriteFile(path, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call must change nothing
		if err := stripLimits(path); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	_ = json.Unmarshal(b, &got)
	_ = json.Unmarshal([]byte(`{"ociVersion":"1.0.2","process":{"args":["x"]},"linux":{"namespaces":[{"type":"pid"}]}}`), &want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("bundle (-want +got):\n%s", d)
	}
}

// A privileged container lists the devices of the node, which only its rules allow.
func TestLimitsAreStrippedButNotTheRulesForDevices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	const text = `{"linux":{"devices":[{"path":"/dev/null"}],"resources":{"devices":[{"allow":true,"access":"rwm"}],"memory":{"limit":1},"pids":{"limit":1}}}}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := stripLimits(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"linux":{"devices":[{"path":"/dev/null"}],"resources":{"devices":[{"allow":true,"access":"rwm"}]}}}`
	if got := string(b); got != want {
		t.Errorf("bundle\n %s\nwant\n %s", got, want)
	}
}

func TestTheBundleIsFoundInEveryFormOfTheArgument(t *testing.T) {
	for _, args := range [][]string{
		{"--root", "/r", "create", "--bundle", "/b", "id"}, {"create", "--bundle=/b", "id"}, {"create", "-b", "/b", "id"},
	} {
		if got := bundle(args); got != "/b" {
			t.Errorf("bundle of %v is %s, want /b", args, got)
		}
	}
	if got := bundle([]string{"create", "id"}); got != "." {
		t.Errorf("bundle defaults to %s, want the working directory", got)
	}
}

func TestMachineIDsAreStableUniqueAndWellFormed(t *testing.T) {
	a, b := testConfig(t), testConfig(t)
	b.Instance.ID = "i-0fedcba9876543210"
	ids := []string{machineID(a), machineID(b)}
	if ids[0] == ids[1] || machineID(a) != ids[0] {
		t.Errorf("machine ids %v: want stable and different", ids)
	}
	for _, id := range ids {
		if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
			t.Errorf("machine id %q is not 32 hex digits", id)
		}
	}
}

func TestBootIDsAreRandomUUIDs(t *testing.T) {
	a, b := newBootID(), newBootID()
	parts := strings.Split(a, "-")
	if a == b || len(a) != 36 || len(parts) != 5 || !slices.Contains([]string{"8", "9", "a", "b"}, parts[3][:1]) || parts[2][0] != '4' {
		t.Errorf("boot ids %s, %s: want different version 4 UUIDs", a, b)
	}
}

func TestAnImageWithoutPluginsHasAnEmptyDirectory(t *testing.T) {
	c := testConfig(t)
	c.Parts.CNI = ""
	if err := c.validate(); err != nil {
		t.Error(err)
	}
	if err := c.dir().disk().installPlugins(c.Parts.CNI); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(c.dir().disk().path(cniBinDir)); err != nil || len(left) > 0 {
		t.Errorf("%v, %v; want an empty directory", left, err)
	}
}

func TestPluginsOfTheImageDoNotReplaceInstalledOnes(t *testing.T) {
	c := testConfig(t)
	c.Parts.CNI = t.TempDir()
	for _, name := range []string{"loopback", "portmap"} {
		if err := os.WriteFile(filepath.Join(c.Parts.CNI, name), []byte("image"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(c.Parts.CNI, "MANIFEST.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(c.dir().disk().path(cniBinDir), "portmap")
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, []byte("installed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.dir().disk().installPlugins(c.Parts.CNI); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"loopback": "image", "portmap": "installed"} {
		if b, _ := os.ReadFile(filepath.Join(c.dir().disk().path(cniBinDir), name)); string(b) != want {
			t.Errorf("%s is %q, want the one of the %s", name, b, want)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir().disk().path(cniBinDir), "MANIFEST.json")); err == nil {
		t.Error("a file that is not executable was installed")
	}
}
