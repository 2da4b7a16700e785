package controlplane

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// askTimeout for one readiness question.
const askTimeout = 2 * time.Second

// awaitServing returns when a pod can be created: the API server says it is
// ready, and the controllers made the default ServiceAccount that every pod
// runs as.
func (cp *ControlPlane) awaitServing(ctx context.Context) error {
	begun := time.Now()
	err := cp.poll(ctx, "kube-apiserver", func() error {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return cp.client.RESTClient().Get().AbsPath("/readyz").Do(ask).Error()
	})
	if err != nil {
		return err
	}
	cp.log.Debug("API server ready", "elapsed", time.Since(begun))
	err = cp.poll(ctx, "kube-controller-manager", func() error {
		ask, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		_, err := cp.client.CoreV1().ServiceAccounts("default").Get(ask, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	cp.log.Info("control plane ready", "elapsed", time.Since(begun), "server", cp.Server(), "forwarded", cp.URL())
	return nil
}
