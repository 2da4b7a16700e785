package sts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/trunkline/trunkline/sim/cloud"
)

// algorithms are those that API servers sign service account tokens with.
func algorithms() []jose.SignatureAlgorithm { return []jose.SignatureAlgorithm{jose.RS256, jose.ES256} }

// verify checks a token's signature and times and returns its claims.
func (s *STS) verify(token string) (jwt.Claims, error) {
	invalid := func(why string) (jwt.Claims, error) {
		return jwt.Claims{}, cloud.Errorf("InvalidIdentityToken", "Provided token is invalid: %s", why)
	}
	signed, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return invalid("it is not a JSON Web Token signed by RS256 or ES256")
	}
	var claimed jwt.Claims // by the token, not verified yet
	if err := signed.UnsafeClaimsWithoutVerification(&claimed); err != nil {
		return invalid("its claims cannot be decoded")
	}
	keys, ok := s.keys(claimed.Issuer)
	if !ok {
		return jwt.Claims{}, cloud.Errorf("InvalidIdentityToken", "No OpenIDConnect provider found in your account for %s", claimed.Issuer)
	}
	claims, ok := keys.verify(signed)
	if !ok {
		return invalid("no key of the issuer made its " + signed.Headers[0].Algorithm + " signature")
	}
	// The library's own check accepts a token without an expiry, and one that expires
	// now.
	now := s.now()
	if expires := claims.Expiry.Time(); !now.Before(expires) {
		return jwt.Claims{}, cloud.Errorf("ExpiredTokenException", "Token expired: current date/time %d must be before the expiration date/time %d", now.Unix(), expires.Unix())
	}
	if now.Before(claims.NotBefore.Time()) {
		return invalid("it is not valid yet")
	}
	return claims, nil
}

// keySet is the set of an issuer's public keys. A key has no id if the issuer gave
// none.
type keySet []jose.JSONWebKey

// verify returns the claims of a token that is signed with the key it names, or with
// any key if it or the key has no id.
func (ks keySet) verify(token *jwt.JSONWebToken) (claims jwt.Claims, ok bool) {
	id := token.Headers[0].KeyID
	for _, k := range ks {
		if k.KeyID != "" && id != "" && k.KeyID != id {
			continue
		}
		if token.Claims(k.Key, &claims) == nil {
			return claims, true
		}
	}
	return jwt.Claims{}, false
}

// parseKeys reads PEM blocks or a JSON Web Key Set.
func parseKeys(raw []byte) (keySet, error) {
	if strings.HasPrefix(strings.TrimSpace(string(raw)), "{") {
		var set jose.JSONWebKeySet
		if err := json.Unmarshal(raw, &set); err != nil {
			return nil, err
		}
		return set.Keys, keySet(set.Keys).usable()
	}
	var out keySet
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("PEM block %s: %w", block.Type, err)
		}
		out = append(out, jose.JSONWebKey{Key: key})
	}
	return out, out.usable()
}

// usable refuses an empty set, and a set with a key that STS cannot use.
func (ks keySet) usable() error {
	if len(ks) == 0 {
		return errors.New("no public key")
	}
	for _, k := range ks {
		switch key := k.Key.(type) {
		case *rsa.PublicKey:
		case *ecdsa.PublicKey:
			if key.Curve != elliptic.P256() {
				return fmt.Errorf("key %q: curve %s is not supported, only P-256", k.KeyID, key.Curve.Params().Name)
			}
		default:
			return fmt.Errorf("key %q: a %T is not supported", k.KeyID, key)
		}
	}
	return nil
}
