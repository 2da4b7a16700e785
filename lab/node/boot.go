package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/lab/node/component"
)

// grace is how long each program may take to end in an orderly shutdown.
const grace = 5 * time.Second

// boot configures the node and runs its programs, as systemd and cloud-init do on an
// instance, until it receives SIGTERM or SIGINT. It runs inside the node's own root.
func boot() error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := readConfig(nodeConfig)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	r := newReaper()
	if err := c.configure(); err != nil {
		return err
	}
	var running []*component.Component
	start := func(specs []component.Spec) error {
		for _, spec := range specs {
			comp, err := component.Start(spec, r, log)
			if err != nil {
				return err
			}
			running = append(running, comp)
		}
		return nil
	}
	if err := c.configureNetwork(ctx, start, log); err != nil {
		return err
	}
	// Not earlier: it would reap the programs that configureNetwork executes and waits for.
	stopReaper := make(chan struct{})
	defer close(stopReaper)
	go r.run(stopReaper) // ends with this process
	log.Info("node configured", "hostname", c.Instance.Hostname(), "address", c.Instance.Address)
	if err := start(c.components()); err != nil {
		return err
	}
	<-ctx.Done()
	log.Info("node stopping")
	for i := len(running) - 1; i >= 0; i-- {
		running[i].Stop()
	}
	return nil
}

// configure prepares the system before the programs start: host name, cgroups, sysctls and
// directories.
func (c Config) configure() error {
	if err := unix.Sethostname([]byte(c.Instance.Hostname())); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if c.FullV2 {
		if err := leaveRootCgroup(); err != nil {
			return err
		}
	}
	for path, value := range c.nodeSysctls() {
		if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s: %w", path, err)
		}
	}
	for _, dir := range []string{cniBinDir, cniConfDir, staticPodDir, "/run/netns", "/run/lock", "/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/var/tmp"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"/var/run": "/run", "/var/lock": "/run/lock"} {
		if err := os.Symlink(to, link); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return nil
}

// nodeSysctls returns sysctls of a network namespace. An image sets its own; they follow on
// the kernel's defaults, because a namespace inherits those of the machine.
func (c Config) nodeSysctls() map[string]string {
	if c.image().Network.Daemon {
		return map[string]string{
			"net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0",
			"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0",
		}
	}
	return map[string]string{
		"net/ipv4/ip_forward":          "1",
		"net/ipv6/conf/all/forwarding": "1",
		// Source address selection on several interfaces of one subnet.
		"net/ipv4/conf/all/rp_filter":     "0",
		"net/ipv4/conf/default/rp_filter": "0",
	}
}

// leaveRootCgroup moves this process from the root cgroup into a child, because a cgroup
// v2 with processes cannot enable controllers for its children.
func leaveRootCgroup() error {
	dir := filepath.Join(cgroupRoot, "init")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return fmt.Errorf("leave the root cgroup: %w", err)
	}
	return enableControllers(cgroupRoot)
}

// components returns the programs of a node in start order. They retry until the programs
// they depend on are up, as on any machine.
func (c Config) components() []component.Spec {
	return []component.Spec{
		c.program("containerd", binDir+"/containerd", "--config", confDir+"/containerd.toml"),
		c.program("kubelet", c.kubeletArgv()...),
		c.program("kube-proxy", binDir+"/kube-proxy", "--config="+confDir+"/kube-proxy.yaml", "--v=2"),
	}
}

// program is one that PID 1 keeps running.
func (c Config) program(name string, argv ...string) component.Spec {
	return component.Spec{
		Name: name, Argv: argv, Env: []string{"PATH=" + execPath, "HOME=/root", component.Mark(c.Lab)},
		Log: filepath.Join(logDir, name+".log"), Grace: grace,
	}
}
