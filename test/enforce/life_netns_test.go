//go:build netns

package enforce

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/edge/nft"
)

// life is a node with its agent in another process, which is killed while the policy changes
// under the packets of change.
type life struct {
	*change
	remote    *remote
	r         *rand.Rand
	filter    *nft.Firewall
	endpoints []endpoint.Endpoint
	agent     *process
	closed    [][2]time.Duration // when allowed packets may be lost
	seed      uint64
}

func newLife(t *testing.T) *life {
	t.Helper()
	seed := Seed(t)
	l := &life{change: newChange(t), r: rand.New(rand.NewPCG(seed, 1)), seed: seed}
	l.endpoints = l.Store.Endpoints()
	l.remote = newRemote(t, l.Node, l.server)
	l.remote.barrier = l.barrier
	l.Stop()
	l.Spec.Pods = l.Pods()
	l.Spec.Snapshot = filepath.Join(t.TempDir(), "policies.json") // behind what is in force, as in production
	var err error
	l.filter, err = nft.Open(l.NS.Open(t), slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { l.filter.Close() })
	l.start().untilEnforcing()
	return l
}

// start starts another agent.
func (l *life) start() *process {
	l.T.Helper()
	l.agent = startProcess(l.T, l.Spec)
	return l.agent
}

// pause waits until some packets were sent, a random number of them.
func (l *life) pause(most int) { l.stream.untilSent(l.r.IntN(most)) }

// judgeBy has packets judged by the program that is pinned at a path, or by none. It is not the
// agent's own, so that the programs beside it are not called.
func (l *life) judgeBy(path string) {
	l.T.Helper()
	must(l.T, l.filter.Apply(l.T.Context(), func() ruleset.Ruleset { return l.Spec.Rules(ruleset.Programs{Forward: path}, l.endpoints) }))
}

// layout is the directory of the pins of this layout.
func (l *life) layout() string { return filepath.Join(l.Spec.BPFFS, Dir, "v2") }

// programs is the directory of the pinned programs.
func (l *life) programs() string {
	l.T.Helper()
	found, err := filepath.Glob(filepath.Join(l.layout(), "programs-*", "forward"))
	must(l.T, err)
	if len(found) == 0 {
		return "" // the agent was killed while it made them
	}
	return filepath.Dir(found[0])
}

// replacePrograms has the next agents be of another version, in turn: their programs do the same by
// other instructions.
func (l *life) replacePrograms() {
	if l.Spec.Object == "" {
		l.Spec.Object = OtherObject
	} else {
		l.Spec.Object = ""
	}
}

// tag identifies the instructions of the pinned program that judges; see bpftool-prog(8).
func (l *life) tag() string {
	l.T.Helper()
	program, err := ebpf.LoadPinnedProgram(filepath.Join(l.programs(), "forward"), &ebpf.LoadPinOptions{ReadOnly: true})
	must(l.T, err)
	defer program.Close()
	info, err := program.Info()
	must(l.T, err)
	return info.Tag
}

// replaceLayout leaves the node as an agent with other maps does.
func (l *life) replaceLayout() {
	if from := l.programs(); from != "" {
		earlier := filepath.Join(l.Spec.BPFFS, Dir, "v0")
		must(l.T, os.RemoveAll(earlier))
		must(l.T, os.Rename(l.layout(), earlier))
		l.judgeBy(filepath.Join(earlier, filepath.Base(from), "forward"))
	}
}

// killStarting starts an agent and kills it soon.
func (l *life) killStarting() {
	l.start()
	l.pause(2500)
	l.agent.kill()
}

func (l *life) flushFilters() {
	for _, e := range l.endpoints {
		for _, direction := range []string{"ingress", "egress"} {
			l.ip("netns", "exec", l.NS.Name, "tc", "filter", "del", "dev", e.Link, direction)
		}
	}
}

// deleteQdiscs deletes the qdisc of the filters. The kernel drops what is sent to a link while a
// qdisc is added to it or deleted (dev_deactivate in net/sched/sch_generic.c).
func (l *life) deleteQdiscs() {
	for _, e := range l.endpoints {
		l.ip("netns", "exec", l.NS.Name, "tc", "qdisc", "del", "dev", e.Link, "clsact")
	}
}

func (l *life) flushRules() { l.ip("netns", "exec", l.NS.Name, "nft", "flush", "ruleset") }

// forget is a deliberate error: it removes all that an agent has put into the kernel.
func (l *life) forget() {
	l.judgeBy("")
	l.flushFilters()
}

