package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/ca"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/dns"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/imds"
	"github.com/trunkline/trunkline/sim/query"
	"github.com/trunkline/trunkline/sim/sts"
)

// World is a running embedded VPC. Make it with Start; its methods are safe for
// concurrent use.
type World struct {
	config   Config
	cloud    *cloud.Cloud
	iam      *iam.Account
	sts      *sts.STS
	faults   *faults.Injector
	calls    faults.Log
	api      http.Handler
	operator iam.Credentials
	eks      iam.Credentials
	// authority signs the certificate of EC2 and STS.
	authority *ca.Authority

	wiring  *wiring // nil without a fabric
	power   *power
	servers *servers
	local   net.Listener
	closing func() error // closes, once
}

// Start makes the account and everything around it, and returns when the API answers
// and every guest with an existing namespace has its links. Call Close to end it.
func Start(ctx context.Context, c Config) (*World, error) {
	c = c.withDefaults()
	w := &World{config: c, faults: faults.New(c.Spec.Seed, c.Now)}
	if err := w.build(); err != nil {
		return nil, fmt.Errorf("start world: %w", err)
	}
	w.power = newPower(w.cloud, c, w.Plug)
	w.closing = sync.OnceValue(w.shutDown)
	var run context.Context
	w.servers, run = newServers(ctx, c.Log)
	if err := w.start(ctx, run); err != nil {
		return nil, errors.Join(fmt.Errorf("start world: %w", err), w.Close())
	}
	return w, nil
}

