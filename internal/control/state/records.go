package state

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

// Keys of the journal, and beginnings of keys.
const (
	keyLedger   = "ledger/"   // + ipam.Record.Key
	keyEndpoint = "endpoint/" // + ID
	keyLastID   = "last-endpoint-id"
	keyAgreed   = "kernel/parts"
	keyNode     = "node"
)

func endpointKey(id endpoint.ID) string { return keyEndpoint + strconv.Itoa(int(id)) }

func endpointRecord(e endpoint.Endpoint) journal.Record { return put(endpointKey(e.ID), e) }

func ledgerRecord(row ipam.Record) journal.Record {
	if row.Drops() {
		return journal.Forget(keyLedger + row.Key())
	}
	return put(keyLedger+row.Key(), row)
}

// put is the record of a plain value, which can always be encoded.
func put(key string, value any) journal.Record {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("journal record %s: %v", key, err))
	}
	return journal.Record{Key: key, Value: raw}
}

func decode(r journal.Record, into any) error { return json.Unmarshal(r.Value, into) }
