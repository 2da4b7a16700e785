package controlplane

import "strconv"

// option is one command line flag; with an empty value it is rendered as "--name".
type option struct{ name, value string }

func render(program string, component string, flags []option) []string {
	argv := []string{program, component}
	for _, f := range flags {
		arg := "--" + f.name
		if f.value != "" {
			arg += "=" + f.value
		}
		argv = append(argv, arg)
	}
	return argv
}

// etcdArgv returns etcd's command line: without fsync, because the lab's data need not
// survive the machine, and with a short election timeout.
func etcdArgv(c Config) []string {
	p := paths{c.StateDir}
	return render(c.Kube, "etcd", []option{
		{"name", "lab"},
		{"data-dir", p.etcd()},
		{"listen-client-urls", p.etcdClient()},
		{"advertise-client-urls", p.etcdClient()},
		{"listen-peer-urls", p.etcdPeer()},
		{"initial-advertise-peer-urls", p.etcdPeer()},
		{"initial-cluster", "lab=" + p.etcdPeer()},
		{"unsafe-no-fsync", ""},
		{"heartbeat-interval", "10"},
		{"election-timeout", "100"},
		{"snapshot-count", "50000"},
		{"quota-backend-bytes", "2147483648"},
		{"auto-compaction-mode", "periodic"},
		{"auto-compaction-retention", "5m"},
		{"log-level", "warn"},
		{"logger", "zap"},
	})
}

func apiserverArgv(c Config) []string {
	p := paths{c.StateDir}
	return render(c.Kube, "kube-apiserver", []option{
		{"bind-address", c.bindAddress()},
		{"secure-port", "443"},
		{"advertise-address", c.Address.String()},
		{"endpoint-reconciler-type", "lease"},
		{"service-cluster-ip-range", c.ServiceCIDR.String()},
		{"etcd-servers", p.etcdClient()},
		{"storage-media-type", "application/vnd.kubernetes.protobuf"},
		// Authentication and authorization.
		{"client-ca-file", p.pki("ca.crt")},
		{"tls-cert-file", p.pki("apiserver.crt")},
		{"tls-private-key-file", p.pki("apiserver.key")},
		{"anonymous-auth", "false"},
		{"authorization-mode", "Node,RBAC"},
		{"enable-admission-plugins", "NodeRestriction"},
		// Service-account tokens, which STS verifies by the issuer.
		{"service-account-issuer", c.Issuer},
		{"service-account-key-file", p.pki("sa.pub")},
		{"service-account-signing-key-file", p.pki("sa.key")},
		{"api-audiences", "https://kubernetes.default.svc"},
		// Connections to kubelets, and to pods that serve webhooks and aggregated APIs.
		// The namespace has no kube-proxy, so Services are resolved to endpoints.
		{"enable-aggregator-routing", "true"},
		{"kubelet-client-certificate", p.pki("apiserver-kubelet.crt")},
		{"kubelet-client-key", p.pki("apiserver-kubelet.key")},
		{"kubelet-certificate-authority", p.pki("ca.crt")},
		{"kubelet-preferred-address-types", "InternalIP"},
		{"proxy-client-cert-file", p.pki("front-proxy.crt")},
		{"proxy-client-key-file", p.pki("front-proxy.key")},
		{"requestheader-client-ca-file", p.pki("front-proxy-ca.crt")},
		{"requestheader-allowed-names", frontProxyName},
		{"requestheader-extra-headers-prefix", "X-Remote-Extra-"},
		{"requestheader-group-headers", "X-Remote-Group"},
		{"requestheader-username-headers", "X-Remote-User"},
		// The network agent's init container is privileged.
		{"allow-privileged", "true"},
		{"audit-policy-file", p.auditPolicy()},
		{"audit-log-path", p.auditLog()},
		{"audit-log-maxsize", "100"},
		{"audit-log-maxbackup", "2"},
		{"profiling", "false"},
		{"v", "1"},
	})
}

func controllersArgv(c Config) []string {
	p := paths{c.StateDir}
	flags := []option{
		{"kubeconfig", p.conf("controller-manager")},
		{"authentication-kubeconfig", p.conf("controller-manager")},
		{"authorization-kubeconfig", p.conf("controller-manager")},
		// It starts at the same time as the API server, so the published client CA may
		// not exist yet. Only processes in the namespace can connect to it.
		{"bind-address", "127.0.0.1"},
		{"authentication-tolerate-lookup-failure", "true"},
		{"client-ca-file", p.pki("ca.crt")},
		{"root-ca-file", p.pki("ca.crt")},
		{"cluster-signing-cert-file", p.pki("ca.crt")},
		{"cluster-signing-key-file", p.pki("ca.key")},
		{"service-account-private-key-file", p.pki("sa.key")},
		{"use-service-account-credentials", "true"},
		{"allocate-node-cidrs", strconv.FormatBool(c.PodCIDR.IsValid())},
		{"service-cluster-ip-range", c.ServiceCIDR.String()},
		// One replica needs no leader election. With the default rate limits the default
		// ServiceAccount is created only after eight seconds.
		{"leader-elect", "false"},
		{"kube-api-qps", "500"},
		{"kube-api-burst", "1000"},
		{"profiling", "false"},
		{"v", "1"},
	}
	// As on EKS, the network plugin allocates pods' addresses; without a cloud it needs a
	// range for each node.
	if c.PodCIDR.IsValid() {
		flags = append(flags, option{"cluster-cidr", c.PodCIDR.String()})
	}
	return render(c.Kube, "kube-controller-manager", flags)
}

func schedulerArgv(c Config) []string {
	p := paths{c.StateDir}
	return render(c.Kube, "kube-scheduler", []option{
		{"kubeconfig", p.conf("scheduler")},
		{"authentication-kubeconfig", p.conf("scheduler")},
		{"authorization-kubeconfig", p.conf("scheduler")},
		// It starts at the same time as the API server, so the published client CA may
		// not exist yet. Only processes in the namespace can connect to it.
		{"bind-address", "127.0.0.1"},
		{"authentication-tolerate-lookup-failure", "true"},
		{"leader-elect", "false"},
		{"kube-api-qps", "500"},
		{"kube-api-burst", "1000"},
		{"profiling", "false"},
		{"v", "1"},
	})
}
