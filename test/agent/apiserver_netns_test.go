//go:build netns

package agent

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/test/node"
)

const podPath = "/api/v1/pods"

// server is an API server at a loopback address of a node.
type server struct {
	*kubetest.Server
	url string
}

// apiServer starts the API server of a node; it has the Node.
func apiServer(t *testing.T, n *node.Node) *server {
	t.Helper()
	s := &server{Server: kubetest.New(t)}
	s.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
	})
	to, err := url.Parse(s.REST().Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	var l net.Listener
	if err := n.NS.Run(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	web := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- web.Serve(l) }()
	t.Cleanup(func() { _ = web.Close(); <-done })
	return s
}

// bind creates the object of a pod, bound to the node, with the uid that the runtime has.
func (s *server) bind(name string) {
	s.Put(podPath, &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Now()},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
}
