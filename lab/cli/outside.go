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

// startOutside runs `workload serve` on the host behind the internet gateway, which
// answers every client with the source address it saw. It does nothing if a server
// already answers. The process carries the lab's mark, so that the sweep ends it with the
// lab.
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
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }() // ends with the server or with this process
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-exited:
			return fmt.Errorf("the outside host's server exited (%w); log: %s", err, log.Name())
		case <-ctx.Done():
			return fmt.Errorf("the outside host's server does not answer at %s: %w", at, ctx.Err())
		case <-tick.C:
		}
		if answers() {
			return nil
		}
	}
}
