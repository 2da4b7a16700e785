//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/daemon"
)

// otherLab is a lab that ran before these tests, and what it was then.
type otherLab struct {
	lab
	was string
}

// others are set by TestMain, before the first test.
var others []otherLab

func TestMain(m *testing.M) {
	flag.Parse()
	others = runningLabs()
	os.Exit(m.Run())
}

// runningLabs returns the labs that answer and are healthy.
func runningLabs() (running []otherLab) {
	dirs, _ := filepath.Glob(filepath.Join(daemon.StateRoot, "*", "daemon.sock")) // the pattern is valid
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		return nil
	}
	for _, socket := range dirs {
		l := lab{name: filepath.Base(filepath.Dir(socket)), bin: bin}
		if was, err := l.identity(); err == nil {
			running = append(running, otherLab{l, was})
		}
	}
	return running
}

// identity returns the daemon and the boots of a lab's nodes. It is an error if the API
// server does not answer or a node is not Ready: `trunkline-lab status` asks both.
func (l lab) identity() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r := l.try(ctx, "status", "-o", "json")
	if r.err != nil {
		return "", fmt.Errorf("%w\n%s", r.err, r)
	}
	var st daemon.Status
	if err := json.Unmarshal([]byte(r.stdout), &st); err != nil {
		return "", err
	}
	out := fmt.Sprintf("daemon %d", st.PID)
	for _, n := range st.Nodes {
		out += fmt.Sprintf(", %s boot %s process %d", n.Name, n.BootID, n.PID)
	}
	return out, nil
}

// A lab that ran before the tests still runs, with the same daemon and nodes, and answers
// through its own API server. This test is the last one: files are run in the order of
// their names.
func TestLabsThatRanBeforeAreUnharmed(t *testing.T) {
	if len(others) == 0 {
		t.Skip("no other lab ran when the tests began: nothing to compare")
	}
	for _, o := range others {
		t.Run(o.name, func(t *testing.T) {
			now, err := o.identity()
			if err != nil {
				t.Fatalf("lab %s was healthy before the tests: %v", o.name, err)
			}
			if now != o.was {
				t.Errorf("lab %s is\n%s\nand was\n%s", o.name, now, o.was)
			}
		})
	}
}
