package webhook

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"
)

const host = "trunkline-admission.kube-system.svc"

func begin() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func renew(t *testing.T, c Certificates, now time.Time) (Certificates, string) {
	t.Helper()
	c, why, err := c.Renew(host, now)
	if err != nil {
		t.Fatal(err)
	}
	return c, why
}

// accepts is whether a client with the bundle of one state accepts the serving certificate of
// another.
func accepts(bundle, serving Certificates, now time.Time) bool {
	bundle.serving = serving.serving
	return bundle.Valid(host, now)
}

// A configuration is at most one pass behind the Secret, and a replica serves with the certificate
// of the pass before: both orders must be accepted at every time of three years.
func TestAClientAcceptsTheServerThroughEveryRenewal(t *testing.T) {
	const pass = 24 * time.Hour
	c, why := renew(t, Certificates{}, begin())
	if why == "" || !c.Valid(host, begin()) {
		t.Fatalf("renewed %q, valid %v", why, c.Valid(host, begin()))
	}
	signed, renewals := 0, 0
	for now := begin(); now.Before(begin().AddDate(3, 0, 0)); now = now.Add(pass) {
		before := c
		data, err := before.Data()
		if err != nil {
			t.Fatal(err)
		}
		if c, err = Parse(data); err != nil {
			t.Fatal(err)
		}
		c, why = renew(t, c, now)
		switch {
		case why == "the next authority signs":
			signed++
		case why != "":
			renewals++
		}
		for name, ok := range map[string]bool{"same": c.Valid(host, now), "earlier bundle": accepts(before, c, now), "earlier server": accepts(c, before, now)} {
			if !ok {
				t.Fatalf("%s: %s: not accepted after %q", now, name, why)
			}
		}
		if again, why := renew(t, c, now); why != "" || !again.Valid(host, now) {
			t.Fatalf("%s: renewed again: %s", now, why)
		}
	}
	if signed < 3 || renewals < 10 {
		t.Errorf("%d authorities and %d other renewals: the check is not valid", signed, renewals)
	}
}

func TestCertificatesThatHaveEndedOrAreDamagedAreMadeAgain(t *testing.T) {
	c, _ := renew(t, Certificates{}, begin())
	late := begin().AddDate(5, 0, 0)
	if c.Valid(host, late) {
		t.Fatal("valid after five years")
	}
	if next, _ := renew(t, c, late); !next.Valid(host, late) {
		t.Error("not valid after the renewal")
	}
	if next, why, err := c.Renew("other.kube-system.svc", begin()); err != nil || why == "" || !next.Valid("other.kube-system.svc", begin()) {
		t.Errorf("another name: %q, %v", why, err)
	}
	data, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := renew(t, Certificates{}, begin())
	others, err := other.Data()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string][]byte){
		"no authority":            func(d map[string][]byte) { delete(d, keyAuthority) },
		"no key":                  func(d map[string][]byte) { delete(d, keyServingKey) },
		"a truncated certificate": func(d map[string][]byte) { d[keyServing] = d[keyServing][:100] },
		"a key of another":        func(d map[string][]byte) { d[keyServingKey] = others[keyServingKey] },
		"a damaged key": func(d map[string][]byte) {
			d[keyAuthorityKey] = bytes.Replace(d[keyAuthorityKey], []byte("M"), []byte("N"), 1)
		},
		"text": func(d map[string][]byte) { d[keyPrevious] = []byte("text") },
	} {
		damaged := maps.Clone(data)
		change(damaged)
		parsed, err := Parse(damaged)
		if !errors.Is(err, ErrIncomplete) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, secret := range damaged {
			if strings.Contains(err.Error(), string(secret)) {
				t.Errorf("%s: the error quotes the Secret", name)
			}
		}
		if next, why := renew(t, parsed, begin()); !next.Valid(host, begin()) {
			t.Errorf("%s: not valid after %q", name, why)
		}
	}
}
