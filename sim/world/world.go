package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/fabric"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
	"github.com/trunkline/trunkline/sim/sts"
)

// World is a running embedded VPC. Make it with Start; its methods are safe for
// concurrent use.
type World struct {
	config   Config
	log      *slog.Logger
	cloud    *cloud.Cloud
	iam      *iam.Account
	sts      *sts.STS
	faults   *faults.Injector
	calls    faults.Log
	api      http.Handler
	fabric   *fabric.Fabric // nil without a fabric
	local    net.Listener
	operator iam.Credentials
	profiles profiles
	power    power

	turn chan struct{} // a semaphore of one: serialises sync
	stop context.CancelFunc
	run  *errgroup.Group
	once sync.Once
	down error
}

// Start makes the account and everything around it, and returns when the API answers
// and every guest with an existing namespace has its links. Call Close to end it.
func Start(ctx context.Context, c Config) (_ *World, err error) {
	c = c.withDefaults()
	w := &World{
		config: c, log: c.Log, turn: make(chan struct{}, 1),
		faults: faults.New(c.Spec.Seed, c.Now), power: newPower(),
	}
	w.turn <- struct{}{}
	if err := w.build(); err != nil {
		return nil, fmt.Errorf("start world: %w", err)
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.stop = stop
	w.run, runCtx = errgroup.WithContext(runCtx)
	if err := w.start(ctx, runCtx); err != nil {
		return nil, errors.Join(fmt.Errorf("start world: %w", err), w.Close())
	}
	return w, nil
}

// build makes everything that needs no kernel.
func (w *World) build() (err error) {
	c := w.config
	if w.cloud, err = cloud.New(c.Spec, cloud.Options{Now: c.Now, Instant: c.Namespace == ""}); err != nil {
		return err
	}
	w.iam = iam.New(c.Spec.Account, c.Spec.Seed, c.Now)
	for _, r := range c.Roles {
		if err := w.iam.AddRole(r); err != nil {
			return err
		}
	}
	for _, i := range c.Spec.Instances {
		if r, ok := w.iam.Role(i.Role); i.Role != "" && (!ok || !r.Instances) {
			return fmt.Errorf("instance %s: role %q does not exist, or instances may not have it", i.Name, i.Role)
		}
	}
	if w.operator, err = w.iam.AddUser("operator", []byte(everything)); err != nil {
		return err
	}
	w.sts = sts.New(w.iam, c.Now)
	for _, i := range c.Issuers {
		if err := w.sts.Trust(i); err != nil {
			return err
		}
	}
	services := []query.Service{ec2.Service(w.cloud), w.sts.Service()}
	w.faults.Know(actions(services))
	if err := w.faults.Set(c.Faults); err != nil {
		return err
	}
	w.faults.KnowInterfaces(func(eni string) bool { return w.State().Interfaces[vpc.ENIID(eni)] != nil })
	w.cloud.Retain(time.Duration(max(c.Faults.DescribeLag, c.Faults.MetadataLag)))
	w.api = query.New(query.Options{
		Cloud: w.cloud, IAM: w.iam, Faults: w.faults, Calls: &w.calls,
		Region: c.Spec.Region, Seed: c.Spec.Seed, Now: c.Now, Log: c.Log,
	}, services...)
	return nil
}

// actions returns the names of all actions of services.
func actions(services []query.Service) []string {
	var out []string
	for _, s := range services {
		for _, a := range s.Actions {
			out = append(out, a.Name)
		}
	}
	return out
}

// everything is the policy of the account's operator.
const everything = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`

// start creates the fabric and the listeners, and starts the goroutines that follow
// the account.
func (w *World) start(ctx, run context.Context) (err error) {
	if w.local, err = (&net.ListenConfig{}).Listen(ctx, "tcp", w.config.Listen); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/", faults.Handler(w.faults, &w.calls))
	mux.Handle("/", w.api)
	w.serve(run, w.local, mux)
	if w.config.Namespace != "" {
		if w.fabric, err = fabric.Open(w.config.Namespace, fabric.Options{Internet: w.config.Internet, Log: w.log}); err != nil {
			return err
		}
		if err := w.sync(ctx); err != nil && !onlyPorts(err) {
			return err
		}
		if err := w.listen(run); err != nil {
			return err
		}
		w.run.Go(func() error { return w.followAccount(run) })
	}
	w.run.Go(func() error { return w.followPower(run) })
	return nil
}

// serve serves HTTP on l until run ends.
func (w *World) serve(run context.Context, l net.Listener, h http.Handler) {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(w.log.Handler(), slog.LevelDebug),
	}
	w.run.Go(func() error {
		stop := context.AfterFunc(run, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the API on %s: %w", l.Addr(), err)
		}
		return nil
	})
}

// Close stops everything and removes the fabric's namespaces. Further calls return
// the same error.
func (w *World) Close() error {
	w.once.Do(func() {
		w.stop()
		w.faults.Close()
		err := w.run.Wait()
		if w.local != nil {
			_ = w.local.Close() // already closed if it was served
		}
		if w.fabric != nil {
			err = errors.Join(err, w.fabric.Destroy())
		}
		w.down = err
	})
	return w.down
}

// Cloud is the account.
func (w *World) Cloud() *cloud.Cloud { return w.cloud }

// State is the account as it is.
func (w *World) State() *cloud.State { return w.cloud.State() }

// Endpoint is the URL of EC2 and STS on the machine, such as
// "http://127.0.0.1:40001".
func (w *World) Endpoint() string { return "http://" + w.local.Addr().String() }

// AdminEndpoint is the URL of faults, the call log and metrics, such as
// "http://127.0.0.1:40001/admin".
func (w *World) AdminEndpoint() string { return w.Endpoint() + "/admin" }

// InsideEndpoint is the URL of EC2 and STS inside the VPC.
func (w *World) InsideEndpoint() string { return "http://" + APIAddress }

// Operator is the key of a user with full access, for people and tests.
func (w *World) Operator() iam.Credentials { return w.operator }

// Faults is the injector, for tests in the same process.
func (w *World) Faults() *faults.Injector { return w.faults }

// Calls is the call log, for tests in the same process.
func (w *World) Calls() *faults.Log { return &w.calls }

// AddRole adds a role to the running world, or replaces one; see iam.Role.
func (w *World) AddRole(r iam.Role) error { return w.iam.AddRole(r) }

// Trust makes STS accept service account tokens of an issuer; keys are PEM or a JSON
// Web Key Set.
func (w *World) Trust(issuer string, keys []byte) error {
	return w.sts.Trust(sts.Issuer{URL: issuer, Keys: keys})
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if len(c.Outside) == 0 {
		c.Outside = []netip.Addr{netip.MustParseAddr(OutsideAddress)}
	}
	return c
}
