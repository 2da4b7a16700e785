package nft

import (
	"context"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// Leave deletes our tables, in one transaction. With pods that still run, what they need
// stays, see ruleset.Leaving. It may be repeated.
func (f *Firewall) Leave(ctx context.Context, pods bool) error {
	err := f.alone(ctx, func() error {
		var changes []nftables.Change
		for _, name := range f.tables {
			have, err := f.conn.Read(name)
			if err != nil {
				return err
			}
			if have == nil {
				continue
			}
			if left, some := ruleset.Leaving(*have); pods && some {
				changes = append(changes, nftables.Diff(left, have)...)
			} else {
				changes = append(changes, nftables.DeleteTable{Table: name})
			}
		}
		if len(changes) == 0 {
			return nil
		}
		return f.conn.Commit(changes...)
	})
	if err != nil {
		return fmt.Errorf("remove nftables: %w", err)
	}
	return nil
}
