package bench

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/test/node"
)

const (
	addPolicies = 1000 // of the cluster in which a pod is added
	addSpace    = 100  // of each namespace; of the pod's, one in ten selects it
	boundApp    = "bound"
)

// apiServer is the API server of a node, at a loopback address of it.
type apiServer struct {
	*kubetest.Server
	url string
}

// serveAPI starts the API server of a node; it has the Node and a namespace.
func serveAPI(r *run, n *node.Node) *apiServer {
	s := &apiServer{Server: kubetest.New(asTB(r))}
	s.Put(nodesPath, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	s.Put(namespacesPath, &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{corev1.LabelMetadataName: "default"}},
	})
	to, err := url.Parse(s.REST().Host)
	if err != nil {
		r.Fatal(err)
	}
	var l net.Listener
	if err := n.NS.Run(func() (err error) { l, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		r.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	web := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l) // until Close
	}()
	r.Cleanup(func() {
		_ = web.Close() // ends its goroutine
		<-done
	})
	return s
}

// bind creates a pod that is bound to the node.
func (s *apiServer) bind(name string) { s.Put(podsPath, apiPod(name, boundApp, "node1", netip.Addr{})) }

// unbind deletes it.
func (s *apiServer) unbind(name string) { s.Delete(podsPath, "default/"+name) }

// policyAdds compares an ADD under policies with one in a cluster without, on nodes with the same
// API server, in turns.
func policyAdds(r *run, o Options) []Result {
	t := turns{run: r, pods: [2][]*container{containers(r, 2*perRound), containers(r, 2*perRound)}}
	var nodes [2]*node.Node
	for side, label := range []string{"policed", "open"} {
		n := node.New(r, node.Config{Type: "m5.xlarge", Seed: uint64(side + 1)})
		s := serveAPI(r, n)
		for i := range addPolicies * (1 - side) {
			subject := fmt.Sprintf("app-%d", i%9)
			if i%10 == 0 {
				subject = boundApp
			}
			np := policyOf(fmt.Sprintf("policy-%d", i), subject, []networkingv1.NetworkPolicyPeer{addressBlock(peerAddress(i))}, 1000+i%100)
			if i >= addSpace {
				np.Namespace = fmt.Sprintf("other-%d", i/addSpace)
			}
			s.Put(policiesPath, np)
		}
		n.StartAgent("warm-ips=56", "log-level=info", node.APIServerFlag+"="+s.url)
		n.UntilReady()
		t.sides[side] = trunklinePlugin(r, n)
		t.sides[side].label, t.sides[side].pods = label, s
		nodes[side] = n
	}
	var add pairs
	for i := range max(9, o.Rounds) {
		r.Logf("ADD under policies, round %d", i+1)
		for _, n := range nodes {
			rest(n, 2*perRound)
		}
		t.each("ADD", &add)
		if i == 0 {
			mustJudgePods(r, nodes[0], true)
			mustJudgePods(r, nodes[1], false)
		}
		var del pairs
		t.each("DEL", &del)
	}
	result := compared("cni.add_policies.p50_ms", "ms", add, budget{limit: 1.3, ofRatio: true})
	result.note += fmt.Sprintf("; %d policies, %d in the pod's namespace, %d select it; baseline without", addPolicies, addSpace, addSpace/10)
	return []Result{result}
}

// mustJudgePods proves that a node enforces policies, or none.
func mustJudgePods(r *run, n *node.Node, want bool) {
	out, err := exec.Command("ip", "netns", "exec", n.NS.Name, "nft", "list", "table", "inet", "trunkline").CombinedOutput()
	if err != nil || strings.Contains(string(out), "chain policy_in") != want {
		r.Fatalf("policies are enforced, want %v (%v):\n%s", want, err, out)
	}
}
