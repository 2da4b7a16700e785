//go:build netns

package scenario

import (
	"errors"
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// free returns nil if the next ADD gets an address at once: one on an interface that is
// set up. It reads the addresses themselves; the pool's row is of the last plan, which may
// be older than the last ADD.
func (s *scenario) free() error {
	var ledger introspection.Ledger
	if err := s.Get(introspection.LedgerPath, &ledger); err != nil {
		return err
	}
	for _, e := range ledger.ENIs {
		for _, a := range e.Addresses {
			if e.State == string(ipam.Ready) && a.State == string(ipam.Free) {
				return nil
			}
		}
	}
	return fmt.Errorf("no address is free: %+v", ledger.ENIs)
}

// settled returns nil if the pool has its free address and nothing is in flight at EC2.
// From then on the pool changes nothing until the next event.
func (s *scenario) settled() error {
	var ledger introspection.Ledger
	if err := s.Get(introspection.LedgerPath, &ledger); err != nil {
		return err
	}
	if steps := ledger.Pool.Steps; len(steps) > 0 {
		return fmt.Errorf("in flight: %+v", steps)
	}
	return s.free()
}

// waiting returns nil if an ADD waits for an address.
func (s *scenario) waiting() error {
	text, err := s.table("waiting")
	if err == nil && strings.Count(text, "\n") < 2 {
		err = errors.New("no ADD waits")
	}
	return err
}
