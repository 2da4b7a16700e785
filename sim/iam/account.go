package iam

import (
	"cmp"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Role is an IAM role with its policies and the principals that may assume it.
type Role struct {
	Name string
	// Policies are its policy documents by name.
	Policies map[string][]byte
	// Instances reports whether instances may have the role in their instance
	// profile.
	Instances bool
	// Trust lists the Kubernetes service accounts that may assume the role with
	// a web identity.
	Trust []Trust
	// TrustPolicy is the document that says which other principals may assume the role;
	// empty: none may.
	TrustPolicy []byte
	// MaxSession is the longest session that a principal may request; zero is AWS's
	// default, one hour. Sessions of web identities may take twelve hours.
	MaxSession time.Duration
	// Tags are the role's tags, the condition keys aws:PrincipalTag/… of its sessions.
	Tags map[string]string
}

// Trust is one statement of a role's trust policy for a web identity.
type Trust struct {
	Issuer   string // the token's iss, such as "https://oidc.eks…/id/…"
	Subject  string // "system:serviceaccount:kube-system:trunkline-agent"
	Audience string // empty: "sts.amazonaws.com"
}

// Credentials are an access key, temporary when Token is set.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	Token           string    // session token
	Issued          time.Time // zero for long-lived keys
	Expires         time.Time // zero for long-lived keys
}

// Principal is the identity that signed a request.
type Principal struct {
	ARN     string // arn:aws:sts::…:assumed-role/role/session, or …:user/name
	ID      string // unique id: AROA…:session, or AIDA…
	Account string
	// Instance is the instance that the credentials were issued to; zero for others.
	Instance Instance
	// Service is the AWS service that has the key, such as eks.amazonaws.com; empty for the account's
	// own users and roles. AWS reserves some calls for its services.
	Service string
	// Tags are those of its role, replaced and joined by those of its session.
	Tags     map[string]string
	role     string
	roleARN  string // of a session; empty for a user
	session  SessionTags
	policies []*Policy
}

// SessionTags are what AssumeRole attaches to a session, beside its name.
type SessionTags struct {
	Tags map[string]string
	// Transitive are the keys of those that the sessions of roles assumed with this one
	// have as well.
	Transitive     []string
	SourceIdentity string // kept by the sessions of roles assumed with this one
}

// Instance is the instance to which its metadata service issues credentials.
type Instance struct {
	ARN string // the condition key ec2:SourceInstanceARN
	VPC string // its id, the condition key aws:Ec2InstanceSourceVpc
}

// Keys are the condition keys of p, in every request that it signs. Those of an instance
// are absent from other credentials. The ARN of a session is that of its role. Source: IAM user guide, "AWS global condition context
// keys"; aws:userid of an instance's role is "AROA…:i-…".
func (p Principal) Keys() map[string][]string {
	k := map[string][]string{
		"aws:principalarn": {cmp.Or(p.roleARN, p.ARN)}, "aws:principalaccount": {p.Account}, "aws:userid": {p.ID},
	}
	if p.Instance != (Instance{}) {
		k["ec2:sourceinstancearn"] = []string{p.Instance.ARN}
		k["aws:ec2instancesourcevpc"] = []string{p.Instance.VPC}
	}
	for name, v := range p.Tags {
		k["aws:principaltag/"+name] = []string{v}
	}
	if p.session.SourceIdentity != "" {
		k["aws:sourceidentity"] = []string{p.session.SourceIdentity}
	}
	return k
}

// Session returns what was attached to the session of p; it is empty for a user.
func (p Principal) Session() SessionTags { return p.session }

// Assumed reports whether p is a session of a role. A role that such a session assumes is
// chained.
func (p Principal) Assumed() bool { return p.role != "" }

// Account holds roles, users and unexpired credentials.
type Account struct {
	partition string // of its ARNs
	number    string
	now       func() time.Time
	sealing   [32]byte // key of encoded authorization messages

	mu    sync.Mutex // guards what follows
	rng   *rand.Rand
	roles map[string]*role
	keys  map[string]key // by access key id
}

type role struct {
	Role
	id       string // AROA…
	policies []*Policy
	trust    *trustPolicy // nil: no principal may assume the role
}

type key struct {
	Credentials
	principal Principal
}

// New makes an account of the partition aws with no roles. now may be nil.
func New(number string, seed uint64, now func() time.Time) *Account {
	return NewIn("aws", number, seed, now)
}

// NewIn makes an account of a partition, such as aws-cn, with no roles. now may be nil.
func NewIn(partition, number string, seed uint64, now func() time.Time) *Account {
	if now == nil {
		now = time.Now
	}
	return &Account{
		partition: partition, number: number, now: now, sealing: newSealing(number, seed), rng: rand.New(rand.NewPCG(seed, 0x69616d)),
		roles: map[string]*role{}, keys: map[string]key{},
	}
}

