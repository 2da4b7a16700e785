package awsnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Options are those of the daemon.
type Options struct {
	Cluster  string // CLUSTER_NAME
	Prefixes bool   // ENABLE_PREFIX_DELEGATION
	// Plugin and Egress are the shell commands that run Plugin and Egress of this package.
	Plugin, Egress string
	// Reference is the directory of the reference plugins that the init container installs.
	Reference string
}

// Serve is the daemon: it makes the interfaces, sets the node's network up, and answers the
// plugin until ctx ends. It then leaves everything as it is, with the socket's file, as AWS's
// daemon does: its process is killed. Source: entrypoint.sh and nodeInit in pkg/ipamd/ipamd.go.
func Serve(ctx context.Context, o Options) error {
	for _, dir := range []string{runDir, logDir, binDir, confDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(filepath.Join(logDir, "ipamd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	log := slog.New(slog.NewJSONHandler(io.MultiWriter(file, os.Stderr), nil))
	if err := o.install(); err != nil {
		return fmt.Errorf("install the plugin: %w", err)
	}
	interfaces, err := setUp(ctx, o)
	if err != nil {
		log.Error("set the node up", "err", err)
		return err
	}
	links, err := linkNames()
	if err != nil {
		return err
	}
	pool, stale, err := openPool(checkpoint, interfaces, links)
	if err != nil {
		return err
	}
	pruneAll(stale, log)
	listener, err := listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	server := rpc.NewServer()
	if err := server.RegisterName(service, Backend{pool}); err != nil {
		return err
	}
	// The runtime finds the network once the daemon answers.
	if err := atomicfile.Write(conflist, []byte(configuration), 0o644); err != nil {
		return err
	}
	log.Info("serving", "interfaces", interfaces, "allocations", len(pool.all))
	defer startIntrospection(ctx, pool, log)()
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go server.ServeCodec(jsonrpc.NewServerCodec(conn)) // ends with the plugin's call
	}
}

// pruneAll removes the rules of ended pods. An error does not stop AWS's daemon.
func pruneAll(stale []allocation, log *slog.Logger) {
	for _, a := range stale {
		log.Warn("stale allocation", "address", a.IPv4, "pod", a.Metadata.Namespace+"/"+a.Metadata.Pod)
		if err := (Host{}).prune(a.IPv4); err != nil {
			log.Error("remove the rules of an ended pod", "err", err)
		}
	}
}

// listen replaces the socket that an earlier daemon left.
func listen() (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return l, os.Chmod(socket, 0o660)
}

// configuration is what the entrypoint writes on a cluster of IPv4. Source:
// misc/10-aws.conflist and entrypoint.sh.
const configuration = `{
  "cniVersion": "0.4.0",
  "name": "aws-cni",
  "disableCheck": true,
  "plugins": [
    {
      "name": "aws-cni",
      "type": "aws-cni",
      "vethPrefix": "eni",
      "mtu": "9001",
      "podSGEnforcingMode": "strict",
      "pluginLogFile": "/var/log/aws-routed-eni/plugin.log",
      "pluginLogLevel": "DEBUG",
      "capabilities": {"io.kubernetes.cri.pod-annotations": true}
    },
    {
      "name": "egress-cni",
      "type": "egress-cni",
      "mtu": "9001",
      "enabled": "false",
      "randomizeSNAT": "prng",
      "nodeIP": "",
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "fd00::ac:00/118"}]],
        "routes": [{"dst": "::/0"}],
        "dataDir": "/run/cni/v4pd/egress-v6-ipam"
      },
      "pluginLogFile": "/var/log/aws-routed-eni/egress-v6-plugin.log",
      "pluginLogLevel": "DEBUG"
    },
    {
      "type": "portmap",
      "capabilities": {"portMappings": true},
      "snat": true
    }
  ]
}
`

// install writes the plugins. The init container copies all reference plugins of its image,
// over those that the node has; the lab has some of them. Then the entrypoint copies AWS's
// own. Source: InstallBinariesFromDir, called in cmd/aws-vpc-cni-init/main.go, and
// cmd/aws-vpc-cni/main.go.
func (o Options) install() error {
	if err := installAll(o.Reference, binDir); err != nil {
		return err
	}
	for name, command := range map[string]string{"aws-cni": o.Plugin, "egress-cni": o.Egress} {
		if err := atomicfile.Write(filepath.Join(binDir, name), []byte("#!/bin/sh\nexec "+command+"\n"), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// installAll copies the programs of a directory into another one, each by rename, because
// the runtime may execute the one that is there.
func installAll(from, to string) error {
	programs, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, p := range programs {
		info, err := p.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, p.Name()))
		if err != nil {
			return err
		}
		if err := atomicfile.Write(filepath.Join(to, p.Name()), content, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// setUp makes the interfaces and the node's links, routes, rules, sysctls and filter.
func setUp(ctx context.Context, o Options) ([]Interface, error) {
	this, err := thisInstance(ctx, o.Cluster)
	if err != nil {
		return nil, err
	}
	if err := this.warm(ctx, o.Prefixes); err != nil {
		return nil, err
	}
	interfaces, err := this.interfaces(ctx)
	if err != nil {
		return nil, err
	}
	for i := range interfaces {
		if interfaces[i].Link, err = linkOf(ctx, interfaces[i].MAC); err != nil {
			return nil, err
		}
	}
	primary := interfaces[0]
	cidrs, err := this.ranges(ctx, primary.MAC)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		// Answers to connections from outside leave by the primary interface. Source:
		// configureSystemParams in cmd/aws-vpc-cni-init/main.go.
		filepath.Join("conf", primary.Link, "rp_filter"): "2",
		// On every node that AWS's daemon serves, packets are forwarded. Neither AWS's programs
		// nor the public files of EKS's image AL2023 that were found turn it on, so which
		// program does is not imitated.
		"ip_forward": "1",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4", name), []byte(value), 0o644); err != nil {
			return nil, err
		}
	}
	if err := (Host{}).Configure(interfaces); err != nil {
		return nil, err
	}
	return interfaces, Host{}.SetFilter(Filter{Link: primary.Link, Address: primary.Primary, CIDRs: cidrs})
}

// linkTimeout is how long an attached interface may take to appear on the node.
const linkTimeout = time.Minute

// linkOf waits for the link with a MAC.
func linkOf(ctx context.Context, mac string) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		all, err := net.Interfaces()
		for _, l := range all {
			if l.HardwareAddr.String() == mac {
				name = l.Name
			}
		}
		return name != "", err
	})
	if err != nil {
		return "", fmt.Errorf("wait for the link with MAC %s: %w", mac, err)
	}
	return name, nil
}

func linkNames() (names []string, err error) {
	all, err := net.Interfaces()
	for _, l := range all {
		names = append(names, l.Name)
	}
	return names, err
}
