// Package sts is the part of AWS's Security Token Service that nodes, pods and AWS's
// controllers need: AssumeRole, AssumeRoleWithWebIdentity for service accounts,
// GetCallerIdentity, and DecodeAuthorizationMessage for the refusals of EC2. It decides
// which service account may assume a role; sim/iam decides it for other principals and
// issues the credentials, and sim/world serves it next to EC2, over the same protocol.
//
// Source: STS API reference, version 2011-06-15.
package sts

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// Version is the API version that clients send.
const Version = "2011-06-15"

// Audience is the audience of tokens for AWS.
const Audience = "sts.amazonaws.com"

// Issuer is an OpenID Connect provider that the account trusts: a cluster's API
// server, which signs service account tokens.
type Issuer struct {
	URL string // the token's iss
	// Keys are the public keys the issuer signs with: PEM (PUBLIC KEY blocks) or
	// a JSON Web Key Set.
	Keys []byte
}

// STS serves one account. Make it with New.
type STS struct {
	iam *iam.Account
	now func() time.Time

	mu      sync.Mutex // guards issuers
	issuers map[string]keySet
}

// New makes a service that trusts no issuer yet. now may be nil.
func New(account *iam.Account, now func() time.Time) *STS {
	if now == nil {
		now = time.Now
	}
	return &STS{iam: account, now: now, issuers: map[string]keySet{}}
}

