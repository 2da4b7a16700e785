package controlplane

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requestTimeout bounds one request for readiness.
const requestTimeout = 2 * time.Second

// awaitServing waits until a pod can be created: the API server is ready, and the default
// ServiceAccount, which every pod runs as, exists.
func (cp *ControlPlane) awaitServing(ctx context.Context) error {
	start := time.Now()
	err := cp.poll(ctx, "kube-apiserver", func() error {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return cp.client.RESTClient().Get().AbsPath("/readyz").Do(request).Error()
	})
	if err != nil {
		return err
	}
	cp.log.Debug("API server ready", "elapsed", time.Since(start))
	err = cp.poll(ctx, "kube-controller-manager", func() error {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		_, err := cp.client.CoreV1().ServiceAccounts("default").Get(request, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	cp.log.Info("control plane ready", "elapsed", time.Since(start), "server", cp.Server(), "forwarded", cp.URL())
	return nil
}
