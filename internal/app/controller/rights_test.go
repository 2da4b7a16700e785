package controller

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func TestTheControllerUsesExactlyTheRightsItIsGranted(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} { // too large a share: every pass creates an event
		r.fleet.add("eni-"+id, "i-dead", "available")
	}
	r.Put("/api/v1/nodes", &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	r.Put(nets, &trunkline.NodeNetwork{TypeMeta: metav1.TypeMeta{APIVersion: "trunkline.dev/v1alpha1", Kind: "NodeNetwork"}, ObjectMeta: metav1.ObjectMeta{Name: "gone"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.opts.Listen, r.opts.Registry, r.opts.Every = l.Addr().String(), prometheus.NewRegistry(), 10*time.Millisecond
	l.Close()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, r.opts) }()
	granted := kubetest.Granted(t, "../../../deploy/base/controller-rbac.yaml")
	deadline := time.After(time.Minute)
	for !slices.Equal(r.Used(), granted) {
		select {
		case <-deadline:
			t.Errorf("used:    %q\ngranted: %q", r.Used(), granted)
			stop()
			<-done
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if used := r.Used(); !slices.Equal(used, granted) {
		t.Errorf("after shutdown it had used %q, granted are %q", used, granted)
	}
}
