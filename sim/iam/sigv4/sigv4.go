// Package sigv4 verifies AWS Signature Version 4 of requests with an Authorization
// header and of presigned addresses. It is written from the specification and shares no code with the SDK that
// signs, so each tests the other.
//
// It has no side effects; sim/query calls it with the request and the key that
// sim/iam found. Source: "Signature Version 4 signing process", AWS General
// Reference.
package sigv4

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Reasons to refuse a request.
var (
	ErrMissing   = errors.New("request carries no signature")
	ErrMalformed = errors.New("authorization header is malformed")
	ErrScope     = errors.New("credential is scoped to another region, service or day")
	ErrSkew      = errors.New("request time is too far from ours")
	ErrToken     = errors.New("session token is not that of the access key")
	ErrSignature = errors.New("signature does not match")
)

// Window is the allowed difference between a request's time and ours, in both
// directions.
const Window = 15 * time.Minute

const (
	algorithm = "AWS4-HMAC-SHA256"
	dateForm  = "20060102T150405Z"
)

// Authorization is a parsed Authorization header, or the signature of a presigned
// address.
type Authorization struct {
	AccessKeyID   string
	Day           string // YYYYMMDD
	Region        string
	Service       string
	SignedHeaders []string // lower case, sorted
	Signature     [sha256.Size]byte

	presigned   bool
	date, token string // of a presigned address; otherwise they are headers
}

// ParseQuery reads the signature of a presigned address from its X-Amz parameters. Its
// errors are ErrMissing or wrap ErrMalformed.
//
// X-Amz-Expires must be a number and has no other effect: an address is valid for
// Window, as STS's are. Source: github.com/kubernetes-sigs/aws-iam-authenticator,
// pkg/token.
func ParseQuery(q url.Values) (Authorization, error) {
	if len(q) == 0 {
		return Authorization{}, ErrMissing
	}
	for name, values := range q {
		if len(values) > 1 {
			return Authorization{}, fmt.Errorf("%w: %s is given twice", ErrMalformed, name)
		}
	}
	if q.Get("X-Amz-Algorithm") != algorithm {
		return Authorization{}, fmt.Errorf("%w: algorithm is not %s", ErrMalformed, algorithm)
	}
	if _, err := strconv.ParseUint(q.Get("X-Amz-Expires"), 10, 32); q.Has("X-Amz-Expires") && err != nil {
		return Authorization{}, fmt.Errorf("%w: X-Amz-Expires %q", ErrMalformed, q.Get("X-Amz-Expires"))
	}
	a, err := parseParts(map[string]string{
		"Credential": q.Get("X-Amz-Credential"), "SignedHeaders": q.Get("X-Amz-SignedHeaders"), "Signature": q.Get("X-Amz-Signature"),
	})
	a.presigned, a.date, a.token = true, q.Get("X-Amz-Date"), q.Get("X-Amz-Security-Token")
	return a, err
}

// Parse reads an Authorization header. Its errors are ErrMissing or wrap
// ErrMalformed.
func Parse(header string) (Authorization, error) {
	if header == "" {
		return Authorization{}, ErrMissing
	}
	rest, ok := strings.CutPrefix(header, algorithm+" ")
	if !ok {
		return Authorization{}, fmt.Errorf("%w: algorithm is not %s", ErrMalformed, algorithm)
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if _, twice := parts[name]; !ok || twice {
			return Authorization{}, fmt.Errorf("%w: %q", ErrMalformed, part)
		}
		parts[name] = value
	}
	return parseParts(parts)
}

// parseParts reads the parts that both forms of a signature have.
func parseParts(parts map[string]string) (Authorization, error) {
	var a Authorization
	for _, name := range []string{"Credential", "SignedHeaders", "Signature"} {
		if parts[name] == "" {
			return a, fmt.Errorf("%w: %s is missing", ErrMalformed, name)
		}
	}
	scope := strings.Split(parts["Credential"], "/")
	if len(scope) != 5 || scope[4] != "aws4_request" {
		return a, fmt.Errorf("%w: credential %q", ErrMalformed, parts["Credential"])
	}
	a.AccessKeyID, a.Day, a.Region, a.Service = scope[0], scope[1], scope[2], scope[3]
	a.SignedHeaders = strings.Split(parts["SignedHeaders"], ";")
	if !slices.IsSorted(a.SignedHeaders) {
		return a, fmt.Errorf("%w: SignedHeaders are not sorted", ErrMalformed)
	}
	raw, err := hex.DecodeString(parts["Signature"])
	if err != nil || copy(a.Signature[:], raw) != len(a.Signature) || len(raw) != len(a.Signature) {
		return a, fmt.Errorf("%w: signature is not 64 hexadecimal digits", ErrMalformed)
	}
	return a, nil
}

