// Package release builds the product's image for registries: it compiles the programs for each
// architecture, collects the licence texts of what is linked into them, and writes an OCI image
// layout and archive. Builds are reproducible: the same sources and the same Go give the same
// digest.
//
// It runs go in the checkout and writes to the given directory. lab/image/release/cmd, which
// `make image` runs, calls it.
package release

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/lab/image"
)

// Options of a build.
type Options struct {
	Source  string // root of the checkout
	Out     string // directory; "image" and "image.tar" in it are replaced
	Version string
	Ref     string // of the image, with a tag
	// Architectures as in GOARCH.
	Architectures []string
	// Go is the go command.
	Go string
}

// Result is what Build wrote.
type Result struct {
	Layout, Archive string
	Digest          string
}

// repository is the address that images name as their source.
const repository = "https://github.com/trunkline/trunkline"

// Reference plugins, by the module that pins them (ADR 0022).
const (
	pluginModule    = "deploy/plugins"
	pluginsPackage  = "github.com/containernetworking/plugins"
	pluginsRelease  = pluginsPackage + "/pkg/utils/buildversion.BuildVersion"
	referenceFolder = "reference-plugins"
)

// Build compiles the programs and writes the image.
func Build(ctx context.Context, o Options) (Result, error) {
	work, err := os.MkdirTemp("", "trunkline-image-")
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = os.RemoveAll(work) }() // below the temporary directory
	p := image.Product{Version: o.Version, Source: repository, Programs: map[string]string{}}
	modules := map[string]string{}
	for _, architecture := range o.Architectures {
		dir := filepath.Join(work, architecture)
		if err := o.compile(ctx, architecture, dir); err != nil {
			return Result{}, fmt.Errorf("compile for %s: %w", architecture, err)
		}
		if err := linked(dir, modules); err != nil {
			return Result{}, err
		}
		p.Programs[architecture] = dir
	}
	if p.Notices, err = o.notices(ctx, modules); err != nil {
		return Result{}, fmt.Errorf("collect licences: %w", err)
	}
	out := Result{Layout: filepath.Join(o.Out, "image"), Archive: filepath.Join(o.Out, "image.tar")}
	if err := errors.Join(os.RemoveAll(out.Layout), os.MkdirAll(o.Out, 0o755)); err != nil {
		return Result{}, err
	}
	digest, err := p.WriteLayout(out.Layout, o.Ref)
	if err != nil {
		return Result{}, err
	}
	out.Digest = digest.String()
	return out, image.Pack(out.Layout, out.Archive)
}

// compile builds the programs of one architecture, static and without paths of this machine. The
// levels of the architectures are the lowest, on which every instance type runs.
func (o Options) compile(ctx context.Context, architecture, dir string) error {
	version, err := o.pluginVersion(ctx)
	if err != nil {
		return err
	}
	for _, b := range []struct {
		in, out, stamp string
		packages       []string
	}{
		{".", ".", "main.version=" + o.Version, []string{"./cmd/trunkline", "./cmd/trunkline-cni"}},
		{pluginModule, referenceFolder, pluginsRelease + "=" + version, []string{pluginsPackage + "/plugins/main/loopback", pluginsPackage + "/plugins/meta/portmap"}},
	} {
		out := filepath.Join(dir, b.out)
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
		args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X " + b.stamp, "-o", out + "/"}
		cmd := o.command(ctx, b.in, append(args, b.packages...)...)
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
	}
	return nil
}

func (o Options) command(ctx context.Context, in string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.Go, args...)
	cmd.Dir = filepath.Join(o.Source, in)
	return cmd
}

// pluginVersion returns the release of the reference plugins.
func (o Options) pluginVersion(ctx context.Context) (string, error) {
	out, err := o.command(ctx, pluginModule, "list", "-m", "-f", "{{.Version}}", pluginsPackage).Output()
	return strings.TrimSpace(string(out)), err
}

// linked adds the modules that the programs below a directory have linked, by path@version, with
// the module of the repository that they were built in.
func linked(dir string, modules map[string]string) error {
	for folder, in := range map[string]string{".": ".", referenceFolder: pluginModule} {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() {
				continue
			}
			info, err := buildinfo.ReadFile(filepath.Join(dir, folder, e.Name()))
			if err != nil {
				return fmt.Errorf("read the modules of %s: %w", e.Name(), err)
			}
			for _, m := range info.Deps {
				modules[m.Path+"@"+m.Version] = in
			}
		}
	}
	return nil
}

// licence matches the names of files that have a licence's text or a notice that must go with it.
var licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)([-._].*)?$`)

// notices returns the licence texts of modules, of Go's library and of Trunkline by their paths
// in the image.
func (o Options) notices(ctx context.Context, modules map[string]string) (map[string]string, error) {
	dirs := map[string]string{} // by the folder below /licenses
	for _, in := range []string{".", pluginModule} {
		out, err := o.command(ctx, in, "list", "-m", "-json=Path,Version,Dir", "all").Output()
		if err != nil {
			return nil, fmt.Errorf("list the modules of %s: %w", in, err)
		}
		for list := json.NewDecoder(strings.NewReader(string(out))); ; {
			var m struct{ Path, Version, Dir string }
			if err := list.Decode(&m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if key := m.Path + "@" + m.Version; modules[key] == in {
				dirs[key] = m.Dir
			}
		}
	}
	goRoot, err := o.command(ctx, ".", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	dirs["go"], dirs["trunkline"] = strings.TrimSpace(string(goRoot)), o.Source
	out := map[string]string{}
	for key := range modules {
		if dirs[key] == "" {
			return nil, fmt.Errorf("the source of %s is not known", key)
		}
	}
	for key, dir := range dirs {
		if err := texts(dir, path.Join("/licenses", key), out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// texts adds the licence files of a directory.
func texts(dir, to string, out map[string]string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return e.IsDir() || filepath.Ext(e.Name()) == ".go" || !licence.MatchString(e.Name())
	})
	if len(entries) == 0 {
		return fmt.Errorf("%s has no licence", dir)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		out[path.Join(to, e.Name())] = string(text)
	}
	return nil
}
