package workload

import (
	"context"
	"net"
	"testing"
)

// Closing a listener twice is an error. The order of two closes is a race, which many
// stops reproduce.
func TestAStopReturnsNoError(t *testing.T) {
	for i := range 500 {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := listen(ctx, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &server{pod: "web-1"}
		done := make(chan error, 1)
		go func() { done <- s.run(ctx, l) }()
		if i%2 == 0 { // stop half of the servers after, half before they accept connections
			conn, err := net.Dial("tcp", l.http.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatalf("stop %d ended with %v", i, err)
		}
	}
}
