package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/node/component"
)

const (
	defaultDeadline = 3 * time.Minute
	pollEvery       = 50 * time.Millisecond
	logLines        = 15 // of a failed component's log in the error
	// tooManyRestarts of a component make the start fail.
	tooManyRestarts = 3
)

func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// ControlPlane is a running control plane.
type ControlPlane struct {
	config      Config
	credentials *Credentials
	log         *slog.Logger
	components  []*component.Component // in start order
	forward     *forwarder
	proxy       *apiproxy.Proxy // nil without APIProxy
	client      *kubernetes.Clientset
}

// Start starts a control plane and returns when pods can be created: the API server is
// ready and the default ServiceAccount exists. If it fails, the error has the last log
// lines of the failed component, and all processes are stopped.
func Start(ctx context.Context, c Config, log *slog.Logger) (*ControlPlane, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Deadline == 0 {
		c.Deadline = defaultDeadline
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Deadline,
		fmt.Errorf("not ready after %s", c.Deadline))
	defer cancel()
	cp := &ControlPlane{config: c, log: log}
	if err := cp.start(ctx); err != nil {
		cp.Stop()
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(cp.config.StateDir, 0o700); err != nil {
		return err
	}
	if cp.credentials, err = newCredentials(); err != nil {
		return err
	}
	if err := cp.credentials.write(cp.config); err != nil {
		return err
	}
	if cp.forward, err = newForwarder(cp.config.Port, cp.config.NetNS, cp.config.direct(), cp.log); err != nil {
		return err
	}
	if err := cp.startProxy(); err != nil {
		return err
	}
	if err := cp.writeAdmin(); err != nil {
		return err
	}
	if err := cp.launch(ctx); err != nil {
		return err
	}
	return cp.awaitServing(ctx)
}

// writeAdmin writes the kubeconfig of a cluster administrator, for clients on the
// machine, and creates our own client from it.
func (cp *ControlPlane) writeAdmin() error {
	admin, err := cp.credentials.CA.Client("trunkline-lab-admin", "system:masters")
	if err != nil {
		return err
	}
	conf, err := Kubeconfig("trunkline-lab", cp.forward.url(), cp.credentials.CA.CertPEM(), admin)
	if err != nil {
		return err
	}
	if err := writeSecret(cp.Kubeconfig(), conf); err != nil {
		return fmt.Errorf("write admin kubeconfig: %w", err)
	}
	access, err := clientcmd.RESTConfigFromKubeConfig(conf)
	if err != nil {
		return fmt.Errorf("read admin kubeconfig: %w", err)
	}
	access.QPS, access.Burst, access.UserAgent = 100, 200, "trunkline-lab"
	cp.client, err = kubernetes.NewForConfig(access)
	return err
}

// launch starts the four programs: first etcd, and once its socket accepts connections the
// others, which retry until the programs they depend on are up.
func (cp *ControlPlane) launch(ctx context.Context) error {
	p := paths{cp.config.StateDir}
	if err := cp.run("etcd", etcdArgv(cp.config)); err != nil {
		return err
	}
	socket := filepath.Join(p.dir, "etcd.sock")
	err := cp.poll(ctx, "etcd", func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return err
	}
	for name, argv := range map[string][]string{
		"kube-apiserver":          apiserverArgv(cp.config),
		"kube-controller-manager": controllersArgv(cp.config),
		"kube-scheduler":          schedulerArgv(cp.config),
	} {
		if err := cp.run(name, argv); err != nil {
			return err
		}
	}
	return nil
}

func (cp *ControlPlane) run(name string, argv []string) error {
	p := paths{cp.config.StateDir}
	c, err := component.Start(component.Spec{
		Name: name, Argv: argv, Log: p.log(name), NetNS: cp.config.NetNS,
		Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", component.Mark(cp.config.Lab)},
		Grace: 3 * time.Second,
	}, nil, cp.log)
	if err != nil {
		return err
	}
	cp.components = append(cp.components, c)
	return nil
}

// Kubeconfig returns the path of the administrator's kubeconfig. Its server is the
// forwarder on 127.0.0.1.
func (cp *ControlPlane) Kubeconfig() string {
	return filepath.Join(cp.config.StateDir, "admin.kubeconfig")
}

// URL returns the API server's URL for clients on the machine.
func (cp *ControlPlane) URL() string { return cp.forward.url() }

// Server returns the API server's URL for instances of the VPC.
func (cp *ControlPlane) Server() string { return cp.config.Server() }

// Credentials returns the keys that sign the certificates of nodes.
func (cp *ControlPlane) Credentials() *Credentials { return cp.credentials }

// Client returns a client with administrator rights.
func (cp *ControlPlane) Client() *kubernetes.Clientset { return cp.client }

// Access returns that of a user to the API server from the machine. It is at the address that
// instances use, which is the proxy's if there is one.
func (cp *ControlPlane) Access(user string, groups ...string) (*rest.Config, error) {
	pair, err := cp.credentials.CA.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: cp.Server(), Dial: cp.config.dial,
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.credentials.CA.CertPEM(), CertData: pair.Cert, KeyData: pair.Key},
	}, nil
}

// JWKS returns the JSON Web Key Set of the service-account token issuer, as the API server
// publishes it for federation.
func (cp *ControlPlane) JWKS(ctx context.Context) ([]byte, error) {
	b, err := cp.client.RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the key set of the token issuer: %w", err)
	}
	return b, nil
}

// Stop stops all programs, in reverse order of their start. It is idempotent and keeps the
// files.
func (cp *ControlPlane) Stop() {
	for len(cp.components) > 0 {
		last := len(cp.components) - 1
		if cp.components[last].Name() == "etcd" {
			cp.components[last].Kill() // its data is discarded with the lab
		} else {
			cp.components[last].Stop()
		}
		cp.components = cp.components[:last]
	}
	if cp.proxy != nil {
		cp.proxy.Close()
	}
	if cp.forward != nil {
		cp.forward.close()
	}
}

// failed returns an error if a component keeps exiting, with its last log lines.
func (cp *ControlPlane) failed() error {
	for _, c := range cp.components {
		if n, exit := c.Restarts(); n >= tooManyRestarts {
			return fmt.Errorf("%s exited %d times (%w); its last log lines:\n%s",
				c.Name(), n, exit, component.Tail(c.Log(), logLines))
		}
	}
	return nil
}

// poll calls check until it succeeds, ctx ends, or a component keeps exiting. After a
// timeout the error has the last log lines of the named component.
func (cp *ControlPlane) poll(ctx context.Context, name string, check func() error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (bool, error) {
		if last = check(); last == nil {
			return true, nil
		}
		return false, cp.failed()
	})
	if wait.Interrupted(err) {
		return cp.timeoutError(context.Cause(ctx), last, name)
	}
	return err
}

func (cp *ControlPlane) timeoutError(cause, last error, name string) error {
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	log := paths{cp.config.StateDir}.log(name)
	return fmt.Errorf("%s: %w: %w; its last log lines:\n%s", name, cause, last, component.Tail(log, logLines))
}
