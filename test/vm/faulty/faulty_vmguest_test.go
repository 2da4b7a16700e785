//go:build vmguest

package faulty

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

func TestPasses(t *testing.T) { t.Log("a line of a test that passes") }

func TestFails(t *testing.T) {
	t.Run("deep", func(t *testing.T) {
		t.Run("deeper", func(t *testing.T) { t.Error("the reason of the failure") })
		t.Run("beside", func(*testing.T) {})
	})
}

func TestSkips(t *testing.T) { t.Skip("the reason of the skip") }

func TestExits(*testing.T) { os.Exit(3) }

// A panic on purpose; see kernel, Documentation/admin-guide/sysrq.rst.
func TestPanicsTheKernel(t *testing.T) {
	t.Fatal(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
}

func TestHangs(*testing.T) {
	fmt.Println("it hangs")
	_ = syscall.Pause() // in the kernel: Go's runtime would report a deadlock
}
