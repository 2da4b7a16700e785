// Command trunkline-cni is the CNI plugin: it checks the container runtime's call, sends
// it to the node's agent over a unix socket together with the pod's network namespace as
// an open file descriptor, and prints the answer.
//
// It decides nothing and changes nothing in the kernel. A process starts for every ADD
// and DEL, and each import adds to its start: it imports a part of the standard library
// and internal/edge/cnirpc only, which test/laws checks.
package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// version is set by the linker.
var version = "dev"

func main() {
	if len(os.Args) > 1 || os.Getenv("CNI_COMMAND") == "" {
		os.Exit(usage(os.Stdout, os.Stderr, os.Args[1:]))
	}
	p := plugin{env: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, now: time.Now}
	// A signal kills the process, which closes the socket: the agent rolls back.
	os.Exit(p.run())
}

// usage serves an operator at a terminal; container runtimes pass no arguments.
func usage(stdout, stderr io.Writer, args []string) (exit int) {
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-v") {
		fmt.Fprintln(stdout, "trunkline-cni", version)
		return 0
	}
	out := stderr
	if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
		out = stdout
	} else if len(args) > 0 {
		fmt.Fprintf(stderr, "trunkline-cni: unknown argument %q\n\n", args[0])
		exit = 2
	}
	fmt.Fprintf(out, `trunkline-cni %s: CNI plugin of Trunkline.

Container runtimes run it; operators use `+"`trunkline status`"+` instead.
It reads CNI_COMMAND (ADD, DEL, CHECK, STATUS, GC or VERSION) and the other CNI_*
variables, a network configuration on stdin, and prints the result on stdout.

Configuration keys in addition to CNI's own:
  socket           the agent's unix socket             (%s)
  spool            directory of DELs for a later agent (%s)
  addWaitSeconds   how long an ADD waits for the agent (%d)
  delWaitSeconds   how long a DEL waits before it is
                   spooled and succeeds                (%d)

CNI versions: %v
`, version, defaultSocket, defaultSpool, int(defaultAddWait.Seconds()), int(defaultDelWait.Seconds()), supported())
	return exit
}
