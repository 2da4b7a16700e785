package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// policies are the kinds of network policies of a cluster, with their number. A user may not
// be permitted to read all of them: then the reason is one of the list.
func policies(ctx context.Context, c *kube.Client) []string {
	found, err := kube.Policies(ctx, c)
	if err != nil {
		found = append(found, "an unknown number, because of: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return found
}

// writePolicies warns that policies are not enforced.
func writePolicies(w io.Writer, found []string) {
	if len(found) > 0 {
		fmt.Fprintf(w, "%s Policies    not enforced: %s. Trunkline enforces none in this version\n", markWarning, strings.Join(found, ", "))
	}
}
