package daemon

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/lab/imagestore"
	"github.com/trunkline/trunkline/lab/node"
)

// importImages imports the images that nodes lack: nodes concurrently, the images of a node
// in sequence. New nodes start with the images of the image store.
func importImages(ctx context.Context, nodes []*node.Node, want Lab, detail func(string)) error {
	stored := imagestore.Images{}
	if want.ImageStore != "" {
		var err error
		if stored, err = imagestore.Read(want.ImageStore); err != nil {
			return fmt.Errorf("read image store: %w", err)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	var imported atomic.Int32
	for _, n := range nodes {
		g.Go(func() error {
			count, err := importMissing(gctx, n, want.Images, stored)
			imported.Add(count)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	result := fmt.Sprintf("%d images on %d nodes", len(want.Images), len(want.Nodes))
	if n := imported.Load(); n > 0 && want.ImageStore != "" {
		result += fmt.Sprintf(", %d imported", n)
	}
	detail(result)
	return nil
}

// importMissing imports the images of which a node does not have the version in the image
// store, and returns their number.
func importMissing(ctx context.Context, n *node.Node, images []Image, stored imagestore.Images) (imported int32, err error) {
	have := imagestore.Images{}
	if len(stored) > 0 {
		if have, err = n.Images(ctx); err != nil {
			return 0, err
		}
	}
	for _, image := range images {
		if have.Holds(stored, image.Refs) {
			continue
		}
		if err := n.Import(ctx, image.Path); err != nil {
			return imported, err
		}
		imported++
	}
	return imported, nil
}
