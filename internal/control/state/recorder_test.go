package state

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/journal"
)

// A refused record is written again with the next change. If a change in flight has a newer
// record of its key, the older one must not follow it in the journal.
func TestARefusedRecordIsWrittenAgainAsTheLastChangeInFlightHasIt(t *testing.T) {
	record := func(key, value string) journal.Record { return journal.Record{Key: key, Value: json.RawMessage(value)} }
	r := newRecorder(nil)
	r.refused = map[string]journal.Record{"kept": record("kept", `1`), "changed": record("changed", `1`), "deleted": record("deleted", `1`)}
	r.inFlight = []change{
		{records: []journal.Record{record("changed", `2`), record("other", `1`)}, pending: &journal.Pending{}},
		{records: []journal.Record{record("changed", `3`), {Key: "deleted"}}, pending: &journal.Pending{}},
	}
	want := map[string]string{"kept": "1", "changed": "3", "deleted": ""}
	got := map[string]string{}
	for key, record := range r.latest() {
		got[key] = string(record.Value)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if string(r.refused["changed"].Value) != "1" {
		t.Error("what was refused changed before the changes in flight ended")
	}
}
