package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// child says what the test binary does as a child: it calls Set with that slack and prints the
// slack of each of its threads.
const child = "TIMERSLACK_CHILD"

func TestMain(m *testing.M) {
	if slack, ok := os.LookupEnv(child); ok {
		if err := printSlack(slack); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func printSlack(slack string) error {
	d, err := time.ParseDuration(slack)
	if err == nil {
		err = Set(d, os.Args, os.Environ())
	}
	if err != nil {
		return err
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	fmt.Println(os.Getpid(), strings.Join(os.Args[1:], " "))
	for _, task := range tasks {
		have, err := os.ReadFile(filepath.Join("/proc", task.Name(), "timerslack_ns"))
		if err != nil {
			return err
		}
		fmt.Println(strings.TrimSpace(string(have)))
	}
	return nil
}

// run is the child's process ID and the lines that it prints.
func run(t *testing.T, slack string, env ...string) (pid string, lines []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "some", "arguments")
	cmd.Env = slices.Concat(os.Environ(), env, []string{child + "=" + slack})
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return fmt.Sprint(cmd.Process.Pid), strings.Split(strings.TrimSpace(string(out)), "\n")
}

func TestEachThreadHasTheSlackAndTheProcessItsIDAndArguments(t *testing.T) {
	pid, lines := run(t, "1ms")
	if want := pid + " some arguments"; lines[0] != want {
		t.Errorf("process %q, want %q", lines[0], want)
	}
	if len(lines) < 3 {
		t.Fatalf("%d threads, want the monitor thread beside the main thread", len(lines)-1)
	}
	for _, have := range lines[1:] {
		if have != "1000000" {
			t.Errorf("threads have slack %v ns, want 1000000 each", lines[1:])
			break
		}
	}
}

func TestALargerSlackStays(t *testing.T) {
	if _, lines := run(t, "1ns"); slices.Contains(lines[1:], "1") {
		t.Errorf("threads have slack %v ns", lines[1:])
	}
}

// On a kernel that does not keep the slack the process would execute itself without end.
func TestAProcessExecutesItselfOnce(t *testing.T) {
	if _, lines := run(t, "1ms", mark); slices.Contains(lines[1:], "1000000") {
		t.Errorf("executed again: threads have slack %v ns", lines[1:])
	}
}
