package iam

import (
	"maps"
	"strings"
	"time"
)

// MayAssume reports whether a caller may take every one of the actions on a role, as
// sts:AssumeRole does: the role's trust policy must allow it, and the caller's own policies
// too unless the trust policy names the caller. It refuses roles that do not exist like
// those that refuse the caller. keys are the condition keys of the request.
func (a *Account) MayAssume(caller Principal, roleARN string, actions []string, keys map[string][]string) error {
	_, name, _ := strings.Cut(roleARN, ":role/")
	a.mu.Lock()
	r := a.roles[name]
	a.mu.Unlock()
	exists := r != nil && r.trust != nil && a.RoleARN(name) == roleARN
	if keys = maps.Clone(keys); exists {
		for tag, v := range r.Tags {
			keys["aws:resourcetag/"+tag] = []string{v}
		}
	}
	for _, action := range actions {
		request := Request{Action: action, Resource: roleARN, Keys: keys}
		own, trust, enough := caller.decide(request), NoMatch, false
		if exists {
			trust, enough = r.trust.decide(caller, request)
		}
		if own == Deny || trust != Allow || own != Allow && !enough {
			return &DeniedError{Principal: caller.ARN, PrincipalID: caller.ID, Request: request, Explicit: own == Deny}
		}
	}
	return nil
}

// LongestSession is how long a session of a role that a principal assumes may last.
func (r Role) LongestSession() time.Duration {
	if r.MaxSession == 0 {
		return time.Hour
	}
	return r.MaxSession
}

// joinTags returns the tags of a role with those of a session, which replace the role's of
// the same key. Keys are compared without case. Source: IAM user guide, "Pass session tags
// in AWS STS".
func joinTags(ofRole, ofSession map[string]string) map[string]string {
	if len(ofSession) == 0 {
		return ofRole
	}
	joined := maps.Clone(ofSession)
	for key, v := range ofRole {
		if !HasTag(ofSession, key) {
			joined[key] = v
		}
	}
	return joined
}

// HasTag reports whether a tag with a key exists; case does not matter.
func HasTag(tags map[string]string, key string) bool {
	for have := range tags {
		if strings.EqualFold(have, key) {
			return true
		}
	}
	return false
}
