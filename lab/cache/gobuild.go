package cache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/version"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kubernetesVersion is linked into trunkline-kube; nodes report it.
const kubernetesVersion = "v1.37.1"

// toolchain is a Go installation that builds packages of a checkout.
type toolchain struct {
	path    string
	version string // go1.26.8
	source  string // root of the checkout
}

// ErrNoGo is returned if there is no go command.
var ErrNoGo = errors.New("no go command found: install Go 1.26 or newer (https://go.dev/dl) and put it on the PATH")

// oldestGo is the version required by go.mod.
const oldestGo = "go1.26"

// ErrOldGo is returned if the installed Go is older than oldestGo.
var ErrOldGo = errors.New("this Go is too old: install Go 1.26 or newer (https://go.dev/dl) and put it first on the PATH")

// findToolchain returns the installed Go, with which it builds the checkout at source.
func findToolchain(ctx context.Context, source string) (toolchain, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return toolchain{}, ErrNoGo
	}
	t := toolchain{path: path, source: source}
	// The installed version, which builds use, not one that go would download.
	out, err := t.command(ctx, ".", "env", "GOVERSION").Output()
	if err != nil {
		return toolchain{}, fmt.Errorf("query the version of %s: %w", path, withStderr(err))
	}
	t.version = strings.TrimSpace(string(out))
	if version.IsValid(t.version) && version.Compare(t.version, oldestGo) < 0 {
		return toolchain{}, fmt.Errorf("%s is %s: %w", path, t.version, ErrOldGo)
	}
	return t, nil
}

// goBuild is one `go build` of static, reproducible binaries.
type goBuild struct {
	dir      string // module to build in, relative to the checkout
	packages []string
	out      string // file or directory (with a final slash) in the artifact
	ldflags  []string
	tags     string
	stamped  bool // the version is derived from the artifact's key and not part of the key
}

func (b goBuild) args(out string) []string {
	args := []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w " + strings.Join(b.ldflags, " ")}
	if b.tags != "" {
		args = append(args, "-tags", b.tags)
	}
	return append(append(args, "-o", out), b.packages...)
}

// inputs returns the parameters of a build that the key must cover.
func (b goBuild) inputs(tool toolchain) []string {
	return append(b.args(b.out), b.dir, tool.version, target(), "CGO_ENABLED=0")
}

// stamp returns the version of a product built from sources with this key.
func stamp(key string) string { return "dev-" + key }

// target returns the platform of the artifacts: the machine's own.
func target() string { return runtime.GOOS + "/" + runtime.GOARCH }

// referenceVersion is the release of the reference plugins that deploy/plugins pins.
const referenceVersion = "v1.9.1"

// productRecipe builds the content of the product's image. The reference plugins in it
// print their release, by which a node's own are compared with them.
func productRecipe(tool toolchain) recipe {
	const reference = "github.com/containernetworking/plugins/"
	return tool.recipe(Product, []goBuild{
		{dir: ".", packages: []string{"./cmd/trunkline", "./cmd/trunkline-cni"}, out: "./", stamped: true},
		{
			dir: "deploy/plugins", packages: []string{reference + "plugins/main/loopback", reference + "plugins/meta/portmap"}, out: "reference-plugins/",
			ldflags: []string{"-X " + reference + "pkg/utils/buildversion.BuildVersion=" + referenceVersion},
		},
	}, "go.mod", "go.sum", "cmd/trunkline", "cmd/trunkline-cni", "internal", "api", "deploy/plugins/go.mod", "deploy/plugins/go.sum")
}

func programsRecipe(tool toolchain) recipe {
	builds := []goBuild{
		{dir: ".", packages: []string{"./lab/workload/cmd/workload"}, out: "workload"},
		{dir: ".", packages: []string{"./lab/image/cmd/pause"}, out: "pause"},
	}
	return tool.recipe(Programs, builds, "go.mod", "go.sum", "lab/workload", "lab/image/cmd")
}

func pluginsRecipe(tool toolchain) recipe {
	const at = "github.com/containernetworking/plugins/plugins/"
	return tool.recipe(Plugins, []goBuild{{
		dir: "lab/kube", out: "./",
		packages: []string{at + "meta/portmap", at + "main/ptp", at + "main/loopback", at + "ipam/host-local"},
	}}, "lab/kube/go.mod", "lab/kube/go.sum")
}

