package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// errCredentials is in the chain of an error of a call that was not sent because its
// credentials could not be read: instance metadata or STS did not answer, or refused.
var errCredentials = errors.New("no valid credentials")

// credentials marks the errors of a provider. The SDK's own have no type in common.
type credentials struct{ aws.CredentialsProvider }

// Retrieve implements aws.CredentialsProvider.
func (c credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	got, err := c.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return got, fmt.Errorf("%w: %w", errCredentials, err)
	}
	return got, nil
}

// IsCredentials reports whether a call failed because of its credentials: they could not
// be read, or EC2 refused them as expired or unknown.
func IsCredentials(err error) bool {
	return errors.Is(err, errCredentials) || slices.Contains([]string{
		"AuthFailure", "InvalidClientTokenId", "ExpiredToken", "RequestExpired", "SignatureDoesNotMatch",
	}, Code(err))
}

// IsUnsent reports whether EC2 got no request, because there were no credentials for it.
func IsUnsent(err error) bool { return errors.Is(err, errCredentials) }
