package osimage

// bottlerocket is Bottlerocket's variant aws-k8s. Sources, in
// bottlerocket-os/bottlerocket-core-kit and, before it was split off, in
// bottlerocket-os/bottlerocket:
//
//   - packages/release: opt-cni.mount (an overlay of the image's plugins with its
//     upper directory on the disk), etc-cni.mount (a tmpfs, noexec), var.mount and opt.mount
//     (on the disk), release-sysctl.conf, release-systemd-networkd.conf, 80-release.link
//     (MACAddressPolicy=none)
//   - packages/cni-plugins/cni-plugins.spec: the plugins, loopback and portmap among them
//   - pull request 1677 of bottlerocket: systemd is patched not to set rp_filter of every
//     interface; lo and the primary interface have 2
//   - packages/systemd/systemd.spec: no network configuration of systemd's own, so that
//     networkd does not configure links of pods; root's shell is nologin
//   - packages/containerd: the socket /run/containerd/containerd.sock, enable_selinux
//
// The label cni_exec_t of /opt/cni, which SELinux requires of a plugin, is not imitated: the
// machine's kernel has one policy for all nodes.
func bottlerocket() Image {
	return Image{
		CNIPlugins: true,
		CgroupV2:   true,
		ReadOnly:   true,
		NoShell:    true,
		Tmpfs:      []string{"etc/cni"},
		Files: map[string]string{
			"etc/os-release": "NAME=Bottlerocket\nID=bottlerocket\nPRETTY_NAME=\"Bottlerocket OS\"\nVARIANT_ID=aws-k8s\n",
			"etc/systemd/networkd.conf.d/80-release.conf": foreignSettingsKept,
			"etc/sysctl.d/80-release.conf": "net.ipv4.tcp_wmem = 4096 20480 4194304\nnet.ipv4.ip_default_ttl = 255\n" +
				"net.ipv4.conf.all.forwarding = 1\nnet.ipv6.conf.all.forwarding = 1\nnet.ipv4.ip_local_port_range = 32768 60999\n" +
				"net.ipv4.conf.lo.rp_filter = 2\n",
			"etc/sysctl.d/90-primary_interface.conf": "net.ipv4.conf.eth0.rp_filter = 2\n",
		},
		// Without a metric of its own, systemd-networkd uses 1024 (systemd.network(5),
		// RouteMetric=).
		Network: Network{Daemon: true, Metric: 1024},
	}
}
