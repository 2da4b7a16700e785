// How many processors its control group may use is of no use to it. To find out, Go
// reads every mount of the node, of which each pod adds some.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command trunkline-cni is the CNI plugin: it checks what the container runtime
// says, hands it to the node's agent over a unix socket together with the pod's
// network namespace as an open descriptor, and prints the answer.
//
// It decides nothing and changes nothing in the kernel. It runs once per ADD and
// DEL, so it imports a part of the standard library and the wire, and no more; a law
// test holds it to that.
package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// version is stamped by the linker.
var version = "dev"

func main() {
	if len(os.Args) > 1 || os.Getenv("CNI_COMMAND") == "" {
		os.Exit(usage(os.Stdout, os.Stderr, os.Args[1:]))
	}
	p := plugin{env: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, now: time.Now}
	// A signal kills the process, which closes the socket: the agent rolls back.
	os.Exit(p.run())
}

// usage answers a person; the runtime passes no arguments.
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

The container runtime runs it; people ask with `+"`trunkline status`"+` instead.
It reads CNI_COMMAND (ADD, DEL, CHECK, STATUS, GC or VERSION) and the other CNI_*
variables, a network configuration on stdin, and prints the result on stdout.

Keys of its configuration beside CNI's own:
  socket           the agent's unix socket             (%s)
  spool            where DELs wait for an agent        (%s)
  addWaitSeconds   how long an ADD waits for the agent (%d)
  delWaitSeconds   how long a DEL waits before it is
                   spooled and succeeds                (%d)

CNI versions: %v
`, version, defaultSocket, defaultSpool, int(defaultAddWait.Seconds()), int(defaultDelWait.Seconds()), supported())
	return exit
}
