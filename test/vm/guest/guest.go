// Package guest is what the machine and a virtual machine's first process exchange: the job,
// a file in the guest, and the result, the last line on the guest's second serial port.
// test/vm writes the job, test/vm/init carries it out.
package guest

import (
	"fmt"
	"strings"
)

// Paths in the guest.
const (
	JobFile = "/job.json"
	Console = "/dev/ttyS0" // the kernel's messages and those of init
	Output  = "/dev/ttyS1" // the program's output, then the result
)

// Job is what the guest does.
type Job struct {
	// Modules are the paths of kernel modules, each after those that it depends on.
	Modules []string `json:"modules"`
	// Argv is the program with its arguments.
	Argv []string `json:"argv"`
	// Env are variables, NAME=value, beside those of every program: PATH, HOME and TMPDIR.
	Env []string `json:"env"`
	// Dir is the program's working directory.
	Dir string `json:"dir"`
}

// Result is how a job ended.
type Result struct {
	Code int // exit code of the program; 128 and the signal's number if it was killed
	// Problem is why the program was not started, as of a module that the kernel refuses.
	Problem string
}

// mark begins the line of a result. A line of a program begins with it by intent only.
const mark = "\x1dvm result:"

// Line is the result as a line, which ends with a line feed.
func (r Result) Line() string {
	return fmt.Sprintf("%s %d %s\n", mark, r.Code, strings.ReplaceAll(r.Problem, "\n", "; "))
}

// CutResult reads a line of a result. It may follow output that has no line feed at its end,
// which is returned too.
func CutResult(line string) (output string, r Result, ok bool) {
	output, rest, ok := strings.Cut(line, mark)
	if !ok {
		return line, Result{}, false
	}
	code, problem, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if _, err := fmt.Sscanf(code, "%d", &r.Code); err != nil {
		return line, Result{}, false
	}
	r.Problem = problem
	return output, r, true
}
