package cnirpc

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func FuzzDecodeRequestNeverPanicsAndRoundTrips(f *testing.F) {
	f.Add([]byte(`{"version":1,"minVersion":1,"command":"ADD","config":{"a":[1]},"waitMillis":5}`))
	f.Add([]byte(`{"version":1,"command":"GC","config":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := DecodeRequest(raw)
		if err != nil {
			return
		}
		again, err := json.Marshal(req)
		if err != nil {
			t.Fatalf("encode the decoded request: %v", err)
		}
		second, err := DecodeRequest(again)
		if err != nil {
			t.Fatalf("decode the encoded request: %v", err)
		}
		second.Config, req.Config = nil, nil // spacing may differ
		if diff := cmp.Diff(req, second); diff != "" {
			t.Fatalf("round trip:\n%s", diff)
		}
	})
}
