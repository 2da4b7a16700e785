// Command cmd writes the product's image for a registry (`make image`): the directory image,
// an OCI image layout, and the same as an archive, image.tar.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/trunkline/trunkline/lab/image/release"
)

func main() {
	o := release.Options{}
	flag.StringVar(&o.Source, "source", ".", "root of the checkout")
	flag.StringVar(&o.Out, "out", "bin", "directory to write to")
	flag.StringVar(&o.Version, "version", "dev", "version of the programs")
	flag.StringVar(&o.Ref, "ref", "", "reference of the image; empty: trunkline.dev/trunkline with the version as its tag")
	flag.StringVar(&o.Go, "go", "go", "go command")
	architectures := flag.String("arch", "amd64,arm64", "architectures, comma separated")
	flag.Parse()
	o.Architectures = strings.Split(*architectures, ",")
	if o.Ref == "" {
		o.Ref = "trunkline.dev/trunkline:" + o.Version
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := release.Build(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stdout, "%s\n%s: OCI archive of %s for %s\n%s: the same as a directory\n", r.Digest, r.Archive, o.Ref, *architectures, r.Layout)
}
