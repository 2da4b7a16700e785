package podadmission

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/trunkline/trunkline/internal/core/podadmission"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/webhook"
)

const (
	system = "trunkline-system"
	host   = "trunkline-admission." + system + ".svc"
)

// shop has a policy of each kind; "pay" are the accounts that exist, and accounts those that the
// webhook knows.
type shop struct {
	input    podadmission.Input
	accounts map[string]map[string]string
	config   podadmission.Config
	server   *webhook.Server
	certs    webhook.Certificates
	at       string
}

func newShop(t *testing.T, serve bool) *shop {
	t.Helper()
	s := &shop{accounts: map[string]map[string]string{"default": nil, "old-pay": {"team": "pay"}, "new-pay": {"team": "pay"}, "new-web": {"team": "web"}}}
	for _, name := range []string{"default", "old-pay"} {
		s.input.Accounts = append(s.input.Accounts, securitygroup.Account{Ref: securitygroup.Ref{Namespace: "shop", Name: name}, Labels: s.accounts[name]})
	}
	s.input.Policies = []securitygroup.Policy{
		{Ref: securitygroup.Ref{Namespace: "shop", Name: "db"}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "db"}}, Groups: []string{"sg-1"}},
		{Ref: securitygroup.Ref{Namespace: "shop", Name: "pay"}, ServiceAccountSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "pay"}}, Groups: []string{"sg-2"}},
		{Ref: securitygroup.Ref{Namespace: "kube-system", Name: "all"}, ServiceAccountSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "pay"}}, PodSelector: &metav1.LabelSelector{}, Groups: []string{"sg-2"}},
		{Ref: securitygroup.Ref{Namespace: system, Name: "all"}, PodSelector: &metav1.LabelSelector{}, Groups: []string{"sg-2"}},
	}
	var err error
	if s.certs, _, err = s.certs.Renew(host, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.config = podadmission.Config{
		Excluded: []string{"kube-system", system}, Mutates: true, Writers: []string{"controller"},
		Webhook: podadmission.Webhook{Namespace: system, Service: "trunkline-admission", CABundle: s.certs.Bundle()},
	}
	s.server = webhook.NewServer(s.decide, func(context.Context, string, string) podadmission.Answer {
		return podadmission.Answer{Outcome: podadmission.NotSelected}
	}, slog.New(slog.DiscardHandler))
	s.server.Use(s.certs.Serving())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.at = l.Addr().String()
	if !serve {
		l.Close() // every replica is dead: the connection is refused
		return s
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *shop) decide(_ context.Context, namespace string, p *corev1.Pod) podadmission.Answer {
	var account *securitygroup.Account
	if labels, ok := s.accounts[p.Spec.ServiceAccountName]; ok {
		account = &securitygroup.Account{Ref: securitygroup.Ref{Namespace: namespace, Name: p.Spec.ServiceAccountName}, Labels: labels}
	}
	return podadmission.Review(securitygroup.Compile(s.input.Policies), namespace, p, account)
}

func (s *shop) start(t *testing.T) *chain {
	t.Helper()
	return start(t, podadmission.Compile(s.input, s.config), []string{"shop", "kube-system", system, "bank"}, s.at)
}

// What becomes of a pod.
const (
	protected = "requests a branch"
	plain     = "is admitted as it is"
	refused   = "is refused"
)

func (c *chain) outcome(t *testing.T, namespace, account, role string) (string, error) {
	t.Helper()
	p := pod(namespace, "p", map[string]string{"role": role})
	p.Spec.ServiceAccountName = account
	got, err := c.create(t.Context(), p)
	switch {
	case err != nil:
		return refused, err
	case requests(got):
		return protected, nil
	}
	return plain, nil
}

type creation struct{ namespace, account, role, want string }

func (c *chain) expect(t *testing.T, list []creation) {
	t.Helper()
	for _, tt := range list {
		if got, err := c.outcome(t, tt.namespace, tt.account, tt.role); got != tt.want {
			t.Errorf("a pod of %s, account %s, role %s, %s; it should be that it %s: %v", tt.namespace, tt.account, tt.role, got, tt.want, err)
		}
	}
}

func TestTheWebhookDecidesOnAccountsThatWereCreatedSince(t *testing.T) {
	newShop(t, true).start(t).expect(t, []creation{
		{"shop", "default", "web", plain},
		{"shop", "default", "db", protected},
		{"shop", "old-pay", "web", protected},
		{"shop", "new-pay", "web", protected},
		{"shop", "new-web", "web", plain},
		{"shop", "missing", "web", refused},
	})
}

// With every replica dead, pods that no policy selects start, in namespaces with policies too, and
// the cluster and Trunkline start from nothing. Only a pod of an account that no replica has seen is
// refused: whether a policy selects it is not known.
func TestWithEveryReplicaDeadOnlyAPodOfAnUnknownAccountIsRefused(t *testing.T) {
	c := newShop(t, false).start(t)
	c.expect(t, []creation{
		{"shop", "default", "web", plain},
		{"shop", "default", "db", protected},
		{"shop", "old-pay", "web", protected},
		{"shop", "new-pay", "web", refused},
		{"shop", "new-web", "web", refused},
		{"shop", "new-web", "db", protected},
		{"bank", "new-pay", "db", plain},
		{"kube-system", "coredns", "db", plain},
		{"kube-system", "trunkline-agent", "web", plain},
		{system, "trunkline-admission", "db", plain},
	})
	host := pod("shop", "p", nil)
	host.Spec.ServiceAccountName, host.Spec.HostNetwork = "new-pay", true
	if got, err := c.create(t.Context(), host); err != nil || requests(got) {
		t.Errorf("a pod on its node's network: requests a branch: %v, %v", requests(got), err)
	}
}

// An API server that does not serve MutatingAdmissionPolicy has the webhook do it, and fails closed
// without one.
func TestWithoutMutatingPoliciesTheWebhookMutates(t *testing.T) {
	for _, alive := range []bool{true, false} {
		s := newShop(t, alive)
		s.config.Mutates = false
		want := protected
		if !alive {
			want = refused
		}
		s.start(t).expect(t, []creation{{"shop", "default", "web", plain}, {"shop", "default", "db", want}, {"shop", "old-pay", "web", want}, {"kube-system", "coredns", "db", plain}})
	}
}

func TestAnExpiredCertificateIsReplacedWithoutARestart(t *testing.T) {
	s := newShop(t, true)
	ended, _, err := webhook.Certificates{}.Renew(host, time.Now().AddDate(0, 0, -100))
	if err != nil || ended.Ends().After(time.Now()) {
		t.Fatalf("the certificate ends %s, %v", ended.Ends(), err)
	}
	s.config.Webhook.CABundle = ended.Bundle()
	s.server.Use(ended.Serving())
	c := s.start(t)
	c.expect(t, []creation{{"shop", "new-pay", "web", refused}, {"shop", "default", "web", plain}, {"shop", "default", "db", protected}})
	renewed, _, err := ended.Renew(host, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.server.Use(renewed.Serving())
	c.expect(t, []creation{{"shop", "new-pay", "web", protected}, {"shop", "default", "web", plain}})
}

// other is an admission plugin of another program.
type other struct {
	admission.Interface
	change func(*corev1.Pod)
}

func (o other) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if p, ok := a.GetObject().(*corev1.Pod); ok {
		o.change(p)
	}
	return nil
}

// insert runs another plugin at a place of the chain.
func (c *chain) insert(at int, change func(*corev1.Pod)) {
	o := other{admission.NewHandler(admission.Create), change}
	c.mutating = append(c.mutating[:at:at], append([]admission.MutationInterface{o}, c.mutating[at:]...)...)
}

func TestASidecarThatAnotherWebhookPrependsIsTolerated(t *testing.T) {
	for at := range 3 {
		c := newShop(t, true).start(t)
		c.insert(at, func(p *corev1.Pod) {
			if p.Spec.Containers[0].Name != "sidecar" {
				p.Spec.Containers = append([]corev1.Container{{Name: "sidecar"}}, p.Spec.Containers...)
			}
		})
		for _, account := range []string{"old-pay", "new-pay"} {
			p := pod("shop", "p", nil)
			p.Spec.ServiceAccountName = account
			got, err := c.create(t.Context(), p)
			if err != nil || !requests(got) || len(got.Spec.Containers) != 2 {
				t.Errorf("at %d, account %s: %v, %v", at, account, got.Spec.Containers, err)
				continue
			}
			count := int64(0)
			for _, container := range got.Spec.Containers {
				q := container.Resources.Limits[vpc.ResourcePodENI]
				count += q.Value()
			}
			if count != 1 {
				t.Errorf("at %d, account %s: %d branches", at, account, count)
			}
		}
	}
}

func TestAPodThatLosesItsRequestIsRefused(t *testing.T) {
	c := newShop(t, true).start(t)
	c.insert(2, func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
	})
	if got, err := c.outcome(t, "shop", "default", "db"); got != refused || !strings.Contains(err.Error(), "selected by SecurityGroupPolicy db, and none of its containers requests") {
		t.Errorf("%s: %v", got, err)
	}
	if got, err := c.outcome(t, "shop", "default", "web"); got != plain {
		t.Errorf("a pod that is not selected %s: %v", got, err)
	}
}

