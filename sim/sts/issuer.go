// Package sts is the part of AWS's Security Token Service that a node and its
// pods need: AssumeRoleWithWebIdentity for service accounts and
// GetCallerIdentity. sim/world serves it next to EC2, over the same wire.
package sts

// Issuer is an OpenID Connect provider the account trusts: a cluster's API
// server that signs service account tokens.
type Issuer struct {
	URL string // the token's iss
	// Keys are the public keys the issuer signs with: PEM (PUBLIC KEY blocks) or
	// a JSON Web Key Set.
	Keys []byte
}
