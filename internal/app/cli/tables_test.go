package cli

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

func TestATableOfAnotherNodeIsReadInItsAgentsPod(t *testing.T) {
	var argv []string
	client := execServer(t, func(r *http.Request, write func(stream int, text string)) {
		argv = r.URL.Query()["command"]
		write(1, "NAME\nada\n")
		write(3, `{"metadata":{},"status":"Success"}`)
	})
	agent := systemPod("trunkline-agent-n1", agentName, "n1", "trunkline:v1", true)
	out, err := execute(t.Context(), client, podCommand{namespace: agent.Namespace, pod: agent.Name, argv: TableQuery{Name: "-x", JSON: true}.argv()})
	if err != nil || out.Stdout != "NAME\nada\n" {
		t.Errorf("%q, %v", out.Stdout, err)
	}
	if want := []string{"/trunkline", "show", "table", "-o", "json", "--", "-x"}; !slices.Equal(argv, want) {
		t.Errorf("the command is %q, want %q", argv, want)
	}
}

func TestATableOfANodeWithoutAnAgentIsAnErrorThatNamesTheNode(t *testing.T) {
	client, err := kube.FromREST(kubetest.New(t).REST())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadTable(t.Context(), client, "n1", TableQuery{Name: "endpoints"}); err == nil || !strings.Contains(err.Error(), "no running trunkline-agent pod on node n1") {
		t.Errorf("%v", err)
	}
}