// end kills the agent, and starts another one after what happens meanwhile.
func (l *life) end(happens func(), loses bool) {
	l.T.Helper()
	l.pause(1000)
	began := now() // before the kill: a packet is stamped some time before it is sent
	l.agent.kill()
	if happens != nil {
		happens()
	}
	l.pause(500)
	l.start().untilEnforcing()
	if loses {
		l.closed = append(l.closed, [2]time.Duration{began, now()})
	}
}

// changePeer has a pod of the other node come or go before some ends: one that the agent writes before its
// end, and one that it may not have taken. Three and the number of kinds of ends have no common factor.
func (l *life) changePeer(end int) {
	l.T.Helper()
	switch end % 3 {
	case 0:
		l.remote.flip()
		l.remote.inForce(l.agent)
	case 1:
		l.remote.flip()
	}
}

// untilCopied waits until the agent has saved the objects of the API server.
func (l *life) untilCopied() {
	l.T.Helper()
	for _, file := range []string{l.Spec.Snapshot, l.Spec.Snapshot + ".peers"} {
		again, timeout := time.NewTicker(10*time.Millisecond), time.After(Timeout)
		defer again.Stop()
		for {
			if _, err := os.Stat(file); err == nil {
				break
			}
			select {
			case <-again.C:
			case <-timeout:
				l.T.Fatalf("the agent has not saved %s", file)
			}
		}
	}
}

// flipping changes the policy every 10 ms until stop is called.
func (l *life) flipping() (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(flipEvery)
		defer tick.Stop()
		for number := int64(1); ; number++ {
			select {
			case <-end:
				return
			case <-tick.C:
				l.Policy(versionOf(number))
			}
		}
	}()
	return func() { close(end); <-done }
}

// result returns how many packets passed that no version allows, and how many were lost that all
// versions allow, without those of times at which the design promises nothing. A packet is lost if
// one of its flow that was sent two rounds later was received: each socket has its own receiver,
// and one of them may be behind the others.
func (l *life) result() (open, lost, passed int, lostAt []string) {
	records, flows := l.stream.all(), len(l.who)
	last := make([]int, flows) // received packet of each flow
	for n, r := range records {
		if r.received != 0 {
			last[n%flows] = n
		}
	}
	for n, r := range records {
		switch {
		case l.may(n) == never && r.received != 0:
			open++
		case l.may(n) == always && r.received != 0:
			passed++
		case l.may(n) == always && n+2*flows < last[n%flows] && !l.closedAt(r.sent):
			lost++
			lostAt = append(lostAt, fmt.Sprintf("%s at %v", l.stream.flows[n%flows].name, r.sent))
		}
	}
	return open, lost, passed, lostAt[:min(len(lostAt), 5)]
}

// Which versions allow a packet.
const (
	never = iota
	sometimes
	always
)

func (l *life) may(number int) int {
	who := l.who[number%len(l.who)]
	a, b := version{number: 0}.allows(who[0], who[1]), version{number: 1}.allows(who[0], who[1])
	switch {
	case a && b:
		return always
	case a || b:
		return sometimes
	}
	return never
}

func (l *life) closedAt(at time.Duration) bool {
	for _, span := range l.closed {
		if span[0] <= at && at <= span[1] {
			return true
		}
	}
	return false
}

