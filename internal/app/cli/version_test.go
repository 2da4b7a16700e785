package cli

import (
	"strings"
	"testing"
)

func TestTheStatusSaysThatTheAPIServerIsTooOld(t *testing.T) {
	for release, wrong := range map[string]bool{"v1.29.6-eks-1de2ab1": true, "v1.30.0-eks-036c24b": false} {
		s, c := testServer(t)
		s.SetRelease(release)
		status, err := GatherStatus(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Contains(strings.Join(status.Wrong(), "\n"), "API server: is Kubernetes "+release+", and Trunkline needs 1.30 or newer")
		if status.Kubernetes != release || said != wrong {
			t.Errorf("%s: version %q, errors %q", release, status.Kubernetes, status.Wrong())
		}
	}
}
