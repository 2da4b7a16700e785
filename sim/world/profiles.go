package world

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/imds"
)

// Lifetime of the credentials in instance metadata, and how long before their expiry
// they are replaced.
const (
	profileLife  = 6 * time.Hour
	profileRenew = 30 * time.Minute
)

// profiles issues the credentials of each instance's role, and renews them before they
// expire.
type profiles struct {
	account *cloud.Cloud
	iam     *iam.Account
	now     func() time.Time
	log     *slog.Logger

	mu      sync.Mutex // guards current
	current map[vpc.InstanceID]iam.Credentials
}

func newProfiles(account *cloud.Cloud, identities *iam.Account, c Config) *profiles {
	return &profiles{account: account, iam: identities, now: c.Now, log: c.Log, current: map[vpc.InstanceID]iam.Credentials{}}
}

// Credentials implements imds.Source.
func (p *profiles) Credentials(id vpc.InstanceID) (imds.Credentials, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.account.State() // not older than any in which an instance of current was found
	n := s.Instances[id]
	if n == nil || n.Role == "" {
		return imds.Credentials{}, false
	}
	c := p.current[id]
	if c.Expires.Sub(p.now()) < profileRenew {
		made, _, err := p.iam.Issue(iam.Session{
			Role: n.Role, Name: string(id), Lifetime: profileLife,
			Instance: iam.Instance{
				ARN: ec2.ARN(s, cloud.KindInstance, string(id)), VPC: string(s.VPC.ID),
			},
		})
		if err != nil {
			p.log.Error("no credentials for instance", "instance", string(id), "err", err)
			return imds.Credentials{}, false
		}
		maps.DeleteFunc(p.current, func(old vpc.InstanceID, _ iam.Credentials) bool {
			return s.Instances[old].State == cloud.Terminated
		})
		p.current[id], c = made, made
	}
	return imds.Credentials{
		AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, Token: c.Token, Updated: c.Issued, Expires: c.Expires,
	}, true
}
