package state_test

import (
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
)

func TestNoADDWaitsAfterARestart(t *testing.T) {
	s, dir := filled(t)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, w := range []state.Waiting{
		{Key: endpoint.Key{ContainerID: "c2", IfName: "eth0"}, Since: since},
		{Key: endpoint.Key{ContainerID: "c1", IfName: "eth0"}, Pod: endpoint.Pod{Namespace: "default", Name: "web"}, Since: since},
	} {
		state.Set(s, s.CNITables().Waiting, w)
	}
	const want = `POD           CONTAINER  SINCE
default/web   c1/eth0    03:04:05
container/c2  c2/eth0    03:04:05
`
	if got := printed(t, s, "waiting"); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
	if left := reopen(t, s, dir).Waiting(); len(left) > 0 {
		t.Errorf("%+v wait in the next process", left)
	}
}
