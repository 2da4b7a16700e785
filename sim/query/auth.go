package query

import (
	"cmp"
	"errors"
	"net"
	"net/http"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/iam/sigv4"
)

// authenticate identifies the signer of a request, and responds as the service does
// if the signature is missing or not of a known key.
func (s *Server) authenticate(req *request) error {
	if req.action.Anonymous {
		return nil
	}
	a, err := req.authorization()
	if err != nil {
		return refuse(req, err)
	}
	credentials, principal, ok := s.options.IAM.Find(a.AccessKeyID)
	if !ok {
		return refuse(req, errUnknownKey)
	}
	scope := sigv4.Scope{Region: s.signingRegion(req.http.Host), Service: req.table.Name, Now: s.options.Now()}
	key := sigv4.Key{Secret: credentials.SecretAccessKey, Token: credentials.Token}
	if err := sigv4.Verify(req.http, req.body, a, key, scope); err != nil {
		return refuse(req, err)
	}
	if !credentials.Expires.IsZero() && scope.Now.After(credentials.Expires) {
		return refuse(req, errExpiredToken)
	}
	req.call.Principal = principal
	return nil
}

// signingRegion returns the region that requests to a host are signed for.
func (s *Server) signingRegion(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return cmp.Or(s.options.SigningRegions[host], s.options.Region)
}

var (
	errUnknownKey   = errors.New("access key is not known")
	errExpiredToken = errors.New("session token is expired")
)

// refuse returns the service's own error for a failed authentication. EC2 and STS
// differ. Source: EC2 API reference, "Client error codes"; STS API reference, "Common
// errors".
func refuse(req *request, why error) error {
	refusal := func(status int, code, text string) error {
		return &cloud.Error{Code: code, Message: text, Status: status}
	}
	sts := req.table.Name == "sts"
	switch {
	case errors.Is(why, sigv4.ErrMissing):
		return refusal(http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
	case errors.Is(why, sigv4.ErrMalformed):
		return refusal(http.StatusBadRequest, "IncompleteSignature", why.Error())
	case errors.Is(why, sigv4.ErrSkew) && sts:
		return refusal(http.StatusForbidden, "SignatureDoesNotMatch", "Signature expired: "+why.Error())
	case errors.Is(why, sigv4.ErrSkew):
		return refusal(http.StatusBadRequest, "RequestExpired", "Request has expired. "+why.Error())
	case errors.Is(why, errExpiredToken) && sts:
		return refusal(http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired")
	case errors.Is(why, errExpiredToken):
		return refusal(http.StatusBadRequest, "RequestExpired", "Request has expired.")
	case errors.Is(why, sigv4.ErrScope):
		if sts {
			return refusal(http.StatusForbidden, "SignatureDoesNotMatch", "Credential should be scoped to a valid region. "+why.Error())
		}
		return refusal(http.StatusUnauthorized, "AuthFailure", "Credential should be scoped to a valid region. "+why.Error())
	case errors.Is(why, sigv4.ErrSignature):
		return refusal(http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. "+
			"Check your AWS Secret Access Key and signing method. Consult the service documentation for details.")
	case sts:
		return refusal(http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid.")
	default:
		return refusal(http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials")
	}
}

// authorization reads a request's signature: of the header, or of a presigned address.
func (req *request) authorization() (sigv4.Authorization, error) {
	if len(req.presigned) > 0 && req.http.Header.Get("Authorization") == "" {
		return sigv4.ParseQuery(req.presigned)
	}
	return sigv4.Parse(req.http.Header.Get("Authorization"))
}

// unauthorized returns the error for a refusal by policy. On EC2, a refusal of access
// to a resource carries an encoded message with the request and its condition keys,
// which sts:DecodeAuthorizationMessage decodes.
func (s *Server) unauthorized(req *request, err error) error {
	var denied *iam.DeniedError
	if !errors.As(err, &denied) {
		return err
	}
	if req.table.Name == "sts" {
		return &cloud.Error{Code: "AccessDenied", Message: denied.Error(), Status: http.StatusForbidden}
	}
	text := "You are not authorized to perform this operation. " + denied.Error()
	if denied.Request.Resource != "*" {
		encoded, err := s.options.IAM.EncodeMessage(denied)
		if err != nil {
			return err
		}
		text += ". Encoded authorization failure message: " + encoded
	}
	return &cloud.Error{Code: "UnauthorizedOperation", Message: text, Status: http.StatusForbidden}
}