// The compiled policies name the accounts that are selected. While no replica runs that would compile
// them again, no account of a known name can come to be one of them; any other change is admitted.
func TestWithEveryReplicaDeadNoKnownAccountComesToBeSelected(t *testing.T) {
	for _, alive := range []bool{false, true} {
		c := newShop(t, alive).start(t)
		for _, tt := range []struct {
			namespace, name string
			before, after   map[string]string
			selects         bool
		}{
			{"shop", "default", nil, map[string]string{"team": "pay"}, true},
			{"shop", "default", map[string]string{"team": "web"}, map[string]string{"team": "pay", "a": "b"}, true},
			{"shop", "default", nil, map[string]string{"team": "web"}, false},
			{"shop", "old-pay", map[string]string{"team": "pay"}, map[string]string{"team": "pay", "a": "b"}, false},
			{"shop", "old-pay", map[string]string{"team": "pay"}, nil, false},
			{"shop", "new", nil, map[string]string{"team": "pay"}, false}, // its pods are asked about
			{"bank", "default", nil, map[string]string{"team": "pay"}, false},
			{"kube-system", "default", nil, map[string]string{"team": "pay"}, false},
		} {
			for _, operation := range []admission.Operation{admission.Create, admission.Update} {
				r := request{
					object: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tt.namespace, Name: tt.name, Labels: tt.after}}, kind: "ServiceAccount",
					resource: "serviceaccounts", namespace: tt.namespace, user: "alice", operation: operation,
				}
				if operation == admission.Update {
					r.before = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tt.namespace, Name: tt.name, Labels: tt.before}}
				}
				if err := c.admit(t.Context(), r); (err != nil) != (tt.selects && !alive) {
					t.Errorf("replicas alive: %v: %s of %s/%s, labels %v to %v: %v", alive, operation, tt.namespace, tt.name, tt.before, tt.after, err)
				}
			}
		}
	}
}
