package controller

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestTheControllerLogsThatTheAPIServerIsTooOld(t *testing.T) {
	for release, want := range map[string]string{
		"v1.29.6-eks-1de2ab1": "level=ERROR msg=\"the API server is Kubernetes v1.29.6-eks-1de2ab1, and Trunkline needs 1.30 or newer",
		"v1.30.0":             "",
	} {
		r := newRig(t)
		r.SetRelease(release)
		var log bytes.Buffer
		checkVersion(t.Context(), Options{Client: r.opts.Client, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if got := log.String(); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: logged %q, want %q", release, got, want)
		}
	}
}
