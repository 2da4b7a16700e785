package faults_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/sim/faults"
)

func TestMetadataIsSlowOrRefusedOrDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := injector(t, faults.Plan{Metadata: &faults.Metadata{Do: faults.Fail, Path: "meta-data/iam/", Latency: faults.Latency{Fixed: faults.Duration(time.Second)}}})
		for path, want := range map[string]int{"meta-data/iam/info": http.StatusServiceUnavailable, "meta-data/mac": 0, "api/token": 0} {
			began := time.Now()
			status, err := i.Metadata(t.Context(), path)
			if err != nil || status != want {
				t.Errorf("%s: %d, %v", path, status, err)
			}
			if took := time.Since(began); (took == time.Second) != (want != 0) {
				t.Errorf("%s took %s", path, took)
			}
		}
		if err := i.Set(faults.Plan{Metadata: &faults.Metadata{Do: faults.Disconnect}}); err != nil {
			t.Fatal(err)
		}
		if status, err := i.Metadata(t.Context(), "meta-data/mac"); status != 0 || !errors.Is(err, faults.ErrNoReply) {
			t.Errorf("a disconnected request: %d, %v", status, err)
		}
		if err := i.Set(faults.Plan{Metadata: &faults.Metadata{Do: faults.Hang}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := i.Metadata(ctx, "meta-data/mac"); !errors.Is(err, faults.ErrNoReply) || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestAFaultOfMetadataThatCannotOccurIsRefused(t *testing.T) {
	for want, m := range map[string]faults.Metadata{
		`do "lose-reply"`: {Do: faults.LoseReply},
		"status is for":   {Do: faults.Hang, Status: 503},
		"status 200":      {Do: faults.Fail, Status: 200},
		"negative":        {Latency: faults.Latency{Fixed: -1}},
	} {
		if err := (faults.Plan{Metadata: &m}).Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
