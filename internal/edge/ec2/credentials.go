package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// errCredentials is in the chain of an error of a call that was not sent because its
// credentials could not be read: instance metadata or STS did not answer, or refused.
var errCredentials = errors.New("no valid credentials")

// renewEvery is the least time between two reads of credentials that EC2 refused: instance
// metadata and STS are asked no more often, whatever number of calls is refused.
const renewEvery = 5 * time.Second

// credentials are those of a provider. They mark its errors, because the SDK's own have no
// type in common, and can be read again before they expire.
type credentials struct {
	provider aws.CredentialsProvider

	mu      sync.Mutex
	last    aws.Credentials // the last ones that were read
	renewed time.Time       // they were discarded in the provider
}

// Retrieve implements aws.CredentialsProvider. Credentials that EC2 refused are used further
// while no others can be read: EC2 may refuse valid ones, too.
func (c *credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	got, err := c.provider.Retrieve(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.last = got
	case c.last.HasKeys() && !c.renewed.IsZero():
		return c.last, nil
	default:
		return got, fmt.Errorf("%w: %w", errCredentials, err)
	}
	return got, nil
}

// renew has the credentials read again, because EC2 refused them: those of an instance's role
// can end before the SDK reads the next ones.
func (c *credentials) renew(now time.Time) {
	cached, ok := c.provider.(interface{ Invalidate() }) // *aws.CredentialsCache
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.renewed) >= renewEvery {
		c.renewed = now
		cached.Invalidate()
	}
}

// IsCredentials reports whether a call failed because of its credentials: they could not
// be read, or EC2 refused them as expired or unknown.
func IsCredentials(err error) bool {
	return errors.Is(err, errCredentials) || refusedCredentials(err)
}

// refusedCredentials reports whether EC2 got the call and refused its credentials. Source:
// EC2 API reference, "Error codes for the Amazon EC2 API", client errors for all actions.
func refusedCredentials(err error) bool {
	return slices.Contains([]string{
		"AuthFailure", "InvalidClientTokenId", "ExpiredToken", "RequestExpired", "SignatureDoesNotMatch",
	}, Code(err))
}

// IsUnsent reports whether EC2 got no request, because there were no credentials for it.
func IsUnsent(err error) bool { return errors.Is(err, errCredentials) }
