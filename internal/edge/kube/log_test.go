package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestALostRaceForTheLeaseIsNoError(t *testing.T) {
	lease := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"created by another": {apierrors.NewAlreadyExists(lease, "l"), "level=INFO"},
		"updated by another": {apierrors.NewConflict(lease, "l", errors.New("modified")), "level=INFO"},
		"forbidden":          {apierrors.NewForbidden(lease, "l", errors.New("no")), "level=ERROR"},
		"anything else":      {errors.New("connection refused"), "level=ERROR"},
	} {
		var out bytes.Buffer
		log := ClientLog(slog.New(slog.NewTextHandler(&out, nil))).With("lock", "x")
		log.Error("Error initially creating lease lock", "err", c.err)
		if !strings.Contains(out.String(), c.want) || !strings.Contains(out.String(), "lock=x") {
			t.Errorf("%s: want %s in %s", name, c.want, out.String())
		}
	}
}