// build makes everything that needs no kernel.
func (w *World) build() (err error) {
	c := w.config
	if w.cloud, err = cloud.New(c.Spec, cloud.Options{Now: c.Now, Instant: c.Namespace == "", DetachTime: c.DetachTime}); err != nil {
		return err
	}
	w.iam = iam.NewIn(cloud.PartitionOf(c.Spec.Region).Name, c.Spec.Account, c.Spec.Seed, c.Now)
	for _, r := range c.Roles {
		if err := w.iam.AddRole(r); err != nil {
			return err
		}
	}
	for _, i := range c.Spec.Instances {
		if err := w.checkRole(i); err != nil {
			return fmt.Errorf("instance %s: %w", i.Name, err)
		}
	}
	for id := range w.State().Instances {
		if err := w.bindPrimary(id); err != nil {
			return err
		}
	}
	if w.operator, err = w.iam.AddUser("operator", []byte(everything)); err != nil {
		return err
	}
	if w.eks, err = w.iam.AddService("eks.amazonaws.com", "AWSServiceRoleForAmazonEKS", "AmazonEKS"); err != nil {
		return err
	}
	part := cloud.PartitionOf(c.Spec.Region)
	if w.authority, err = ca.New("Embedded EC2 and STS of "+c.Spec.VPC.Name, part.Domains(), c.Now()); err != nil {
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
		Region: c.Spec.Region, SigningRegions: map[string]string{part.GlobalSTS(): part.SignsFor},
		Latency: c.Latency, Seed: c.Spec.Seed, Now: c.Now, Log: c.Log,
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
	w.servers.serve(run, w.local, mux)
	if w.config.Namespace != "" {
		if w.wiring, err = newWiring(w.cloud, w.faults, w.config); err != nil {
			return err
		}
		if err := w.wiring.sync(ctx); err != nil && !onlyPorts(err) {
			return err
		}
		if err := w.serveInside(run); err != nil {
			return err
		}
		w.servers.group.Go(func() error { return w.wiring.follow(run) })
	}
	w.servers.group.Go(func() error { return w.power.follow(run) })
	return nil
}

// serveInside starts the platform's servers inside the fabric's namespace.
func (w *World) serveInside(run context.Context) error {
	c, inside := w.config, platform{w.config.Namespace, w.servers}
	known := dns.Chain{names{w.cloud, c.Spec.Region}}
	if !c.NoPlatform {
		known = append(dns.Chain{serviceNames(c.Spec.Region)}, known...)
		cert, err := w.authority.Server(cloud.PartitionOf(c.Spec.Region).Endpoints(c.Spec.Region)...)
		if err != nil {
			return err
		}
		if err := inside.serveAPI(run, w.api, cert); err != nil {
			return err
		}
		source := metadata{w.cloud, w.faults, newProfiles(w.cloud, w.iam, c)}
		if err := inside.serveMetadata(run, imds.New(source, imds.Config{Log: c.Log, Now: c.Now, Fault: w.faults.Metadata})); err != nil {
			return err
		}
	}
	resolver := dns.New(known, c.Log)
	for _, at := range resolvers(w.State(), c) {
		if err := inside.serveNames(run, at, resolver); err != nil {
			return err
		}
	}
	return nil
}

// Close stops everything and removes the fabric's namespaces. Further calls return
// the same error.
func (w *World) Close() error { return w.closing() }

func (w *World) shutDown() error {
	w.servers.stop()
	w.faults.Close()
	err := w.servers.group.Wait()
	if w.local != nil {
		_ = w.local.Close() // already closed if it was served
	}
	if w.wiring != nil {
		err = errors.Join(err, w.wiring.fabric.Destroy())
	}
	return err
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

// Authority is the CA of EC2 and STS inside the VPC, which answer by HTTPS under AWS's
// own host names.
func (w *World) Authority() *ca.Authority { return w.authority }

// InsideEndpoint is the URL of EC2 and STS inside the VPC, without TLS.
func (w *World) InsideEndpoint() string { return "http://" + APIAddress }

// Operator is the key of a user with full access, for people and tests.
func (w *World) Operator() iam.Credentials { return w.operator }

// EKS is the key of Amazon EKS in the account, to which EC2 allows the calls that it reserves for AWS's
// services.
func (w *World) EKS() iam.Credentials { return w.eks }

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

// Launch runs an instance, as RunInstances would. Its links are added when its
// namespace exists; see Plug.
func (w *World) Launch(spec cloud.InstanceSpec) error {
	if err := w.checkRole(spec); err != nil {
		return fmt.Errorf("launch %s: %w", spec.Name, err)
	}
	made, err := w.cloud.Launch(spec)
	if err != nil {
		return err
	}
	return w.bindPrimary(made.ID)
}

// bindPrimary does what Config.BindPrimaries says.
func (w *World) bindPrimary(id vpc.InstanceID) error {
	if !w.config.BindPrimaries {
		return nil
	}
	primary := w.State().Primary(id)
	return w.cloud.Tag([]string{string(primary.ID)}, cloud.Tags{vpc.TagInstanceID: string(id)})
}

// checkRole refuses an instance with a role that does not exist or that instances may
// not have.
func (w *World) checkRole(i cloud.InstanceSpec) error {
	if r, ok := w.iam.Role(i.Role); i.Role != "" && (!ok || !r.Instances) {
		return fmt.Errorf("role %q does not exist, or instances may not have it", i.Role)
	}
	return nil
}

// Plug moves the links of an instance, or of the named Host, into its namespace now,
// which may be a new one. Its error concerns that machine alone.
func (w *World) Plug(ctx context.Context, id vpc.InstanceID) error {
	if w.wiring == nil {
		return nil
	}
	return w.wiring.plug(ctx, id)
}

// Reboot does what RebootInstances does and returns when the machine is on again with
// its links. An error of the machine is returned at once, but the reboot is retried.
func (w *World) Reboot(ctx context.Context, id vpc.InstanceID) error { return w.power.reboot(ctx, id) }

// Terminate does what TerminateInstances does and returns when the machine is off
// permanently. An error of the machine is returned at once, but the termination is
// retried.
func (w *World) Terminate(ctx context.Context, id vpc.InstanceID) error {
	return w.power.terminate(ctx, id)
}