// Key is the access key that signed, as the account has it.
type Key struct {
	Secret string
	Token  string // session token; empty for long-lived keys
}

// Scope is the verifying service.
type Scope struct {
	Region, Service string
	Now             time.Time
}

// Verify checks that r, with body, was signed as a describes, with key, recently and
// for this service. It returns one of the package's errors, wrapped.
func Verify(r *http.Request, body []byte, a Authorization, key Key, scope Scope) error {
	date, token := r.Header.Get("X-Amz-Date"), r.Header.Get("X-Amz-Security-Token")
	if a.presigned {
		date, token = a.date, a.token
	}
	at, err := time.Parse(dateForm, date)
	if err != nil {
		return fmt.Errorf("%w: X-Amz-Date %q", ErrMalformed, date)
	}
	if a.Region != scope.Region || a.Service != scope.Service || a.Day != at.Format("20060102") {
		return fmt.Errorf("%w: %s/%s/%s, want %s/%s", ErrScope, a.Day, a.Region, a.Service, scope.Region, scope.Service)
	}
	if d := scope.Now.Sub(at); d > Window || d < -Window {
		return fmt.Errorf("%w: %s, now %s", ErrSkew, at.Format(time.RFC3339), scope.Now.UTC().Format(time.RFC3339))
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(key.Token)) != 1 {
		return ErrToken
	}
	for _, must := range a.mustSign(r) {
		if !slices.Contains(a.SignedHeaders, must) {
			return fmt.Errorf("%w: header %s is not signed", ErrSignature, must)
		}
	}
	want := sign(key.Secret, a, stringToSign(r, body, a, at))
	if subtle.ConstantTimeCompare(want, a.Signature[:]) != 1 {
		return ErrSignature
	}
	return nil
}

// mustSign returns the headers that a signature must cover: the host, the time unless
// it is in the address, and AWS's own headers of the request.
func (a Authorization) mustSign(r *http.Request) []string {
	must := []string{"host"}
	if !a.presigned {
		must = append(must, "x-amz-date")
	}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") {
			must = append(must, name)
		}
	}
	return must
}

func stringToSign(r *http.Request, body []byte, a Authorization, at time.Time) string {
	canonical := sha256.Sum256([]byte(canonicalRequest(r, body, a)))
	return strings.Join([]string{
		algorithm, at.Format(dateForm),
		strings.Join([]string{a.Day, a.Region, a.Service, "aws4_request"}, "/"),
		hex.EncodeToString(canonical[:]),
	}, "\n")
}

func sign(secret string, a Authorization, text string) []byte {
	key := []byte("AWS4" + secret)
	for _, part := range []string{a.Day, a.Region, a.Service, "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return key
}

func canonicalRequest(r *http.Request, body []byte, a Authorization) string {
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	var headers strings.Builder
	for _, name := range a.SignedHeaders {
		headers.WriteString(name + ":" + headerValue(r, name) + "\n")
	}
	hash := sha256.Sum256(body)
	return strings.Join([]string{
		r.Method, path, canonicalQuery(r.URL.RawQuery, a.presigned), headers.String(),
		strings.Join(a.SignedHeaders, ";"), hex.EncodeToString(hash[:]),
	}, "\n")
}

// headerValue returns a header as it is signed: values joined by commas, repeated
// blanks as one. net/http moves Host and Content-Length out of the header map.
func headerValue(r *http.Request, name string) string {
	switch name {
	case "host":
		return r.Host
	case "content-length":
		return strconv.FormatInt(r.ContentLength, 10)
	}
	values := slices.Clone(r.Header.Values(name))
	for n, v := range values {
		values[n] = strings.Join(strings.Fields(v), " ")
	}
	return strings.Join(values, ",")
}

// canonicalQuery returns the parameters of an address as they are signed: without the
// signature itself if that is one of them.
func canonicalQuery(raw string, presigned bool) string {
	if raw == "" {
		return ""
	}
	var pairs []string
	for pair := range strings.SplitSeq(raw, "&") {
		k, v, _ := strings.Cut(pair, "=")
		if presigned && k == "X-Amz-Signature" {
			continue
		}
		pairs = append(pairs, reescape(k)+"="+reescape(v))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}

func reescape(s string) string {
	plain, err := url.QueryUnescape(s)
	if err != nil {
		return s
	}
	return strings.ReplaceAll(url.QueryEscape(plain), "+", "%20")
}
