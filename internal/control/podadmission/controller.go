// Package podadmission keeps the API server's admission of pods as core/podadmission compiles it
// from the SecurityGroupPolicies, and answers the webhook's requests.
//
// Every replica answers, from the policies and service accounts that edge/kube reflects, with the
// certificate of a Secret. The leader alone renews the certificates before they end and writes the
// compiled objects; it compares all of them in every full pass. No pod is admitted before policies
// and accounts have been read.
//
// It reads no table and writes none. It drives edge/kube (reflected objects, compiled objects, the
// Secret) and edge/webhook (certificates). app/admission constructs it.
package podadmission

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/webhook"
	"github.com/trunkline/trunkline/internal/machinery/loop"
)

// Inputs are what is decided on; *kube.AdmissionInputs is one.
type Inputs interface {
	Missing() string
	Policies() []securitygroup.Policy
	Accounts() []securitygroup.Account
	Account(ctx context.Context, ref securitygroup.Ref) (*securitygroup.Account, error)
}

// Objects writes what was compiled; *kube.AdmissionObjects is one.
type Objects interface {
	Mutates(ctx context.Context) (bool, error)
	Write(ctx context.Context, in podadmission.Objects, mutates bool) (int, error)
}

// Secrets reads and writes the Secret of the certificates.
type Secrets interface {
	Read(ctx context.Context) (kube.Secret, error)
	// Write replaces the data if the Secret still has the version that was read.
	Write(ctx context.Context, data map[string][]byte, has kube.Secret) (version string, err error)
}

// Options of New.
type Options struct {
	Inputs  Inputs
	Objects Objects
	Secrets Secrets
	// Use has the server serve a certificate; *webhook.Server has it.
	Use func(tls.Certificate)
	// Config without Mutates and the CA bundle, which the controller finds.
	Config   podadmission.Config
	Registry prometheus.Registerer
	Log      *slog.Logger
	Now      func() time.Time
}

// Controller answers reviews and, on the leader, writes. Its methods may be called from any
// goroutine.
type Controller struct {
	o       Options
	metrics metrics
	// Lead is the leader's loop, Follow that of every replica. The leader's runs while it leads.
	Lead, Follow *loop.Loop

	mu      sync.Mutex
	set     *securitygroup.Set // nil: policies have changed since
	secret  string             // version of the Secret in use
	ends    time.Time          // of the certificate in use
	written [sha256.Size]byte  // what was compiled at the last complete pass

	// Of the leader's loop: whether the API server mutates by itself, and the CA of the last renewal.
	probed, mutates bool
	bundle          []byte
}

// Intervals of the loops.
const (
	fullPass    = time.Minute
	secretEvery = 10 * time.Second
	minInterval = 50 * time.Millisecond
	lastBackoff = 10 * time.Second
)

// New makes a controller. Changed must be called after changes of the inputs.
func New(o Options) (*Controller, error) {
	c := &Controller{o: o}
	c.Lead = loop.New(func(ctx context.Context, full bool) (time.Time, error) { return time.Time{}, c.pass(ctx, full) })
	c.Lead.Every, c.Lead.MinInterval = fullPass, minInterval
	c.Follow = loop.New(func(ctx context.Context, _ bool) (time.Time, error) { return c.follow(ctx) })
	c.Follow.Every = secretEvery
	for _, l := range []*loop.Loop{c.Lead, c.Follow} {
		l.MaxBackoff = lastBackoff
		l.Report = func(err error, pause time.Duration) {
			o.Log.Warn("admission pass failed, retrying", "in", pause, "err", err)
		}
	}
	return c, c.metrics.register(o.Registry, c)
}

// Changed records that policies or accounts have changed.
func (c *Controller) Changed() {
	c.mu.Lock()
	c.set = nil
	c.mu.Unlock()
	c.Lead.Mark()
}

// Host is the name by which the API server calls the webhook.
func (c *Controller) Host() string {
	return c.o.Config.Webhook.Service + "." + c.o.Config.Webhook.Namespace + ".svc"
}

