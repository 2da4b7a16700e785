//go:build lab

package node_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/imagestore"
	"github.com/trunkline/trunkline/lab/node"
)

// store creates an image store with the test's own image.
func store(t *testing.T) string {
	t.Helper()
	c, err := cache.Open(t.TempDir(), t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := imagestore.Recipe{Containerd: flags.Find(t).Containerd, Runtime: "test", Archives: []string{image(t, t.TempDir())}}
	dir, err := r.Make(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// content lists every regular file below dir with its mode, time and a hash.
func content(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		fmt.Fprintf(&out, "%s %s %s %x\n", path, info.Mode(), info.ModTime(), sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func enter(t *testing.T, n *node.Node, script string) string {
	t.Helper()
	argv := append(node.EnterArgs(n.PID()), "sh", "-c", "PATH=/lab/bin:$PATH; "+script)
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestANodeRunsTheImagesOfAStoreWithoutChangingTheStore(t *testing.T) {
	dir := store(t)
	before := content(t, dir)
	stored, err := imagestore.Read(dir)
	if err != nil || stored[pauseImage] == "" {
		t.Fatalf("the store has %v, %v", stored, err)
	}
	c := startControlPlane(t)
	c.config.Parts.Images = dir
	n := c.boot(t)
	if have, err := n.Images(t.Context()); err != nil || !have.Holds(stored, []string{pauseImage}) {
		t.Fatalf("the node has %v, want %v; %v", have, stored, err)
	}
	host := c.config.Instance.Hostname()
	await(t, "the kubelet lists the image", func(ctx context.Context) (bool, error) {
		got, err := c.client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		return err == nil && strings.Contains(fmt.Sprint(got.Status.Images), pauseImage), nil
	})
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), hostPod(host), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "pod runs", func(ctx context.Context) (bool, error) {
		p, err := c.client.CoreV1().Pods("default").Get(ctx, "host", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning, err
	})

	// A container's writes go to its own layer.
	enter(t, n, `root=/proc/$(pgrep -nx pause)/root; chmod 700 $root/pause; touch $root/pause; echo x > $root/x`)
	if after := content(t, dir); after != before {
		t.Errorf("after a container wrote, the store is\n%s\nwas\n%s", after, before)
	}
	// Deleting the image with its blobs and layers in one node does not change the store.
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "host", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	enter(t, n, `for c in $(ctr -n k8s.io tasks ls -q); do ctr -n k8s.io tasks kill -s 9 $c || true; done`)
	await(t, "the node's blobs and layers are deleted", func(context.Context) (bool, error) {
		out := enter(t, n, `for c in $(ctr -n k8s.io containers ls -q); do ctr -n k8s.io containers rm $c >/dev/null 2>&1 || true; done
			for i in $(ctr -n k8s.io images ls -q); do ctr -n k8s.io images rm --sync $i >/dev/null; done
			find /var/lib/containerd/io.containerd.content.v1.content/blobs -type f | wc -l`)
		return out == "0", nil
	})
	if err := n.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if err := c.config.Erase(); err != nil {
		t.Fatal(err)
	}
	if after := content(t, dir); after != before {
		t.Errorf("after the node was erased, the store is\n%s\nwas\n%s", after, before)
	}
}

func TestANodeBootsWithoutImagesIfTheStoreDoesNotExist(t *testing.T) {
	c := startControlPlane(t)
	c.config.Parts.Images = filepath.Join(t.TempDir(), "gone")
	n := c.boot(t)
	if have, err := n.Images(t.Context()); err != nil || len(have) != 0 {
		t.Errorf("it has %v, %v", have, err)
	}
}