func TestNoEndOfAnAgentLeavesAGap(t *testing.T) {
	l := newLife(t)
	connection := l.connect(t)
	stop := l.flipping()
	kinds := []struct {
		what    string
		happens func()
		loses   bool // allowed packets
	}{
		{"killed", nil, false},
		{"killed while it starts", l.killStarting, false},
		{"other programs", l.replacePrograms, false},
		{"other maps", l.replaceLayout, false},
		{"other maps, killed while it starts", func() { l.replaceLayout(); l.killStarting() }, false},
		{"filters flushed", l.flushFilters, false},
		{"qdiscs deleted", l.deleteQdiscs, true},
		{"rules flushed", l.flushRules, true}, // nothing is forwarded without them
	}
	l.untilCopied()
	ends := Sample(endsSampled, endsFull)
	openBefore, lostBefore := 0, 0
	tags, object := map[string]string{l.Spec.Object: l.tag()}, l.Spec.Object
	for n := range ends {
		kind := kinds[n%len(kinds)]
		l.changePeer(n)
		l.end(kind.happens, kind.loses)
		l.remote.inForce(l.agent)
		if tag := l.tag(); tags[l.Spec.Object] == "" && object != l.Spec.Object && tag != tags[object] {
			tags[l.Spec.Object] = tag
		} else if tag != tags[l.Spec.Object] {
			t.Fatalf("end %d, %s: the program that judges has the tag %s; those of objects are %v", n, kind.what, tag, tags)
		}
		l.stream.reach(t, "packets after the agent "+kind.what, 20, l.always...)
		connection.mustAnswer(t, kind.what)
		if open, lost, _, at := l.result(); open > openBefore || lost > lostBefore {
			t.Errorf("end %d, %s: %d packets passed that are always denied, %d were lost that are always allowed: %v", n, kind.what, open-openBefore, lost-lostBefore, at)
			openBefore, lostBefore = open, lost
		}
	}
	stop()
	l.stream.stop()
	open, lost, passed, _ := l.result()
	if len(tags) != 2 {
		t.Errorf("the programs that judged had the tags %v, want two", tags)
	}
	peer := l.remote.result(l.closedAt)
	if peer.open+peer.lost > 0 || peer.allowed == 0 || peer.denied == 0 {
		t.Errorf("%s", peer)
	}
	writeReport(t, "life", ends, "ends of an agent", l.seed, fmt.Sprintf("%d packets: %d always denied passed, %d always allowed were lost, %d passed; %s, which came or went %d times; programs by their tags: %v", len(l.stream.all()), open, lost, passed, peer, len(l.remote.shown)-1, tags))
}

func TestAnAgentThatBeginsWithoutWhatItFoundIsNoticed(t *testing.T) {
	l := newLife(t)
	l.end(l.forget, false)
	l.stream.reach(t, "packets after the restart", 20, l.always...)
	open, _, _, _ := l.result()
	t.Logf("%d packets passed that are always denied", open)
	if open == 0 {
		t.Error("no packet passed although nothing of an earlier agent was left: the test notices nothing")
	}
}

// Without the rules nothing is forwarded, which this end does not declare.
func TestLostPacketsAreNoticed(t *testing.T) {
	l := newLife(t)
	l.end(l.flushRules, false)
	l.stream.reach(t, "packets after the restart", 20, l.always...)
	_, lost, _, at := l.result()
	t.Logf("%d packets were lost: %v", lost, at)
	if lost == 0 {
		t.Error("no packet was lost although nothing was forwarded: the test notices nothing")
	}
}

// process is an agent in a process of its own.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	output *bufio.Scanner
}

const specEnv = "TRUNKLINE_ENFORCE_AGENT"

func startProcess(t testing.TB, spec Spec) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), specEnv+"="+spec.encode(t))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	_, err = p.cmd.StdinPipe() // which ends with this process
	must(t, err)
	p.output = bufio.NewScanner(out)
	must(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// untilEnforcing waits until the agent says that it enforces policies.
func (p *process) untilEnforcing() { p.t.Helper(); p.until(enforcing) }

// until waits until the agent says something.
func (p *process) until(what string) {
	p.t.Helper()
	timer := time.AfterFunc(Timeout, p.kill)
	defer timer.Stop()
	var lines []string
	for p.output.Scan() {
		if p.output.Text() == what {
			return
		}
		lines = append(lines, p.output.Text())
	}
	p.t.Fatalf("the agent ended before it printed %q: %s", what, strings.Join(lines, "\n"))
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // which may have ended
	_ = p.cmd.Wait()
}

// connection is a TCP connection to an echo server.
type connection struct {
	net.Conn
	answers *bufio.Scanner
}

// connect connects client one to a port of the server that it may always reach.
func (l *life) connect(t testing.TB) connection {
	t.Helper()
	l.server.NS.Do(t, func() {
		listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", portAlways))
		must(t, err)
		t.Cleanup(func() { listener.Close() })
		go func() {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				fmt.Fprintln(c, lines.Text())
			}
		}()
	})
	var c connection
	l.client.NS.Do(t, func() {
		var err error
		c.Conn, err = net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", l.server.Address, portAlways), Timeout)
		must(t, err)
	})
	t.Cleanup(func() { c.Close() })
	c.answers = bufio.NewScanner(c)
	return c
}

func (c connection) mustAnswer(t testing.TB, what string) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(Timeout)))
	_, err := fmt.Fprintln(c, "hello")
	if err != nil || !c.answers.Scan() {
		t.Fatalf("after the agent %s a connection ended: %v, %v", what, err, c.answers.Err())
	}
}
