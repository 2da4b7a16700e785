package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/config/defaults"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// DefaultSocket is the default socket of a node's own agent; its debug socket is beside it.
const DefaultSocket = defaults.Socket

// TableQuery selects a table of an agent.
type TableQuery struct {
	Name string // empty: the names of all tables
	JSON bool   // an array in place of aligned text
}

func (q TableQuery) path() string {
	if q.Name == "" {
		return introspection.TablesPath
	}
	path := introspection.TablesPath + "/" + url.PathEscape(q.Name)
	if q.JSON {
		path += "?o=json"
	}
	return path
}

// argv is the command that answers the query inside the agent's container.
func (q TableQuery) argv() []string {
	argv := []string{"/trunkline", "show", "table"}
	if q.JSON {
		argv = append(argv, "-o", "json")
	}
	if q.Name != "" {
		argv = append(argv, "--", q.Name) // a name that begins with a dash is no flag there
	}
	return argv
}

// text is how an answer of the debug socket is printed. The socket lists the names of
// tables as JSON only.
func (q TableQuery) text(answer []byte) (string, error) {
	if q.Name != "" || q.JSON {
		return string(answer), nil
	}
	var names []string
	if err := json.Unmarshal(answer, &names); err != nil {
		return "", fmt.Errorf("read the names of the agent's tables: %w", err)
	}
	return strings.Join(names, "\n") + "\n", nil
}

// ReadLocalTable reads a table of the agent on this node from its debug socket.
func ReadLocalTable(ctx context.Context, socket string, q TableQuery) (string, error) {
	answer, err := askAgent(ctx, socket, http.MethodGet, q.path(), "does it run here? --node queries another one")
	if err != nil {
		return "", err
	}
	return q.text(answer)
}

// ReadTable reads a table of any node's agent through the API server, by running
// `trunkline show table` in the agent's pod.
func ReadTable(ctx context.Context, c *kube.Client, node string, q TableQuery) (string, error) {
	pod, err := agentPod(ctx, c, node)
	if err != nil {
		return "", err
	}
	out, err := execute(ctx, c, podCommand{namespace: pod.Namespace, pod: pod.Name, container: "agent", argv: q.argv()})
	if err != nil {
		return "", fmt.Errorf("query the agent of node %s: %w: %s", node, err, strings.TrimSpace(out.Stderr))
	}
	return out.Stdout, nil
}