// NotReady is why the replica cannot answer, "" if it can.
func (c *Controller) NotReady() string {
	if missing := c.o.Inputs.Missing(); missing != "" {
		return missing + " not read from the API server yet"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.o.Now(); !now.Before(c.ends) {
		return "no valid certificate yet"
	}
	return ""
}

// Decide answers one request of the webhook.
func (c *Controller) Decide(ctx context.Context, namespace string, pod *corev1.Pod) podadmission.Answer {
	began := c.o.Now()
	a := c.decide(ctx, namespace, pod)
	c.metrics.reviews.WithLabelValues(string(a.Outcome)).Observe(c.o.Now().Sub(began).Seconds())
	return a
}

// DecideAccount answers that a service account may come to be selected. The replica reflects it, and the
// leader compiles the policies again.
func (c *Controller) DecideAccount(context.Context, string, string) podadmission.Answer {
	if why := c.NotReady(); why != "" {
		return podadmission.Answer{Outcome: podadmission.NotReady, Why: why + ": try again"}
	}
	return podadmission.Answer{Outcome: podadmission.NotSelected, Why: "policies are compiled again with the labels of the account"}
}

func (c *Controller) decide(ctx context.Context, namespace string, pod *corev1.Pod) podadmission.Answer {
	if missing := c.o.Inputs.Missing(); missing != "" {
		return podadmission.Unread(missing)
	}
	account, err := c.o.Inputs.Account(ctx, securitygroup.Ref{Namespace: namespace, Name: pod.Spec.ServiceAccountName})
	if err != nil {
		c.o.Log.Warn("service account not read, pod refused", "namespace", namespace, "err", err)
		return podadmission.Unread("service account " + pod.Spec.ServiceAccountName)
	}
	return podadmission.Review(c.compiled(), namespace, pod, account)
}

// compiled are the policies as they are now.
func (c *Controller) compiled() *securitygroup.Set {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil {
		c.set = securitygroup.Compile(c.o.Inputs.Policies())
	}
	return c.set
}

// pass is one of the leader's. Certificates that cannot be renewed, or read again, keep no policy from
// being compiled: the webhook alone needs them.
func (c *Controller) pass(ctx context.Context, full bool) error {
	bundle, err := c.renew(ctx)
	if err == nil {
		c.bundle = bundle
	}
	if c.bundle == nil {
		return err
	}
	if c.o.Inputs.Missing() != "" {
		return err // their arrival marks the loop
	}
	return errors.Join(err, c.compile(ctx, full))
}

// compile writes what the policies compile to.
func (c *Controller) compile(ctx context.Context, full bool) (err error) {
	if full || !c.probed {
		if c.mutates, err = c.o.Objects.Mutates(ctx); err != nil {
			return err
		}
		c.probed = true
	}
	cfg := c.o.Config
	cfg.Mutates, cfg.Webhook.CABundle = c.mutates, c.bundle
	objects := podadmission.Compile(c.input(), cfg)
	text, err := json.Marshal(objects)
	if err != nil {
		return fmt.Errorf("encode compiled objects: %w", err)
	}
	sum := sha256.Sum256(text)
	if !full && sum == c.written {
		return nil
	}
	changed, err := c.o.Objects.Write(ctx, objects, c.mutates)
	if changed > 0 {
		c.o.Log.Info("admission objects written", "changed", changed, "namespaces", len(objects.Validating)-1, "webhooks", len(objects.Webhooks), "mutates", c.mutates)
		for _, why := range objects.Why {
			c.o.Log.Warn("not compiled: " + why)
		}
	}
	c.metrics.wrote(objects, changed)
	if err != nil {
		return err
	}
	c.written = sum
	return nil
}

// input are the policies, and the accounts of their namespaces.
func (c *Controller) input() podadmission.Input {
	in := podadmission.Input{Policies: c.o.Inputs.Policies()}
	with := map[string]bool{}
	for _, p := range in.Policies {
		with[p.Namespace] = with[p.Namespace] || p.ServiceAccountSelector != nil
	}
	for _, a := range c.o.Inputs.Accounts() {
		if with[a.Namespace] {
			in.Accounts = append(in.Accounts, a)
		}
	}
	return in
}

// renew renews the certificates if they are due, serves them, and returns the bundle. A Secret that
// another leader has written in between is an error, and read again in the next pass.
func (c *Controller) renew(ctx context.Context) ([]byte, error) {
	secret, err := c.o.Secrets.Read(ctx)
	if err != nil {
		return nil, err
	}
	certificates, err := webhook.Parse(secret.Data)
	if err != nil && len(secret.Data) > 0 {
		c.o.Log.Error("certificates of the webhook are made again", "err", err)
	}
	certificates, why, err := certificates.Renew(c.Host(), c.o.Now())
	if err != nil {
		return nil, err
	}
	if why != "" {
		data, err := certificates.Data()
		if err != nil {
			return nil, err
		}
		if secret.Version, err = c.o.Secrets.Write(ctx, data, secret); err != nil {
			return nil, err
		}
		c.o.Log.Info("certificates of the webhook renewed", "why", why, "ends", certificates.Ends())
	}
	c.use(secret.Version, certificates)
	return certificates.Bundle(), nil
}

// follow serves the certificate of the Secret. The leader makes it in a Secret that is empty.
func (c *Controller) follow(ctx context.Context) (next time.Time, err error) {
	secret, err := c.o.Secrets.Read(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if len(secret.Data) == 0 {
		return time.Now().Add(time.Second), nil
	}
	certificates, err := webhook.Parse(secret.Data)
	if err != nil {
		return time.Time{}, err
	}
	c.use(secret.Version, certificates)
	return time.Time{}, nil
}

func (c *Controller) use(version string, certificates webhook.Certificates) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.secret == version {
		return
	}
	c.o.Use(certificates.Serving())
	c.secret, c.ends = version, certificates.Ends()
}
