//go:build netns

package scenario

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/sim/faults"
)

// settings of every agent: a small pool, so that few addresses stand in a golden, on one
// interface, so that it does not depend on EC2's speed which one gives an address. An ADD
// waits longer than any back-off that a script can cause.
func settings(flags []string) []string {
	return append([]string{"warm-ips=1", "headroom=0", "max-enis=1", "add-wait=110s"}, flags...)
}

func commands() map[string]func(*testscript.TestScript, bool, []string) {
	each := func(do func(ts *testscript.TestScript, s *scenario, p *pod) error) func(*testscript.TestScript, bool, []string) {
		return func(ts *testscript.TestScript, neg bool, args []string) {
			s := of(ts)
			for _, id := range args {
				expect(ts, neg, do(ts, s, s.pod(id)))
			}
		}
	}
	plain := func(do func(ts *testscript.TestScript, s *scenario, args []string)) func(*testscript.TestScript, bool, []string) {
		return func(ts *testscript.TestScript, neg bool, args []string) {
			if neg {
				ts.Fatalf("the command cannot be negated")
			}
			do(ts, of(ts), args)
		}
	}
	return map[string]func(*testscript.TestScript, bool, []string){
		"agent": plain(func(_ *testscript.TestScript, s *scenario, args []string) {
			s.StartAgent(settings(args)...)
			s.UntilReady()
		}),
		"start":     plain(func(_ *testscript.TestScript, s *scenario, args []string) { s.StartAgent(settings(args)...) }),
		"ready":     plain(func(_ *testscript.TestScript, s *scenario, _ []string) { s.UntilReady() }),
		"crash":     plain(func(_ *testscript.TestScript, s *scenario, _ []string) { s.Kill() }),
		"terminate": plain(func(_ *testscript.TestScript, s *scenario, _ []string) { s.Stop() }),
		"reboot":    plain(func(_ *testscript.TestScript, s *scenario, _ []string) { s.Reboot() }),
		"settle":    plain(func(_ *testscript.TestScript, s *scenario, _ []string) { s.Until("a settled pool", s.settled) }),
		"add":       add,
		"begin": each(func(_ *testscript.TestScript, s *scenario, p *pod) error {
			go func() { p.done <- s.Add(p.Pod) }()
			return nil
		}),
		"waits": plain(func(_ *testscript.TestScript, s *scenario, _ []string) { s.Until("a waiting ADD", s.waiting) }),
		"end":   each(func(ts *testscript.TestScript, _ *scenario, p *pod) error { return announce(ts, p, <-p.done) }),
		"del":   each(func(_ *testscript.TestScript, s *scenario, p *pod) error { return s.Del(p.Pod) }),
		"check": each(func(ts *testscript.TestScript, s *scenario, p *pod) error {
			cni, list := s.CNI()
			return cni.CheckNetworkList(s.Context(), list, p.RT)
		}),
		"ping":    plain(ping),
		"ec2":     plain(ec2),
		"brake":   plain(brake),
		"damage":  plain(damage),
		"inside":  plain(inside),
		"journal": plain(journal),
		"log":     plain(awaitLog),
		"row": plain(func(ts *testscript.TestScript, s *scenario, args []string) {
			s.awaitMatch(ts, "table "+args[0], args[1:], func() (string, error) { return s.table(args[0]) })
		}),
		"table": plain(func(ts *testscript.TestScript, s *scenario, args []string) {
			s.reach(ts, args[1], func() (string, error) { return s.table(args[0]) })
		}),
		"kernel": plain(func(ts *testscript.TestScript, s *scenario, args []string) {
			s.reach(ts, args[0], s.kernel)
		}),
		"chains": plain(func(ts *testscript.TestScript, s *scenario, args []string) {
			s.reach(ts, args[0], s.chains)
		}),
	}
}

// expect fails the script at a result that is not the one wanted. The error is on stderr.
func expect(ts *testscript.TestScript, neg bool, err error) {
	if err != nil {
		fmt.Fprintln(ts.Stderr(), err)
	}
	switch {
	case err != nil && !neg:
		ts.Fatalf("%v", err)
	case err == nil && neg:
		ts.Fatalf("unexpected success")
	}
}

