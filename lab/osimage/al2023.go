package osimage

// al2023 is EKS's image of Amazon Linux 2023. Sources, in awslabs/amazon-eks-ami:
//
//   - templates/al2023/provisioners/install-worker.sh: an empty /opt/cni/bin (plugins were
//     removed by pull request 1610), iptables-nft, and an empty 99-vpc-policy-routes.rules
//     that masks the udev rules of amazon-ec2-net-utils
//   - templates/al2023/runtime/rootfs/etc: the files below systemd/networkd.conf.d and
//     sysctl.d, and systemd/network/99-default.link.d, which sets MACAddressPolicy=none
//   - nodeadm/cmd/nodeadm-internal/udev and rootfs/etc/udev/rules.d/90-eks.rules: which
//     interfaces systemd-networkd configures, with which metrics, tables and rules
//   - nodeadm/internal/kubelet/config.go: protectKernelDefaults
func al2023() Image {
	return Image{
		CgroupV2:              true,
		ProtectKernelDefaults: true,
		// nodeadm keeps there which program configures an interface.
		Disk: []string{"etc/eks"},
		Files: map[string]string{
			"etc/os-release": "NAME=\"Amazon Linux\"\nVERSION=\"2023\"\nID=\"amzn\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"2023\"\n" +
				"PLATFORM_ID=\"platform:al2023\"\nPRETTY_NAME=\"Amazon Linux 2023\"\n",
			"etc/systemd/networkd.conf.d/80-release.conf": foreignSettingsKept,
			// systemd's own default, which Amazon Linux ships: systemd/systemd,
			// sysctl.d/50-default.conf of version 252. The pattern is for every interface
			// that exists or appears, also a pod's.
			"etc/sysctl.d/50-default.conf": "net.ipv4.conf.default.rp_filter = 2\nnet.ipv4.conf.*.rp_filter = 2\n-net.ipv4.conf.all.rp_filter\n" +
				"net.ipv4.conf.default.accept_source_route = 0\nnet.ipv4.conf.*.accept_source_route = 0\n-net.ipv4.conf.all.accept_source_route\n" +
				"net.ipv4.conf.default.promote_secondaries = 1\nnet.ipv4.conf.*.promote_secondaries = 1\n-net.ipv4.conf.all.promote_secondaries\n",
			"etc/sysctl.d/67-eks-reserved-ports.conf": "net.ipv4.ip_local_reserved_ports = 2703,9808,9809,10249,10250,10256,61678,61679\n",
			"etc/sysctl.d/99-sysctl.conf":             "net.ipv4.tcp_keepalive_time=600\nnet.ipv4.tcp_keepalive_intvl=60\nnet.ipv4.tcp_keepalive_probes=3\n",
		},
		Network: Network{Daemon: true, Metric: 512, HotPlug: HotPlugNodeadm},
	}
}

// foreignSettingsKept is a configuration of systemd-networkd, which would otherwise delete
// routes and rules of other programs when it reads its configuration again.
const foreignSettingsKept = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"
