package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/trunkline/trunkline/lab/daemon"
)

type statusCmd struct {
	output
	Wait time.Duration `help:"Wait up to this long until the lab is up, such as 2m." placeholder:"DURATION"`
}

func (c *statusCmd) Run(s *session) error {
	if c.Wait < 0 {
		return coded{fmt.Errorf("--wait %s: must not be negative", c.Wait), ExitUsage}
	}
	lab, err := s.lab()
	if err != nil {
		return err
	}
	st, now, err := s.labs.healthy(s.ctx, lab, c.Wait)
	if err != nil {
		return err
	}
	if s.console.json {
		err = s.console.writeJSON(struct {
			daemon.Status
			Now health `json:"now"`
		}{st, now})
	} else {
		err = showStatus(s.console.out, st, now)
	}
	if err == nil && st.State != daemon.StateDone {
		err = fmt.Errorf("lab %s is not up: %s", lab, reason(st))
	} else if problem := now.problem(st); err == nil && problem != "" {
		err = fmt.Errorf("lab %s came up, but now %s", lab, problem)
	}
	return err
}

func reason(st daemon.Status) string {
	for _, p := range st.Phases {
		if p.Error != "" {
			return string(p.Phase) + ": " + p.Error
		}
	}
	if st.Error != "" {
		return st.Error
	}
	for _, p := range st.Phases {
		if p.State == daemon.StateRunning {
			return fmt.Sprintf("%s for %s (%s)", p.Phase, inWords(p.Elapsed), p.Detail)
		}
	}
	return string(st.State)
}

// stateInWords describes the result of the last `up`.
func stateInWords(st daemon.Status) string {
	took := inWords(st.Elapsed)
	switch st.State {
	case daemon.StateDone:
		return "up; the last `up` took " + took
	case daemon.StateRunning:
		return "starting for " + took
	case daemon.StateFailed:
		return "not up; the last `up` failed after " + took
	case daemon.StatePending, daemon.StateSkipped:
	}
	return "no `up` has been applied yet"
}

// faultsURL returns the URL of the faults; empty before the embedded EC2 is up.
func faultsURL(at daemon.Endpoints) string {
	if at.Admin == "" {
		return ""
	}
	return at.Admin + "/faults"
}

// showStatus prints a status, and the lab's health, as text.
func showStatus(w io.Writer, st daemon.Status, now health) error {
	fmt.Fprintf(w, "Lab %s: %s", st.Name, stateInWords(st))
	fmt.Fprintf(w, "  (process %d, version %s)\n\n", st.PID, st.Version)
	for _, p := range st.Phases {
		mark := map[daemon.State]string{
			daemon.StateDone: markDone, daemon.StateFailed: markFailed,
			daemon.StateSkipped: markSkipped, daemon.StateRunning: markRunning,
		}[p.State]
		if mark == "" {
			mark = " "
		}
		fmt.Fprintln(w, phaseLine(mark, string(p.Phase), p.Elapsed, p.Detail+p.Error))
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NODE\tSTATE\tREADINESS\tTYPE\tZONE\tADDRESS\tINSTANCE\tKUBERNETES NAME")
	for _, n := range st.Nodes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, readyWord(now.Nodes[n.Name]), n.Type, n.Zone, n.Address, n.InstanceID, n.KubeName)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range st.Nodes {
		if n.Error != "" {
			fmt.Fprintf(w, "%s %s: %s\n", markFailed, n.Name, n.Error)
		}
		if why := now.Nodes[n.Name]; why != "" && why != isReady {
			fmt.Fprintf(w, "%s %s is %s\n", markFailed, n.Name, why)
		}
	}
	fmt.Fprintf(w, "\nKubernetes  %s  %s\nkubeconfig  %s\nEC2         %s\nfaults      %s\n",
		st.Endpoints.Kubernetes, now.API, st.Endpoints.Kubeconfig, st.Endpoints.EC2, faultsURL(st.Endpoints))
	return nil
}

// readyWord is the health of a node in a word.
func readyWord(health string) string {
	word, _, _ := strings.Cut(health, ":")
	return cmp.Or(word, "-")
}
