package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/node/component"
	"github.com/trunkline/trunkline/lab/workload"
	"github.com/trunkline/trunkline/sim/world"
)

// outsideStart is how long the outside host's server may take to answer.
const outsideStart = 10 * time.Second

// startOutside runs the test program's server on the host behind the internet
// gateway, which tells whoever calls it what source address it saw. One that
// answers is left as it is. It carries the lab's mark, so that it goes with it.
func startOutside(ctx context.Context, rec record, stateDir string) error {
	ctx, cancel := context.WithTimeout(ctx, outsideStart)
	defer cancel()
	inside := []string{"nsenter", "--net=" + netns.Path(daemon.NetNS(rec.Lab.Name, "net")), "--", rec.WorkloadPath}
	at := world.OutsideAddress + ":" + strconv.Itoa(workload.HTTPPort)
	answers := func() bool {
		argv := append(inside[:len(inside):len(inside)], "dial", "http", at, "--timeout", "1s")
		return exec.CommandContext(ctx, argv[0], argv[1:]...).Run() == nil
	}
	if answers() {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(stateDir, "log", "outside-host.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	argv := append(inside[:len(inside):len(inside)], "serve")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), component.Mark(rec.Lab.Name), "POD_NAME=outside-host")
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the outside host's server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the server, or with us
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("the outside host's server ended (%w); log: %s", err, log.Name())
		case <-ctx.Done():
			return fmt.Errorf("the outside host's server does not answer at %s: %w", at, ctx.Err())
		case <-tick.C:
		}
		if answers() {
			return nil
		}
	}
}
