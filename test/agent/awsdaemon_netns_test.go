//go:build netns

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/test/node"
)

// serveAPI starts an API server at a loopback address of the node.
func serveAPI(t *testing.T, n *node.Node) (server *kubetest.Server, at string) {
	t.Helper()
	server = kubetest.New(t)
	to, err := url.Parse(server.REST().Host)
	if err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	if err := n.NS.Run(func() (err error) { listener, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1 // watches
	web := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- web.Serve(listener) }()
	t.Cleanup(func() { _ = web.Close(); <-done })
	return server, "http://" + listener.Addr().String()
}

// awsNodePod is a pod of AWS's daemon.
func awsNodePod(name string) *corev1.Pod {
	p := podOnNode("kube-system", name, map[string]string{"k8s-app": "aws-node"})
	p.Spec.HostNetwork = true
	return p
}

func podOnNode(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "node1"},
	}
}

// A manifest has AWS's daemon run beside the agent: the agent changes nothing at EC2,
// refuses ADDs, leaves AWS's configuration in place, and says so. Once the daemon has gone, it
// serves the node.
func TestBesideAWSsDaemonTheAgentOnlyWatches(t *testing.T) {
	t.Parallel()
	n := node.New(t, node.Config{})
	server, at := serveAPI(t, n)
	server.Put("/api/v1/nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Spec: corev1.NodeSpec{ProviderID: "aws:///us-west-2a/" + string(n.State().InstanceNamed("node1").ID)},
	})
	server.Put("/api/v1/pods", awsNodePod("aws-node-x"))
	server.Put("/api/v1/pods", podOnNode("default", "p", nil))
	const conflist = `{"cniVersion": "0.4.0", "name": "aws-cni", "plugins": [{"type": "aws-cni"}]}`
	aws := filepath.Join(n.Dir, "net.d", "10-aws.conflist")
	if err := os.WriteFile(aws, []byte(conflist), 0o600); err != nil {
		t.Fatal(err)
	}
	// AWS's daemon has added addresses: without any, no call would be served.
	for id := range n.State().Interfaces {
		if _, err := n.Cloud().Interface(id).AssignIPv4(cloud.Want{Count: 2}); err != nil {
			t.Fatal(err)
		}
	}

	n.StartAgent(node.APIServerFlag+"="+at, "warm-ips=4", "headroom=0", "add-wait=5s")
	var report trunkline.NodeNetwork
	n.Until("the report names the pod of AWS's daemon", func() error {
		if !server.Get("/apis/trunkline.dev/v1alpha1/nodenetworks", "node1", &report) {
			return errors.New("no report")
		}
		for _, c := range report.Status.Conditions {
			if c.Type == trunkline.ConditionCNIConfigured && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "kube-system/aws-node-x") {
				return nil
			}
		}
		return errors.New("no such condition")
	})
	if got, err := os.ReadFile(aws); err != nil || string(got) != conflist {
		t.Errorf("AWS's configuration is %s (%v)", got, err)
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "net.d", "10-trunkline.conflist")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the configuration of a node that AWS's daemon serves: %v", err)
	}
	for _, call := range n.Calls().Since(0, "") {
		if !strings.HasPrefix(call.Action, "Describe") {
			t.Errorf("beside AWS's daemon the agent called %s", call.Action)
		}
	}

	server.Delete("/api/v1/pods", "kube-system/aws-node-x")
	n.UntilReady()
	n.Until("the runtime uses our configuration", func() error {
		if got, err := os.ReadFile(aws); err != nil || string(got) == conflist {
			return errors.Join(err, errors.New("it is still AWS's"))
		}
		return nil
	})
	p := n.NewPod("p")
	if err := n.Add(p); err != nil {
		t.Fatal(err)
	}

	// It comes again: pods that run keep their addresses, and new ones get none.
	server.Put("/api/v1/pods", awsNodePod("aws-node-y"))
	server.Put("/api/v1/pods", podOnNode("default", "late", nil))
	n.Until("an ADD is refused", func() error {
		late := n.NewPod("late")
		err := n.Add(late)
		if err == nil {
			_ = n.Del(late)
			return errors.New("it was wired")
		}
		if !strings.Contains(err.Error(), "kube-system/aws-node-y") {
			t.Fatalf("%v: does not name the pod", err)
		}
		return nil
	})
	if err := n.Del(p); err != nil {
		t.Errorf("DEL: %v", err)
	}
	// No pod of ours is left: AWS's daemon, which writes its configuration once, gets it back.
	n.Until("the runtime uses AWS's configuration", func() error {
		if got, err := os.ReadFile(aws); err != nil || string(got) != conflist {
			return errors.Join(err, fmt.Errorf("it is %s", got))
		}
		if _, err := os.Stat(aws + ".before-trunkline"); !errors.Is(err, fs.ErrNotExist) { // deleted after it
			return fmt.Errorf("the kept content: %w", err)
		}
		return nil
	})
}
