package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/sim/resourcecontroller"
)

// podResync is when the model retries a pod that it has given up. AWS's does so after half an hour, or
// when the pod changes: too long for a user of a lab.
const podResync = 20 * time.Second

// resourceController runs the model of AWS's VPC resource controller. On EKS that runs in AWS's
// account, beside the control plane.
type resourceController struct {
	create func() (*resourcecontroller.Controller, error)

	mu     sync.Mutex // guards what follows, and is held while the model starts or stops
	cancel context.CancelFunc
	done   sync.WaitGroup
	closed bool
}

// stop stops the model permanently.
func (r *resourceController) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.end()
}

// end requires the lock.
func (r *resourceController) end() {
	if r.cancel != nil {
		r.cancel()
		r.done.Wait()
		r.cancel = nil
	}
}

// restart starts the model with no state, and stops the running one before.
func (r *resourceController) restart() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errInterrupted
	}
	r.end()
	controller, err := r.create()
	if err != nil {
		return fmt.Errorf("start the model of AWS's VPC resource controller: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() { controller.Run(ctx) })
	return nil
}

// convergeResourceController starts the model, if the lab has it and it does not run.
func (l *lab) convergeResourceController(want Lab) error {
	if want.PodGroups != spec.PodGroupsManaged || l.eks != nil {
		return nil
	}
	eks := &resourceController{create: func() (*resourcecontroller.Controller, error) { return l.newResourceController(want) }}
	l.mu.Lock()
	l.eks = eks
	l.mu.Unlock()
	return eks.restart()
}

// restartResourceController restarts the model, for a client.
func (l *lab) restartResourceController() error {
	l.mu.Lock()
	eks := l.eks
	l.mu.Unlock()
	if eks == nil {
		return fmt.Errorf("%w: the lab has no VPC resource controller (securityGroupsForPods: managed in lab.yaml)", errBadRequest)
	}
	return eks.restart()
}

func (l *lab) newResourceController(want Lab) (*resourcecontroller.Controller, error) {
	access, err := l.cp.Access(resourcecontroller.User)
	if err != nil {
		return nil, err
	}
	key := l.world.EKS()
	config := aws.Config{
		Region: want.World.Region, BaseEndpoint: aws.String(l.world.Endpoint()),
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, key.Token),
	}
	return resourcecontroller.New(resourcecontroller.Options{
		API: access, User: config, Service: &config, Cluster: spec.ClusterName, Account: want.World.Account,
		Limits: l.limits, Resync: podResync, Log: l.log.With("component", "resource-controller"),
	})
}

// limits are those of an instance type that the account has an instance of.
func (l *lab) limits(instanceType string) vpc.Limits {
	for _, i := range l.world.State().Instances {
		if i.Type == instanceType {
			return i.Limits
		}
	}
	return vpc.Limits{}
}
