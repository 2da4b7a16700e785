//go:build vm

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// pattern is the variable by which a test starts its own program again, to run tests of the
// package faulty in TestOfAnotherProcess.
const pattern = "TRUNKLINE_VM_FAULTY"

func faulty(run string) Guest { return Guest{Package: "./test/vm/faulty", Tags: "vmguest", Run: run} }

func TestOfAnotherProcess(t *testing.T) {
	if run, set := os.LookupEnv(pattern); set {
		Run(t, faulty(run))
	}
}

// another starts this program again.
func another(run string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestOfAnotherProcess$", "-test.v")
	cmd.Env = append(os.Environ(), pattern+"="+run)
	return bounded(cmd)
}

func TestAFailureAndASkipInTheGuestAreSeenByName(t *testing.T) {
	New(t)
	out, err := another("^Test(Passes|Fails|Skips)$").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Errorf("the process that runs a failing guest: %v, want a failure", err)
	}
	for _, want := range []string{
		"--- FAIL: TestOfAnotherProcess ", "--- PASS: TestOfAnotherProcess/TestPasses ", "--- FAIL: TestOfAnotherProcess/TestFails ",
		"--- FAIL: TestOfAnotherProcess/TestFails/deep ", "--- FAIL: TestOfAnotherProcess/TestFails/deep/deeper ", "the reason of the failure",
		"--- PASS: TestOfAnotherProcess/TestFails/deep/beside ", "--- SKIP: TestOfAnotherProcess/TestSkips ", "the reason of the skip",
		"init:", // the kernel's log
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("output:\n%s", out)
	}
}

func TestAPatternThatMatchesNoTestFails(t *testing.T) {
	New(t)
	if out, err := another("^TestNone$").CombinedOutput(); err == nil || !strings.Contains(string(out), "ran in the guest") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestEachEndOfAGuestHasItsError(t *testing.T) {
	h := New(t)
	for run, isWanted := range map[string]func(error) bool{
		"^TestExits$":           isExit(3),
		"^TestPanicsTheKernel$": func(err error) bool { return errors.Is(err, ErrPanic) },
	} {
		t.Run(run, func(t *testing.T) {
			var output bytes.Buffer
			log, err := h.test(t.Context(), faulty(run), &output)
			if !isWanted(err) {
				t.Errorf("%v\noutput:\n%s\nlog:\n%s", err, &output, log)
			}
			t.Log(err)
		})
	}
}

func isExit(code int) func(error) bool {
	return func(err error) bool {
		var exit *ExitError
		return errors.As(err, &exit) && exit.Code == code
	}
}

func TestAProgramThatCannotBeStartedIsAnErrorOfTheGuest(t *testing.T) {
	log, err := New(t).Boot(t.Context(), Machine{}, "/", []string{"/none"}, &bytes.Buffer{})
	if !errors.Is(err, ErrSetUp) || !strings.Contains(err.Error(), "start /none") {
		t.Errorf("%v\n%s", err, log)
	}
	t.Log(err)
}

func TestAModuleThatTheKernelLacksIsNamed(t *testing.T) {
	_, err := New(t).Boot(t.Context(), Machine{Modules: []string{"veth", "none-such"}}, "/", []string{"/none"}, &bytes.Buffer{})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "no module none_such") {
		t.Error(err)
	}
}

// stopper cancels a context once a text is written.
type stopper struct {
	text bytes.Buffer
	at   string
	stop func()
}

func (s *stopper) Write(b []byte) (int, error) {
	n, err := s.text.Write(b)
	if strings.Contains(s.text.String(), s.at) {
		s.stop()
	}
	return n, err
}

func TestAMachineIsStoppedAtItsTimeLimitAndWithItsContext(t *testing.T) {
	h := New(t)
	limited := faulty("^TestHangs$")
	limited.Machine.Timeout = time.Second
	if log, err := h.test(t.Context(), limited, &bytes.Buffer{}); !errors.Is(err, ErrTimeout) {
		t.Errorf("%v\n%s", err, log)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := &stopper{at: "it hangs\n", stop: cancel}
	binary, err := h.Build(ctx, "test", "-c", "-tags=vmguest", "./test/vm/faulty")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "test")
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	m := Machine{Files: map[string]string{"/test": program}}
	log, err := h.Boot(ctx, m, "/", []string{"/test", "-test.run=^TestHangs$"}, hung)
	if !errors.Is(err, context.Canceled) || !strings.Contains(hung.text.String(), hung.at) {
		t.Errorf("%v\n%s\n%s", err, &hung.text, log)
	}
	if left := children(t, os.Getpid()); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// children returns the child processes of a process, with their programs.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]string{}
	for _, path := range lists {
		list, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(list)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			out[child], _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", child))
		}
	}
	return out
}

func TestAMachineEndsWithAKilledTest(t *testing.T) {
	New(t)
	cmd := another("^TestHangs$")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	qemu := 0
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		for pid, program := range children(t, cmd.Process.Pid) {
			if strings.Contains(filepath.Base(program), "qemu") {
				qemu = pid
			}
		}
		return qemu != 0, nil
	})
	if err != nil {
		t.Errorf("no QEMU was started: %v", err)
	}
	fd, err := unix.PidfdOpen(max(qemu, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
	if ended != 1 || err != nil {
		t.Errorf("QEMU runs on after its test: %d, %v\n%s", ended, err, &output)
	}
}