// add adds pods one after the other, each once the pool has an address for it: which
// interface gives it, and how many addresses the pool asks EC2 for, does not depend on how
// fast EC2 answers.
func add(ts *testscript.TestScript, neg bool, args []string) {
	s := of(ts)
	for _, id := range args {
		s.Until("a free address", s.free)
		p := s.pod(id)
		expect(ts, neg, announce(ts, p, s.Add(p.Pod)))
	}
}

// announce sets the variables of a pod that has an address.
func announce(ts *testscript.TestScript, p *pod, err error) error {
	if err != nil {
		return err
	}
	s := of(ts)
	s.added = append(s.added, p)
	ts.Setenv(p.name, p.Addr.String())
	ts.Setenv(p.name+"_link", p.link())
	return p.Run(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err == nil {
			p.mac = eth0.Attrs().HardwareAddr.String()
		}
		return err
	})
}

func ping(_ *testscript.TestScript, s *scenario, args []string) {
	to, err := netip.ParseAddr(args[1])
	if err != nil {
		to = s.pod(args[1]).Addr
	}
	s.Until("an answer", func() error { return s.pod(args[0]).Ping(to) })
}

// ec2 adds a fault to those of the embedded EC2, or removes all.
func ec2(ts *testscript.TestScript, s *scenario, args []string) {
	count, rest := 1, args[1:]
	if len(rest) > 0 && rest[len(rest)-1] == "always" {
		count, rest = -1, rest[:len(rest)-1]
	}
	switch args[0] {
	case "ok":
		s.faults = nil
	case "fail":
		s.faults = append(s.faults, faults.Call{Action: rest[0], Do: faults.Fail, Code: rest[1], Count: count})
	case "hang", "hang-after", "lose-reply":
		s.faults = append(s.faults, faults.Call{Action: rest[0], Do: args[0], Count: count})
	default:
		ts.Fatalf("ec2 has no fault %s", args[0])
	}
	ts.Check(s.Faults().Set(faults.Plan{Calls: s.faults}))
}

func brake(ts *testscript.TestScript, s *scenario, args []string) {
	freeze := map[string]trunkline.Freeze{"none": trunkline.FreezeNone, "release": trunkline.FreezeRelease, "all": trunkline.FreezeAll}
	want, ok := freeze[args[0]]
	if !ok {
		ts.Fatalf("there is no brake %s", args[0])
	}
	s.SetBrake(want)
}

// damage changes the node's kernel from outside.
func damage(ts *testscript.TestScript, s *scenario, args []string) {
	_, err := s.onNode(args...)
	ts.Check(err)
}

// inside changes what is in a pod.
func inside(ts *testscript.TestScript, s *scenario, args []string) {
	_, err := run(s.Context(), s.pod(args[0]).Name, args[1:])
	ts.Check(err)
}

// journal damages the agent's journal by a flipped byte, or removes it. The byte is in the
// first line: in the last one it would be an append that a crash cut off, which is no
// damage.
func journal(ts *testscript.TestScript, s *scenario, args []string) {
	path := filepath.Join(s.Dir, "state", "journal", "log")
	if args[0] == "remove" {
		ts.Check(os.Remove(path))
		return
	}
	raw, err := os.ReadFile(path)
	ts.Check(err)
	raw[bytes.IndexByte(raw, '\n')/2] ^= 0xff
	ts.Check(os.WriteFile(path, raw, 0o600))
}

// awaitLog waits until the agent has logged what matches.
func awaitLog(ts *testscript.TestScript, s *scenario, args []string) {
	s.awaitMatch(ts, "the agent's log", args, func() (string, error) {
		raw, err := os.ReadFile(filepath.Join(s.Dir, "agent.log"))
		return string(raw), err
	})
}

// awaitMatch waits until a text matches.
func (s *scenario) awaitMatch(ts *testscript.TestScript, what string, args []string, read func() (string, error)) {
	pattern, err := regexp.Compile(strings.Join(args, " "))
	ts.Check(err)
	s.Until("a match in "+what, func() error {
		text, err := read()
		if err == nil && !pattern.MatchString(text) {
			err = fmt.Errorf("nothing matches %s", pattern)
		}
		return err
	})
}
