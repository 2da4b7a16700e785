package ec2_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
)

// instanceRole gives sessions of the role "node", as instance metadata does. The SDK keeps
// what it reads there for an hour.
type instanceRole struct {
	account *iam.Account
	session time.Duration // how long EC2 accepts a session
	down    bool
	reads   int
}

func (p *instanceRole) Retrieve(context.Context) (aws.Credentials, error) {
	p.reads++
	if p.down {
		return aws.Credentials{}, errors.New("instance metadata does not answer")
	}
	c, _, err := p.account.Issue(iam.Session{Role: "node", Name: "i-1", Lifetime: p.session})
	return aws.Credentials{
		AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, SessionToken: c.Token,
		CanExpire: true, Expires: time.Now().Add(time.Hour),
	}, err
}

// withInstanceRole is a world with an executor that has its credentials from p.
func withInstanceRole(t *testing.T, p *instanceRole) *world {
	t.Helper()
	w := start(t)
	all := []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`)
	if err := w.account.AddRole(iam.Role{Name: "node", Policies: map[string][]byte{"all": all}}); err != nil {
		t.Fatal(err)
	}
	p.account = w.account
	w.config.Credentials = aws.NewCredentialsCache(p)
	w.boot(func(o *ec2.Options) {
		cfg := w.config
		cfg.HTTPClient = &http.Client{Transport: w.wire}
		o.Clients = ec2.NewClients(cfg)
	})
	return w
}

func TestCredentialsThatEC2RefusesAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &instanceRole{session: 10 * time.Minute}
		w := withInstanceRole(t, p)
		eni := w.attached(0, 1)
		time.Sleep(11 * time.Minute)
		began, before := time.Now(), p.reads
		w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1})
		if took := time.Since(began); took > 2*time.Second || p.reads != before+1 {
			t.Errorf("the call took %s with %d reads of credentials, want one at once", took, p.reads-before)
		}
		time.Sleep(11 * time.Minute) // a read is not repeated in place by the executor
		if _, err := w.Interfaces(t.Context(), w.instance); ec2.Code(err) != "RequestExpired" {
			t.Errorf("read with the session that ended: %v", err)
		}
		if _, err := w.Interfaces(t.Context(), w.instance); err != nil {
			t.Errorf("the next read: %v", err)
		}
	})
}

// EC2 can refuse valid credentials. They are not lost if no others can be read.
func TestRefusedCredentialsAreUsedWhileNoOthersCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &instanceRole{session: time.Hour}
		w := withInstanceRole(t, p)
		eni := w.attached(0, 1)
		p.down = true
		w.set(faults.Plan{Calls: []faults.Call{{Action: "AssignPrivateIpAddresses", Do: faults.Fail, Code: "AuthFailure", Count: -1}}})
		before := p.reads
		for range 20 {
			_, err := w.Do(t.Context(), w.withID(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1}))
			if f := ec2.FailureOf(err); f.Reason != cloud.FailCredentials || !f.Definite {
				t.Fatalf("%+v, want a definite failure of the credentials", f)
			}
		}
		if n := w.wire.count("AssignPrivateIpAddresses"); n != 40 {
			t.Errorf("%d calls for 20 actions, want one repeat each", n)
		}
		if p.reads == before {
			t.Error("the credentials were not read again")
		}
		w.set(faults.Plan{})
		w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1})
		p.down = false
		w.do(cloud.Action{Kind: cloud.AssignAddresses, ENI: eni.ID, Count: 1})
	})
}
