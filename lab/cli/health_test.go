package cli

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/lab/daemon"
)

// apiServer answers /readyz and the list of nodes, and returns the status of its lab.
func apiServer(t *testing.T, readyz int, node corev1.NodeCondition) (daemon.Status, *httptest.Server) {
	t.Helper()
	st := sampleStatus()
	name := st.Nodes[0].KubeName
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(readyz)
		_, _ = w.Write([]byte("[-]etcd failed")) // the client closes early only if the test has failed
	})
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.NodeList{
			TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"},
			Items: []corev1.Node{{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{node}},
			}},
		})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	st.Endpoints.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: '" + server.URL +
		"'}}]\ncontexts: [{name: a, context: {cluster: a}}]\n"
	if err := os.WriteFile(st.Endpoints.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	st.Phases[2].State = daemon.StateDone // deployed
	return st, server
}

func TestStatusSaysWhatTheAPIServerAnswersNow(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	lost := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown"}
	for _, tc := range []struct {
		name   string
		readyz int
		node   corev1.NodeCondition
		change func(*daemon.Status, *httptest.Server)
		want   string
	}{
		{"all is ready", http.StatusOK, ready, nil, ""},
		{"it is dead", http.StatusOK, ready, func(_ *daemon.Status, s *httptest.Server) { s.Close() }, "its API server is not ready: Get"},
		{"a check of it fails", http.StatusInternalServerError, ready, nil, "its API server is not ready: [-]etcd failed"},
		{"a node is lost", http.StatusOK, lost, nil, "node1 is not ready: NodeStatusUnknown"},
		{
			"a node is not registered", http.StatusOK, ready,
			func(st *daemon.Status, _ *httptest.Server) { st.Nodes[0].KubeName = "other" }, "node1 is not registered",
		},
		{
			"a node is switched off", http.StatusOK, lost,
			func(st *daemon.Status, _ *httptest.Server) { st.Nodes[0].State = daemon.NodeStopped }, "",
		},
		{
			"a node has crashed", http.StatusOK, lost,
			func(st *daemon.Status, _ *httptest.Server) {
				st.Nodes[0].State, st.Nodes[0].Error = daemon.NodeStopped, "node crashed"
			}, "node1 is not ready",
		},
		{
			"no network plugin is deployed", http.StatusOK, lost,
			func(st *daemon.Status, _ *httptest.Server) { st.Phases[2].State = daemon.StateSkipped }, "",
		},
		{
			"it has not started", http.StatusOK, ready,
			func(st *daemon.Status, _ *httptest.Server) { st.Endpoints.Kubeconfig = "" }, "its API server is not ready: not started",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st, server := apiServer(t, tc.readyz, tc.node)
			if tc.change != nil {
				tc.change(&st, server)
			}
			got := askHealth(t.Context(), st).problem(st)
			if !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("problem %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStatusTextOfALabWithADeadAPIServer(t *testing.T) {
	var out bytes.Buffer
	if err := showStatus(&out, sampleStatus(), health{API: "connection refused"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "status-dead", out.String())
}