// AddRole adds a role, or replaces the one with its name. The new policies apply at
// once to credentials issued before, as on AWS.
func (a *Account) AddRole(r Role) error {
	if r.Name == "" {
		return errors.New("role: no name")
	}
	made := &role{Role: r}
	for _, name := range sortedKeys(r.Policies) {
		p, err := ParsePolicy(name, r.Policies[name])
		if err != nil {
			return fmt.Errorf("role %s: %w", r.Name, err)
		}
		made.policies = append(made.policies, p)
	}
	if len(r.TrustPolicy) > 0 {
		p, err := parseTrust(r.TrustPolicy)
		if err != nil {
			return fmt.Errorf("role %s: trust policy: %w", r.Name, err)
		}
		made.trust = p
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	made.id = a.uniqueID("AROA")
	if old := a.roles[r.Name]; old != nil {
		made.id = old.id
	}
	a.roles[r.Name] = made
	return nil
}

// AddUser makes a user with one long-lived key and one policy document.
func (a *Account) AddUser(name string, document []byte) (Credentials, error) {
	p, err := ParsePolicy(name, document)
	if err != nil {
		return Credentials{}, fmt.Errorf("user %s: %w", name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := Credentials{AccessKeyID: a.uniqueID("AKIA"), SecretAccessKey: a.secret(30)}
	a.keys[c.AccessKeyID] = key{c, Principal{
		ARN: a.arn("iam", "user/"+name), ID: a.uniqueID("AIDA"),
		Account: a.number, policies: []*Policy{p},
	}}
	return c, nil
}

// AddService makes the key of an AWS service that works in the account, by a session of its
// service-linked role.
func (a *Account) AddService(service, role, session string) (Credentials, error) {
	p, err := ParsePolicy(role, []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`))
	if err != nil {
		return Credentials{}, fmt.Errorf("service %s: %w", service, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := Credentials{AccessKeyID: a.uniqueID("AKIA"), SecretAccessKey: a.secret(30)}
	a.keys[c.AccessKeyID] = key{c, Principal{
		ARN: a.arn("sts", "assumed-role/"+role+"/"+session), ID: a.uniqueID("AROA") + ":" + session,
		Account: a.number, Service: service, policies: []*Policy{p},
	}}
	return c, nil
}

// Role returns a role by name.
func (a *Account) Role(name string) (Role, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.roles[name]
	if r == nil {
		return Role{}, false
	}
	return r.Role, true
}

// RoleARN is the ARN of a role of this account.
func (a *Account) RoleARN(name string) string {
	return a.arn("iam", "role/"+name)
}

// arn returns the ARN of a resource that belongs to no region.
func (a *Account) arn(service, resource string) string {
	return "arn:" + a.partition + ":" + service + "::" + a.number + ":" + resource
}

// Session is a request for temporary credentials.
type Session struct {
	Role     string
	Name     string // the instance id, or the caller's RoleSessionName
	Lifetime time.Duration
	Instance Instance // see Principal.Instance
	Tags     SessionTags
}

// Issue makes temporary credentials of a role. It forgets expired ones.
func (a *Account) Issue(s Session) (Credentials, Principal, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.roles[s.Role]
	if r == nil {
		return Credentials{}, Principal{}, fmt.Errorf("issue credentials: role %q does not exist", s.Role)
	}
	now := a.now()
	for id, k := range a.keys {
		if !k.Expires.IsZero() && k.Expires.Before(now.Add(-time.Hour)) {
			delete(a.keys, id)
		}
	}
	c := Credentials{
		AccessKeyID: a.uniqueID("ASIA"), SecretAccessKey: a.secret(30), Token: a.secret(240),
		Issued: now.Truncate(time.Second), Expires: now.Add(s.Lifetime).Truncate(time.Second),
	}
	p := Principal{
		ARN: a.arn("sts", "assumed-role/"+s.Role+"/"+s.Name),
		ID:  r.id + ":" + s.Name, Account: a.number, Instance: s.Instance, role: s.Role, roleARN: a.RoleARN(s.Role), session: s.Tags,
	}
	a.keys[c.AccessKeyID] = key{c, p}
	return c, p, nil
}

// Find returns the key and the principal of an access key id, expired or not, with
// the current policies of its role.
func (a *Account) Find(accessKeyID string) (Credentials, Principal, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k, ok := a.keys[accessKeyID]
	if r := a.roles[k.principal.role]; ok && r != nil {
		k.principal.policies, k.principal.Tags = r.policies, joinTags(r.Tags, k.principal.session.Tags)
	}
	return k.Credentials, k.principal, ok
}

// DeniedError names the refused request of a call.
type DeniedError struct {
	Principal   string // ARN
	PrincipalID string
	Request     Request
	Explicit    bool
}

// Error is AWS's text. It names no resource for actions that take none. Source: IAM user
// guide, "Troubleshoot access denied error messages".
func (e *DeniedError) Error() string {
	on := " on resource: " + e.Request.Resource
	if e.Request.Resource == "*" {
		on = ""
	}
	why := "because no identity-based policy allows the " + e.Request.Action + " action"
	if e.Explicit {
		why = "with an explicit deny in an identity-based policy"
	}
	return fmt.Sprintf("User: %s is not authorized to perform: %s%s %s", e.Principal, e.Request.Action, on, why)
}

// Authorize returns nil if p is allowed all of the requests, else a *DeniedError for
// the first that is refused.
func (p Principal) Authorize(requests []Request) error {
	for _, r := range requests {
		if verdict := p.decide(r); verdict != Allow {
			return &DeniedError{Principal: p.ARN, PrincipalID: p.ID, Request: r, Explicit: verdict == Deny}
		}
	}
	return nil
}

// decide returns the decision of p's own policies.
func (p Principal) decide(r Request) Verdict {
	verdict := NoMatch
	for _, policy := range p.policies {
		verdict = max(verdict, policy.Decide(r))
	}
	return verdict
}

// uniqueID makes an id in AWS's form: a prefix of four and sixteen of A–Z, 2–7. The
// caller holds mu.
func (a *Account) uniqueID(prefix string) string {
	return prefix + base32.StdEncoding.EncodeToString(a.random(10))
}

func (a *Account) secret(size int) string {
	return base64.StdEncoding.EncodeToString(a.random(size))
}

func (a *Account) random(size int) []byte {
	b := make([]byte, size)
	for n := range b {
		b[n] = byte(a.rng.Uint32())
	}
	return b
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
