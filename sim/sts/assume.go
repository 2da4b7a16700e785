package sts

import (
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

type sessionTag struct {
	Key   string `q:"Key,required"`
	Value string `q:"Value,required"`
}

// A list of the Query protocol is below "member".
type (
	tagList struct {
		Members []sessionTag `q:"member"`
	}
	textList struct {
		Members []string `q:"member"`
	}
)

// assumeRole is the request AssumeRole. Source: API_AssumeRole.html.
type assumeRole struct {
	Role           string   `q:"RoleArn,required"`
	Session        string   `q:"RoleSessionName,required"`
	Seconds        *int     `q:"DurationSeconds"`
	ExternalID     string   `q:"ExternalId"`
	SourceIdentity string   `q:"SourceIdentity"`
	Tags           tagList  `q:"Tags"`
	Transitive     textList `q:"TransitiveTagKeys"`
}

type assumedRole struct {
	Credentials    credentialsXML `q:"Credentials"`
	User           assumedUser    `q:"AssumedRoleUser"`
	SourceIdentity string         `q:"SourceIdentity,omitempty"`
}

// assumeRole issues credentials of a role to a principal that its trust policy allows.
func (s *STS) assumeRole(c *query.Call, r *assumeRole) (*assumedRole, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	given, err := r.tags()
	if err != nil {
		return nil, err
	}
	if err := s.iam.MayAssume(c.Principal, r.Role, r.actions(), r.keys(c.Principal, given)); err != nil {
		return nil, notAuthorized(err)
	}
	_, name, _ := strings.Cut(r.Role, ":role/")
	role, _ := s.iam.Role(name)
	lifetime, err := r.lifetime(c.Principal, role)
	if err != nil {
		return nil, err
	}
	tags, err := inherit(c.Principal.Session(), given)
	if err != nil {
		return nil, err
	}
	made, principal, err := s.iam.Issue(iam.Session{Role: name, Name: r.Session, Lifetime: lifetime, Tags: tags})
	if err != nil {
		return nil, err
	}
	return &assumedRole{
		Credentials: newCredentialsXML(made), User: assumedUser{ID: principal.ID, ARN: principal.ARN}, SourceIdentity: tags.SourceIdentity,
	}, nil
}

// notAuthorized is STS's error for a refusal. Unlike those of other services it does not
// say which policy is the reason, unless one denies explicitly.
func notAuthorized(err error) error {
	var denied *iam.DeniedError
	if !errors.As(err, &denied) {
		return err
	}
	text := "User: " + denied.Principal + " is not authorized to perform: " + denied.Request.Action + " on resource: " + denied.Request.Resource
	if denied.Explicit {
		text += " with an explicit deny in an identity-based policy"
	}
	return &cloud.Error{Code: "AccessDenied", Message: text, Status: http.StatusForbidden}
}

var (
	roleARN    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$`)
	externalID = regexp.MustCompile(`^[\w+=,.@:/-]{2,}$`)
)

const maxExternalID = 1224

// check refuses what the model of the action does not allow.
func (r *assumeRole) check() error {
	if len(r.Role) < 20 {
		return invalid("roleArn", r.Role, "Member must have length greater than or equal to 20")
	}
	if !roleARN.MatchString(r.Role) {
		return cloud.Errorf("ValidationError", "Request ARN is invalid")
	}
	if err := checkName("roleSessionName", r.Session); err != nil {
		return err
	}
	switch seconds := r.Seconds; {
	case seconds == nil:
	case *seconds < minSeconds:
		return invalid("durationSeconds", *seconds, "Member must have value greater than or equal to 900")
	case *seconds > maxSeconds:
		return invalid("durationSeconds", *seconds, "Member must have value less than or equal to 43200")
	}
	if r.ExternalID != "" && (!externalID.MatchString(r.ExternalID) || len(r.ExternalID) > maxExternalID) {
		return invalid("externalId", r.ExternalID, `Member must satisfy regular expression pattern: [\w+=,.@:\/-]*`)
	}
	if r.SourceIdentity != "" {
		return checkName("sourceIdentity", r.SourceIdentity)
	}
	return nil
}

// Session tags of one request. Source: IAM user guide, "IAM and AWS STS quotas".
const (
	maxSessionTags = 50
	maxTagKey      = 128
	maxTagValue    = 256
)

// tags returns the session tags of the request. Keys are compared without case.
func (r *assumeRole) tags() (iam.SessionTags, error) {
	out := iam.SessionTags{Tags: map[string]string{}, SourceIdentity: r.SourceIdentity}
	if len(r.Tags.Members) > maxSessionTags {
		return out, invalid("tags", "[...]", "Member must have length less than or equal to 50")
	}
	for _, t := range r.Tags.Members {
		switch {
		case t.Key == "" || utf8.RuneCountInString(t.Key) > maxTagKey:
			return out, invalid("tags.1.member.key", t.Key, "Member must have length between 1 and 128")
		case utf8.RuneCountInString(t.Value) > maxTagValue:
			return out, invalid("tags.1.member.value", t.Value, "Member must have length less than or equal to 256")
		case strings.HasPrefix(strings.ToLower(t.Key), "aws:"):
			return out, cloud.InvalidParameter("Tag keys starting with 'aws:' are reserved for internal use")
		case iam.HasTag(out.Tags, t.Key):
			return out, cloud.InvalidParameter("Duplicate tag keys found. Please note that Tag keys are case insensitive.")
		}
		out.Tags[t.Key] = t.Value
	}
	for _, key := range r.Transitive.Members {
		at := slices.IndexFunc(r.Tags.Members, func(t sessionTag) bool { return strings.EqualFold(t.Key, key) })
		if at < 0 {
			return out, cloud.InvalidParameter("The specified transitive tag key must be included in the requested tags.")
		}
		out.Transitive = append(out.Transitive, r.Tags.Members[at].Key)
	}
	return out, nil
}

// actions are those that the caller needs. Source: API_AssumeRole.html, Tags and
// SourceIdentity.
func (r *assumeRole) actions() []string {
	out := []string{"sts:AssumeRole"}
	if len(r.Tags.Members) > 0 {
		out = append(out, "sts:TagSession")
	}
	if r.SourceIdentity != "" {
		out = append(out, "sts:SetSourceIdentity")
	}
	return out
}

// keys are the condition keys of the request. Source: IAM user guide, "IAM and AWS STS
// condition context keys".
func (r *assumeRole) keys(caller iam.Principal, tags iam.SessionTags) map[string][]string {
	k := caller.Keys()
	k["sts:rolesessionname"] = []string{r.Session}
	if r.ExternalID != "" {
		k["sts:externalid"] = []string{r.ExternalID}
	}
	if r.SourceIdentity != "" {
		k["sts:sourceidentity"] = []string{r.SourceIdentity}
	}
	if len(tags.Transitive) > 0 {
		k["sts:transitivetagkeys"] = tags.Transitive
	}
	for key, v := range tags.Tags {
		k["aws:requesttag/"+key] = []string{v}
		k["aws:tagkeys"] = append(k["aws:tagkeys"], key)
	}
	return k
}

// lifetime is that of the session: an hour at most for a role that a session of another
// role assumes.
func (r *assumeRole) lifetime(caller iam.Principal, role iam.Role) (time.Duration, error) {
	seconds := defaultSeconds
	if r.Seconds != nil {
		seconds = *r.Seconds
	}
	wanted := time.Duration(seconds) * time.Second
	switch {
	case wanted > time.Hour && caller.Assumed():
		return 0, cloud.Errorf("ValidationError", "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining.")
	case wanted > role.LongestSession():
		return 0, cloud.Errorf("ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	}
	return wanted, nil
}

// inherit adds to the tags of a session what the caller's own session passes on. It
// cannot be replaced. Source: IAM user guide, "Pass session tags in AWS STS", chaining.
func inherit(from, given iam.SessionTags) (iam.SessionTags, error) {
	out := given
	out.Tags = maps.Clone(given.Tags)
	if from.SourceIdentity != "" {
		if given.SourceIdentity != "" && given.SourceIdentity != from.SourceIdentity {
			return out, &cloud.Error{
				Code: "AccessDenied", Message: "The source identity is already set for this assume role session", Status: http.StatusForbidden,
			}
		}
		out.SourceIdentity = from.SourceIdentity
	}
	for _, key := range from.Transitive {
		if iam.HasTag(given.Tags, key) {
			return out, cloud.InvalidParameter("One of the specified transitive tag keys can't be set because it conflicts with a transitive tag key from the calling session.")
		}
		out.Tags[key] = from.Tags[key]
		out.Transitive = append(out.Transitive, key)
	}
	return out, nil
}
