package osimage

// ubuntu is Ubuntu 24.04 for EC2. Sources:
//
//   - canonical/cloud-init, cloudinit/sources/DataSourceEc2.py (since 24.1, pull request
//     4799): hot-plug is on by default on EC2; tables from 100 on, rules for every address
//     of an interface, secondary addresses on the link, metrics in steps of 100
//   - the same, cloudinit/stages.py (update_event_enabled): a user's updates.network.when turns it
//     off
//   - kubernetes/kops, issue 17881: the netplan file and the routes of a node of this image
//     after a network plugin attached an interface
//   - kubernetes/kops, pull request 17438: systemd-networkd manages foreign routes and
//     rules, its default, and deletes those of a network plugin
//   - Ubuntu's package procps, /etc/sysctl.d/10-network-security.conf
//   - systemd/systemd, network/99-default.link: MACAddressPolicy=persistent
//
// Whether Canonical's own images for EKS turn hot-plug off, or have plugins in /opt/cni/bin,
// is in no public repository that was found; the node has the harder of both.
func ubuntu() Image {
	return Image{
		CgroupV2: true,
		Disk:     []string{"etc/netplan", "etc/cloud/cloud.cfg.d", "etc/systemd/networkd.conf.d"},
		Files: map[string]string{
			"etc/os-release":                        "PRETTY_NAME=\"Ubuntu 24.04 LTS\"\nNAME=\"Ubuntu\"\nVERSION_ID=\"24.04\"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n",
			"etc/sysctl.d/10-network-security.conf": "net.ipv4.conf.default.rp_filter=2\nnet.ipv4.conf.all.rp_filter=2\n",
		},
		Network: Network{Daemon: true, Metric: 100, HotPlug: HotPlugCloudInit, PersistentMACs: true},
	}
}