// Trust accepts tokens of an issuer from now on, and replaces its earlier keys.
func (s *STS) Trust(i Issuer) error {
	if i.URL == "" {
		return fmt.Errorf("trust issuer: no URL")
	}
	keys, err := parseKeys(i.Keys)
	if err != nil {
		return fmt.Errorf("trust issuer %s: %w", i.URL, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issuers[i.URL] = keys
	return nil
}

func (s *STS) keys(issuer string) (keySet, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.issuers[issuer]
	return k, ok
}

// Service returns the table of actions.
func (s *STS) Service() query.Service {
	page := func(action string) string {
		return "https://docs.aws.amazon.com/STS/latest/APIReference/API_" + action + ".html"
	}
	return query.Service{
		Name: "sts", Version: Version, Dialect: query.Query, Refusals: refusals(),
		Actions: []query.Action{
			query.Handle(query.Spec[assumeRole, assumedRole]{
				Name: "AssumeRole", Page: page("AssumeRole"), Do: s.assumeRole,
			}),
			query.Handle(query.Spec[webIdentity, assumed]{
				Name: "AssumeRoleWithWebIdentity", Page: page("AssumeRoleWithWebIdentity"),
				Anonymous: true, Do: s.assume,
			}),
			query.Handle(query.Spec[struct{}, identity]{
				Name: "GetCallerIdentity", Page: page("GetCallerIdentity"),
				Do: func(c *query.Call, _ *struct{}) (*identity, error) {
					return &identity{ARN: c.Principal.ARN, ID: c.Principal.ID, Account: c.Principal.Account}, nil
				},
			}),
			query.Handle(query.Spec[encodedMessage, decodedMessage]{
				Name: "DecodeAuthorizationMessage", Page: page("DecodeAuthorizationMessage"),
				Permit: permitDecode, Do: s.decode,
			}),
		},
	}
}

// refusals are the parameters of AWS's API that this service does not take.
func refusals() []query.Refusal {
	return []query.Refusal{
		{Action: "AssumeRole", Parameter: "Policy", Reason: "sessions have the policies of their role"},
		{Action: "AssumeRole", Parameter: "PolicyArns", Reason: "sessions have the policies of their role"},
		{Action: "AssumeRole", Parameter: "ProvidedContexts", Reason: "there is no identity provider that asserts contexts"},
		{Action: "AssumeRole", Parameter: "SerialNumber", Reason: "users have no MFA devices"},
		{Action: "AssumeRole", Parameter: "TokenCode", Reason: "users have no MFA devices"},
		{Action: "AssumeRole", Parameter: "MinimumSessionTokenSize", Reason: "session tokens have one size"},
		{Action: "AssumeRoleWithWebIdentity", Parameter: "Policy", Reason: "sessions have the policies of their role"},
		{Action: "AssumeRoleWithWebIdentity", Parameter: "PolicyArns", Reason: "sessions have the policies of their role"},
		{Action: "AssumeRoleWithWebIdentity", Parameter: "ProviderId", Reason: "the issuers are OpenID Connect providers, which the token names"},
	}
}

type encodedMessage struct {
	Text string `q:"EncodedMessage,required"`
}

type decodedMessage struct {
	Text string `q:"DecodedMessage"`
}

// permitDecode requires permission for the action, which takes no resource.
func permitDecode(c *query.Call, _ *encodedMessage) ([]iam.Request, error) {
	return []iam.Request{{Action: "sts:DecodeAuthorizationMessage", Resource: "*", Keys: c.Principal.Keys()}}, nil
}

func (s *STS) decode(_ *query.Call, r *encodedMessage) (*decodedMessage, error) {
	text, err := s.iam.DecodeMessage(r.Text)
	if errors.Is(err, iam.ErrMessage) {
		return nil, cloud.Errorf("InvalidAuthorizationMessageException", "Message is not valid")
	}
	return &decodedMessage{text}, err
}

type identity struct {
	ARN     string `q:"Arn"`
	ID      string `q:"UserId"`
	Account string `q:"Account"`
}

type webIdentity struct {
	Role    string `q:"RoleArn,required"`
	Session string `q:"RoleSessionName,required"`
	Token   string `q:"WebIdentityToken,required"`
	Seconds *int   `q:"DurationSeconds"`
}

type credentialsXML struct {
	AccessKeyID     string    `q:"AccessKeyId"`
	SecretAccessKey string    `q:"SecretAccessKey"`
	Token           string    `q:"SessionToken"`
	Expires         time.Time `q:"Expiration"`
}

func newCredentialsXML(c iam.Credentials) credentialsXML {
	return credentialsXML{c.AccessKeyID, c.SecretAccessKey, c.Token, c.Expires}
}

type assumedUser struct {
	ID  string `q:"AssumedRoleId"`
	ARN string `q:"Arn"`
}

type assumed struct {
	Credentials credentialsXML `q:"Credentials"`
	User        assumedUser    `q:"AssumedRoleUser"`
	Subject     string         `q:"SubjectFromWebIdentityToken"`
	Provider    string         `q:"Provider"`
	Audience    string         `q:"Audience"`
}

// sessionName matches valid session names. Source:
// API_AssumeRoleWithWebIdentity.html.
var sessionName = regexp.MustCompile(`^[a-zA-Z0-9_+=,.@-]{2,64}$`)

// checkName refuses a session name, or a source identity, with other characters or of
// another length.
func checkName(member, value string) error {
	if sessionName.MatchString(value) {
		return nil
	}
	return invalid(member, value, `Member must satisfy regular expression pattern: [\w+=,.@-]*`)
}

// invalid is the error for a value that the service's model does not allow.
func invalid(member string, value any, constraint string) error {
	return cloud.Errorf("ValidationError", "1 validation error detected: Value '%v' at '%s' failed to satisfy constraint: %s", value, member, constraint)
}

// Lifetime of assumed credentials, in seconds.
const (
	minSeconds     = 900
	maxSeconds     = 43200
	defaultSeconds = 3600
)

func (s *STS) assume(_ *query.Call, r *webIdentity) (*assumed, error) {
	seconds := defaultSeconds
	if r.Seconds != nil {
		seconds = *r.Seconds
	}
	if seconds < minSeconds || seconds > maxSeconds {
		return nil, cloud.Errorf("ValidationError", "The requested DurationSeconds %d is not between %d and %d.", seconds, minSeconds, maxSeconds)
	}
	if err := checkName("roleSessionName", r.Session); err != nil {
		return nil, err
	}
	claims, err := s.verify(r.Token)
	if err != nil {
		return nil, err
	}
	_, name, _ := strings.Cut(r.Role, ":role/")
	role, ok := s.iam.Role(name)
	if !ok || s.iam.RoleARN(name) != r.Role || !trusts(role, claims) {
		return nil, &cloud.Error{
			Code: "AccessDenied", Message: "Not authorized to perform sts:AssumeRoleWithWebIdentity", Status: http.StatusForbidden,
		}
	}
	made, principal, err := s.iam.Issue(iam.Session{
		Role: name, Name: r.Session, Lifetime: time.Duration(seconds) * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &assumed{
		Credentials: newCredentialsXML(made),
		User:        assumedUser{ID: principal.ID, ARN: principal.ARN},
		Subject:     claims.Subject, Provider: claims.Issuer, Audience: Audience,
	}, nil
}

// trusts reports whether a role's trust policy accepts the token.
func trusts(r iam.Role, c jwt.Claims) bool {
	for _, t := range r.Trust {
		audience := t.Audience
		if audience == "" {
			audience = Audience
		}
		if t.Issuer == c.Issuer && t.Subject == c.Subject && c.Audience.Contains(audience) {
			return true
		}
	}
	return false
}
