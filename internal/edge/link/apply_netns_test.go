//go:build netns

package link

import (
	"context"
	"errors"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Apply carries out the steps that the kernel needs to agree with a desired state, and
// lists what differed. want is called after the kernel was read.
func (h *Host) Apply(ctx context.Context, want func() hostnet.State) (differed []string, err error) {
	for range 3 { // the kernel deletes routes with their address or link
		have, err := h.Read(ctx)
		if err != nil {
			return differed, err
		}
		ops := hostnet.Diff(want(), have)
		for _, op := range ops {
			differed = append(differed, op.Object.String()+": "+op.Why)
			if err := h.Do(ctx, op); err != nil && !errors.Is(err, ErrNoLink) {
				return differed, err
			}
		}
		if len(ops) == 0 {
			break
		}
	}
	return differed, nil
}
