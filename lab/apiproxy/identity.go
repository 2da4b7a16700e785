package apiproxy

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
)

// Headers by which a front proxy names a user; lab/controlplane has the API server read them.
const (
	headerUser   = "X-Remote-User"
	headerGroup  = "X-Remote-Group"
	headerPrefix = "X-Remote-"
)

// user is the identity in a client certificate.
type user struct {
	name   string
	groups []string
}

// certified returns the user of a verified client certificate: the common name, in the groups of the
// organisations. Its name is empty if there is none.
func certified(r *http.Request) (u user) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return u
	}
	subject := r.TLS.VerifiedChains[0][0].Subject
	return user{subject.CommonName, subject.Organization}
}

// identify replaces what a client says about its identity in headers of front proxies.
func identify(out *http.Request, u user) {
	for name := range out.Header {
		if strings.HasPrefix(http.CanonicalHeaderKey(name), headerPrefix) {
			out.Header.Del(name)
		}
	}
	if u.name == "" {
		return
	}
	out.Header.Set(headerUser, u.name)
	for _, group := range u.groups {
		out.Header.Add(headerGroup, group)
	}
}

// describe returns what faults are selected by. A token is read without verifying it, which the API
// server does.
func describe(r *http.Request) request {
	query := r.URL.Query()
	watch := query.Get("watch")
	version := query.Get("resourceVersion")
	out := request{path: r.URL.Path, method: r.Method, user: certified(r).name, watch: watch == "true" || watch == "1"}
	out.resumes = out.watch && version != "" && version != "0" && query.Get("sendInitialEvents") != "true"
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && out.user == "" {
		out.user = subject(token)
	}
	return out
}

// subject returns the subject of a service-account token; empty if it is none.
func subject(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if json.Unmarshal(raw, &claims) != nil {
		return ""
	}
	return claims.Subject
}