func coreDNSRecipe(tool toolchain) recipe {
	return tool.recipe(CoreDNS, []goBuild{{
		dir: "lab/kube", packages: []string{"./cmd/coredns"}, out: "coredns",
	}}, "lab/kube/go.mod", "lab/kube/go.sum", "lab/kube/cmd/coredns")
}

func kubeRecipe(tool toolchain) recipe {
	major, minor, _ := strings.Cut(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	const in = "-X k8s.io/component-base/version."
	return tool.recipe(Kube, []goBuild{{
		dir: "lab/kube", packages: []string{"./cmd/trunkline-kube"}, out: "trunkline-kube",
		ldflags: []string{in + "gitVersion=" + kubernetesVersion, in + "gitMajor=" + major, in + "gitMinor=" + minor},
	}}, "lab/kube/go.mod", "lab/kube/go.sum", "lab/kube/cmd/trunkline-kube")
}

// recipe returns the recipe of an artifact that consists of builds; the key covers files.
func (t toolchain) recipe(name string, builds []goBuild, files ...string) recipe {
	return recipe{
		name: name,
		key: func(context.Context) (string, error) {
			h := newHashing(t.source)
			for _, b := range builds {
				h.text(b.inputs(t)...)
			}
			return h.files(files...).key()
		},
		make: func(ctx context.Context, j *job) error {
			for _, b := range builds {
				if err := t.build(ctx, j, b); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// build runs one build into the job's directory and reports each package that was
// compiled.
func (t toolchain) build(ctx context.Context, j *job, b goBuild) error {
	total := t.countPackages(ctx, b)
	if b.stamped {
		b.ldflags = append([]string{"-X main.version=" + stamp(j.key)}, b.ldflags...)
	}
	cmd := t.command(ctx, b.dir, b.args(filepath.Join(j.dir, b.out)+trailing(b.out))...)
	watch := &buildOutput{report: func(compiled int) {
		j.report(Progress{State: Making, Compiled: compiled, Packages: total})
	}}
	cmd.Stdout, cmd.Stderr = watch, watch
	stop := everySecond(func() { watch.reportCount() })
	err := cmd.Run()
	stop()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", strings.Join(b.packages, " "),
			filepath.Join(t.source, b.dir), err, watch.messages())
	}
	return nil
}

// command returns a go command in its own process group, so that cancelling it also
// ends the compilers it started.
func (t toolchain) command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.path, args...)
	cmd.Dir = filepath.Join(t.source, dir)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOTOOLCHAIN=local")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// countPackages returns the number of packages of a build, for the progress report; 0 if
// go list fails.
func (t toolchain) countPackages(ctx context.Context, b goBuild) int {
	out, err := t.command(ctx, b.dir, append([]string{"list", "-deps"}, b.packages...)...).Output()
	if err != nil {
		return 0
	}
	return bytes.Count(out, []byte("\n"))
}

// buildOutput reads the output of `go build -v`: one line per compiled package, and
// messages of the compiler.
type buildOutput struct {
	report func(compiled int)

	mu       sync.Mutex // guards the following fields
	partial  []byte
	compiled int
	other    []string // the last lines that are not package paths
}

func (o *buildOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	o.partial = append(o.partial, p...)
	for {
		line, rest, ok := bytes.Cut(o.partial, []byte("\n"))
		if !ok {
			break
		}
		o.line(string(line))
		o.partial = rest
	}
	o.mu.Unlock()
	return len(p), nil
}

func (o *buildOutput) line(line string) {
	const keep = 40
	isPackage := line != "" && !strings.ContainsAny(line, " \t:#")
	if isPackage {
		o.compiled++
		return
	}
	o.other = append(o.other, line)
	if len(o.other) > keep {
		o.other = o.other[1:]
	}
}

func (o *buildOutput) reportCount() {
	o.mu.Lock()
	n := o.compiled
	o.mu.Unlock()
	o.report(n)
}

func (o *buildOutput) messages() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(append(o.other, string(o.partial)), "\n")
}

// everySecond calls fn every second until stop, which waits for a running call.
func everySecond(fn func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fn()
			}
		}
	}()
	return func() { close(done); <-ended }
}

// trailing returns the final slash of out, by which go build recognizes a directory and
// which filepath.Join removes.
func trailing(out string) string {
	if strings.HasSuffix(out, "/") {
		return "/"
	}
	return ""
}

func withStderr(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || len(exit.Stderr) == 0 {
		return err
	}
	first, _ := bufio.NewReader(bytes.NewReader(exit.Stderr)).ReadString('\n')
	if first == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(first))
}
