package sts

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
)

// claims are what we read out of a service account token.
type claims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud"`
	Expires   int64    `json:"exp"`
	NotBefore int64    `json:"nbf"`
}

// audience is a string or a list of strings.
type audience []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audience) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(a))
}

func (a audience) has(s string) bool { return slices.Contains(a, s) }

// verify checks a token's signature and times and returns what it claims.
// Source: RFC 7515 (compact serialisation), RFC 7519.
func (s *STS) verify(token string) (claims, error) {
	var c claims
	invalid := func(why string) (claims, error) {
		return c, cloud.Errorf("InvalidIdentityToken", "Provided token is invalid: %s", why)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return invalid("it is no JSON Web Token")
	}
	var header struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}
	if decodePart(parts[0], &header) != nil || decodePart(parts[1], &c) != nil {
		return invalid("it cannot be decoded")
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return invalid("its signature cannot be decoded")
	}
	keys, ok := s.keys(c.Issuer)
	if !ok {
		return c, cloud.Errorf("InvalidIdentityToken", "No OpenIDConnect provider found in your account for %s", c.Issuer)
	}
	if err := keys.check(header.Algorithm, header.KeyID, parts[0]+"."+parts[1], signature); err != nil {
		return invalid(err.Error())
	}
	now := s.now()
	if expires := time.Unix(c.Expires, 0); !now.Before(expires) {
		return c, cloud.Errorf("ExpiredTokenException", "Token expired: current date/time %d must be before the expiration date/time %d", now.Unix(), c.Expires)
	}
	if c.NotBefore > now.Unix() {
		return invalid("it is not valid yet")
	}
	return c, nil
}

func decodePart(part string, into any) error {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// keySet are an issuer's public keys.
type keySet []publicKey

type publicKey struct {
	id  string // empty when the issuer gave none
	key crypto.PublicKey
}

// check verifies a signature with the key a token names, or with any.
func (ks keySet) check(algorithm, id, signed string, signature []byte) error {
	digest := sha256.Sum256([]byte(signed))
	for _, k := range ks {
		if k.id != "" && id != "" && k.id != id {
			continue
		}
		switch key := k.key.(type) {
		case *rsa.PublicKey:
			if algorithm == "RS256" && rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature) == nil {
				return nil
			}
		case *ecdsa.PublicKey:
			if algorithm == "ES256" && len(signature) == 64 && ecdsa.Verify(key, digest[:],
				new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
				return nil
			}
		}
	}
	return fmt.Errorf("no key of the issuer made its %s signature", algorithm)
}

// parseKeys reads PEM blocks or a JSON Web Key Set.
func parseKeys(raw []byte) (keySet, error) {
	if strings.HasPrefix(strings.TrimSpace(string(raw)), "{") {
		return parseJWKS(raw)
	}
	var out keySet
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("PEM block %s: %w", block.Type, err)
		}
		out = append(out, publicKey{key: key})
	}
	return out, out.usable()
}

// usable refuses a set that could verify nothing.
func (ks keySet) usable() error {
	if len(ks) == 0 {
		return errors.New("no public key")
	}
	for _, k := range ks {
		switch key := k.key.(type) {
		case *rsa.PublicKey:
		case *ecdsa.PublicKey:
			if key.Curve != elliptic.P256() {
				return fmt.Errorf("key %q: curve %s is not supported, only P-256", k.id, key.Curve.Params().Name)
			}
		default:
			return fmt.Errorf("key %q: a %T is not supported", k.id, key)
		}
	}
	return nil
}

// parseJWKS reads a key set. Source: RFC 7517, RFC 7518.
func parseJWKS(raw []byte) (keySet, error) {
	var set struct {
		Keys []struct {
			Type  string `json:"kty"`
			ID    string `json:"kid"`
			Curve string `json:"crv"`
			X     string `json:"x"`
			Y     string `json:"y"`
			N     string `json:"n"`
			E     string `json:"e"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, err
	}
	var out keySet
	for _, k := range set.Keys {
		switch {
		case k.Type == "RSA":
			n, e := number(k.N), number(k.E)
			if n == nil || e == nil || !e.IsInt64() {
				return nil, fmt.Errorf("key %q: malformed", k.ID)
			}
			out = append(out, publicKey{k.ID, &rsa.PublicKey{N: n, E: int(e.Int64())}})
		case k.Type == "EC" && k.Curve == "P-256":
			x, y := number(k.X), number(k.Y)
			if x == nil || y == nil || x.BitLen() > 256 || y.BitLen() > 256 {
				return nil, fmt.Errorf("key %q: malformed", k.ID)
			}
			point := slices.Concat([]byte{4}, x.FillBytes(make([]byte, 32)), y.FillBytes(make([]byte, 32)))
			key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
			if err != nil {
				return nil, fmt.Errorf("key %q: %w", k.ID, err)
			}
			out = append(out, publicKey{k.ID, key})
		default:
			return nil, fmt.Errorf("key %q: type %s %s is not supported", k.ID, k.Type, k.Curve)
		}
	}
	return out, out.usable()
}

func number(s string) *big.Int {
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) == 0 {
		return nil
	}
	return new(big.Int).SetBytes(raw)
}
