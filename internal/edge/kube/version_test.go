package kube_test

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

func TestAnAPIServerIsTooOldByItsMinorVersion(t *testing.T) {
	for server, old := range map[string]bool{
		"v1.29.15-eks-1de2ab1": true, "v1.9.0": true, "v1.30.0-eks-036c24b": false, "v1.34.2": false, "v2.0.0": false, "": false, "unknown": false,
	} {
		if why := kube.TooOld(server); (why != "") != old || old && !strings.HasPrefix(why, "is Kubernetes "+server+", and Trunkline needs 1.30 or newer") {
			t.Errorf("%s: %q, want a reason: %v", server, why, old)
		}
	}
}
