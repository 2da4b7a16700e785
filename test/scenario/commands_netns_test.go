//go:build netns

package scenario

import (
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
// interface, so that it does not depend on EC2's speed which one gives an address.
func settings(flags []string) []string {
	return append([]string{"warm-ips=1", "headroom=0", "max-enis=1"}, flags...)
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
		"add":       add,
		"begin": each(func(_ *testscript.TestScript, s *scenario, p *pod) error {
			go func() { p.done <- s.Add(p.Pod) }()
			return nil
		}),
		"end": each(func(ts *testscript.TestScript, _ *scenario, p *pod) error { return announce(ts, p, <-p.done) }),
		"del": each(func(_ *testscript.TestScript, s *scenario, p *pod) error { return s.Del(p.Pod) }),
		"check": each(func(ts *testscript.TestScript, s *scenario, p *pod) error {
			cni, list := s.CNI()
			return cni.CheckNetworkList(s.Context(), list, p.RT)
		}),
		"ping":    ping,
		"ec2":     plain(ec2),
		"brake":   plain(brake),
		"damage":  plain(damage),
		"inside":  plain(inside),
		"journal": plain(journal),
		"log":     plain(awaitLog),
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
// interface gives it does not depend on how fast EC2 answers.
func add(ts *testscript.TestScript, neg bool, args []string) {
	s := of(ts)
	for n, id := range args {
		if n > 0 {
			s.Until("a free address", func() error {
				text, err := s.table("addresses")
				if err == nil && !strings.Contains(text, " free ") {
					err = fmt.Errorf("none in\n%s", text)
				}
				return err
			})
		}
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

func ping(ts *testscript.TestScript, neg bool, args []string) {
	s := of(ts)
	to, err := netip.ParseAddr(args[1])
	if err != nil {
		to = s.pod(args[1]).Addr
	}
	expect(ts, neg, s.pod(args[0]).Ping(to))
}

// ec2 injects a fault into the embedded EC2.
func ec2(ts *testscript.TestScript, s *scenario, args []string) {
	plan := faults.Plan{}
	count, rest := 1, args[1:]
	if len(rest) > 0 && rest[len(rest)-1] == "always" {
		count, rest = -1, rest[:len(rest)-1]
	}
	switch args[0] {
	case "ok":
	case "throttle":
		plan.Throttle = map[string]faults.Bucket{rest[0]: {Size: 0, Rate: 1e-9}}
	case "fail":
		plan.Calls = []faults.Call{{Action: rest[0], Do: faults.Fail, Code: rest[1], Count: count}}
	case "hang", "hang-after", "lose-reply":
		plan.Calls = []faults.Call{{Action: rest[0], Do: args[0], Count: count}}
	default:
		ts.Fatalf("ec2 has no fault %s", args[0])
	}
	ts.Check(s.Faults().Set(plan))
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

// journal damages the agent's journal by a flipped byte, or removes it.
func journal(ts *testscript.TestScript, s *scenario, args []string) {
	path := filepath.Join(s.Dir, "state", "journal", "log")
	if args[0] == "remove" {
		ts.Check(os.Remove(path))
		return
	}
	raw, err := os.ReadFile(path)
	ts.Check(err)
	raw[len(raw)/2] ^= 0xff
	ts.Check(os.WriteFile(path, raw, 0o600))
}

// awaitLog waits until the agent has logged what matches.
func awaitLog(ts *testscript.TestScript, s *scenario, args []string) {
	pattern, err := regexp.Compile(strings.Join(args, " "))
	ts.Check(err)
	s.Until("the agent logs "+pattern.String(), func() error {
		raw, err := os.ReadFile(filepath.Join(s.Dir, "agent.log"))
		if err == nil && !pattern.Match(raw) {
			err = fmt.Errorf("not logged")
		}
		return err
	})
}
