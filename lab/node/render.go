package node

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	containerdSocket = "/run/containerd/containerd.sock"
	containerdRoot   = "/var/lib/containerd"
	cniBinDir        = "/opt/cni/bin"
	cniConfDir       = "/etc/cni/net.d"
	staticPodDir     = "/etc/kubernetes/manifests"
	// baseSpec is the OCI spec that every container's spec is derived from.
	baseSpec = confDir + "/base-runtime-spec.json"
	// execPath is the PATH of every component: the lab's own programs first.
	execPath = binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// containerdConfig returns a configuration for containerd 1.6 (config version 2). It
// restricts OOM score adjustments, because lowering a score needs CAP_SYS_RESOURCE, which
// the lab does not have when it runs in a container. For base_runtime_spec see bootIDHook.
func containerdConfig(pause, snapshotter, runc string) string {
	return fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
oom_score = 0

[grpc]
  address = %q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
    max_conf_num = 1

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = %q

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = %q
        SystemdCgroup = false
`, containerdRoot, containerdSocket, pause, cniBinDir, cniConfDir, snapshotter, baseSpec, runc)
}

// kubeletConfig returns a KubeletConfiguration. It needs no cgroupRoot, because the node's
// subtree is the root in its cgroup namespace.
func (c Config) kubeletConfig(limits bool) map[string]any {
	k := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "0.0.0.0", "providerID": c.Instance.providerID(c.Lab),
		"maxPods":           c.Instance.MaxPods,
		"clusterDomain":     "cluster.local",
		"clusterDNS":        []string{c.Kubernetes.ClusterDNS.String()},
		"resolvConf":        "/etc/resolv.conf",
		"tlsCertFile":       keysDir + "/kubelet.crt",
		"tlsPrivateKeyFile": keysDir + "/kubelet.key",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": keysDir + "/ca.crt"},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"podLogsDir":               "/var/log/pods",
		"staticPodPath":            staticPodDir,
		"volumePluginDir":          "/var/lib/kubelet/volume-plugins",
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false,
		"oomScoreAdj":              0,
		// Several kubelets share the machine's disk: with the default percentages, all of
		// them would evict when one fills it.
		"evictionHard":                map[string]string{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
		"imageGCHighThresholdPercent": 100,
		"serializeImagePulls":         false,
		"kubeAPIQPS":                  100,
		"kubeAPIBurst":                200,
		"registerNode":                true,
		"nodeStatusUpdateFrequency":   "5s",
		"nodeLeaseDurationSeconds":    20,
		"cgroupsPerQOS":               true,
		"enforceNodeAllocatable":      []string{"pods"},
		"protectKernelDefaults":       c.image().ProtectKernelDefaults,
	}
	if !limits {
		k["cgroupsPerQOS"] = false
		k["enforceNodeAllocatable"] = []string{}
	}
	return k
}

// nodeLabels returns the labels that AWS's cloud controller sets on a node, where it is
// an instance, and those of the config.
func (c Config) nodeLabels() string {
	labels := maps.Clone(c.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	if c.Instance.InCloud() {
		labels["topology.kubernetes.io/region"] = c.Instance.Region
		labels["topology.kubernetes.io/zone"] = c.Instance.Zone
		labels["node.kubernetes.io/instance-type"] = c.Instance.Type
	}
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}

func (c Config) kubeletArgv() []string {
	return []string{
		binDir + "/kubelet",
		"--config=" + confDir + "/kubelet.yaml",
		"--kubeconfig=" + keysDir + "/kubelet.conf",
		"--root-dir=/var/lib/kubelet",
		"--cert-dir=/var/lib/kubelet/pki",
		"--hostname-override=" + c.Instance.Hostname(),
		"--node-ip=" + c.Instance.Address.String(),
		"--node-labels=" + c.nodeLabels(),
		"--v=2",
	}
}

// proxyConfig returns a KubeProxyConfiguration. It does not set conntrack sysctls, which
// belong to the machine and cannot be written in a network namespace.
func (c Config) proxyConfig() map[string]any {
	sync := map[string]any{"syncPeriod": "30s", "minSyncPeriod": "1s"}
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": cmp.Or(c.Kubernetes.Proxy, "nftables"), "hostnameOverride": c.Instance.Hostname(),
		"bindAddress": "0.0.0.0", "healthzBindAddress": "0.0.0.0:10256", "metricsBindAddress": "127.0.0.1:10249",
		"clientConnection": map[string]any{"kubeconfig": keysDir + "/kube-proxy.conf", "qps": 50, "burst": 100},
		// As on EKS: without a cluster CIDR, traffic between pods and services is not
		// masqueraded.
		"clusterCIDR": "",
		"conntrack": map[string]any{
			"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
			"udpTimeout": "0s", "udpStreamTimeout": "0s",
		},
		"nftables":    sync,
		"iptables":    sync,
		"oomScoreAdj": 0,
	}
}

// writeConf writes the configuration files of the components to dir.
func (r rootFS) writeConf(dir string) error {
	c := r.config
	runc := binDir + "/runc"
	if !c.limits() {
		runc = binDir + "/" + runcWithoutLimits
	}
	kubelet, err := yaml.Marshal(c.kubeletConfig(c.limits()))
	if err != nil {
		return fmt.Errorf("render kubelet's configuration: %w", err)
	}
	proxy, err := yaml.Marshal(c.proxyConfig())
	if err != nil {
		return fmt.Errorf("render kube-proxy's configuration: %w", err)
	}
	config, err := os.ReadFile(c.dir().config())
	if err != nil {
		return err
	}
	base, err := os.ReadFile(c.dir().baseSpec())
	if err != nil {
		return err
	}
	files := map[string][]byte{
		filepath.Base(baseSpec):   base,
		"boot_id":                 []byte(c.BootID + "\n"),
		"containerd.toml":         []byte(containerdConfig(c.Parts.PauseImage, c.dir().disk().snapshotter(), runc)),
		"kubelet.yaml":            kubelet,
		"kube-proxy.yaml":         proxy,
		filepath.Base(nodeConfig): config,
		filepath.Base(busConfig):  []byte(busConfiguration),
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("write %s of node: %w", name, err)
		}
	}
	return nil
}

// limits reports whether containers can have limits. They cannot with cgroup version 2 on
// a machine with version 1, where version 2 has no controllers.
func (c Config) limits() bool { return c.Cgroup == CgroupV1 || c.FullV2 }
