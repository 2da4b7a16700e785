package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/edge/link"
	"github.com/trunkline/trunkline/internal/machinery/serial"
)

func TestTheConflistHasTheHighestVersionTheRuntimeTakes(t *testing.T) {
	for _, c := range []struct{ configured, runtime, want string }{
		{"auto", "containerd://1.6.20~ds1", "1.0.0"},
		{"auto", "containerd://1.7.27", "1.0.0"},
		{"auto", "containerd://2.0.1", "1.1.0"},
		{"auto", "containerd://v2.4.2", "1.1.0"},
		{"auto", "cri-o://1.33.0", "1.0.0"},
		{"auto", "", "1.0.0"},
		{"auto", "containerd://", "1.0.0"},
		{"0.4.0", "containerd://2.4.2", "0.4.0"},
	} {
		if got := conflistVersion(c.configured, c.runtime); got != c.want {
			t.Errorf("%s for %q: %s, want %s", c.configured, c.runtime, got, c.want)
		}
	}
}

func defaults(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Load(config.Sources{Flags: map[string]string{"state-dir": t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestTheConflistIsOneLibcniReads(t *testing.T) {
	for _, portmap := range []bool{false, true} {
		raw, err := conflist(defaults(t), "1.0.0", portmap)
		if err != nil {
			t.Fatal(err)
		}
		list, err := libcni.ConfListFromBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{false: 1, true: 2}[portmap]; len(list.Plugins) != want || list.Plugins[0].Network.Type != pluginName {
			t.Errorf("portmap %v: %d plugins, the first is %s", portmap, len(list.Plugins), list.Plugins[0].Network.Type)
		}
	}
}

func TestErrorsCarryTheCodeThatTellsTheRuntimeWhatToDo(t *testing.T) {
	for _, c := range []struct {
		err  error
		code uint
	}{
		{fmt.Errorf("attach: %w", ipam.ErrNodeFull), cnirpc.CodeTryAgain},
		{fmt.Errorf("wire: %w", link.ErrInterfaceExists), cnirpc.CodeInvalidEnv},
		{fmt.Errorf("wire: %w", link.ErrNamespaceGone), cnirpc.CodeUnknownContainer},
		{fmt.Errorf("wire: %w", link.ErrNotNamespace), cnirpc.CodeInvalidNetns},
		{fmt.Errorf("admit: %w", &cnirpc.Error{Code: cnirpc.CodeRefused, Msg: "no"}), cnirpc.CodeRefused},
		{fmt.Errorf("up: %w", link.ErrNotWired), cnirpc.CodeTryAgain},
		{fmt.Errorf("attach: %w", serial.ErrPreempted), cnirpc.CodeTryAgain},
		{context.DeadlineExceeded, cnirpc.CodeTryAgain},
		{errors.New("disk full"), cnirpc.CodeInternal},
	} {
		if got := asError(c.err); got.Code != c.code || got.Msg == "" {
			t.Errorf("%v: %+v, want code %d", c.err, got, c.code)
		}
	}
}

func TestPodsAreReadFromTheRuntimesArguments(t *testing.T) {
	namespace, name, uid, err := podArgs("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u=1")
	if namespace != "shop" || name != "web-1" || uid != "u=1" {
		t.Errorf("%q %q %q", namespace, name, uid)
	}
	if err != nil {
		t.Error(err)
	}
	if a, b, c, err := podArgs(""); a+b+c != "" || err != nil {
		t.Error("something from nothing")
	}
}

// filled is a book with one interface of two addresses.
func filled(t *testing.T, cfg config.Config) *book {
	t.Helper()
	b, err := openBook(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.journal.Close() })
	return b
}

func observe(t *testing.T, b *book) {
	t.Helper()
	seen := ipam.Observed{
		ENI: ipam.ENI{
			ID: "eni-1", Type: vpc.TypeInterface, Primary: true, MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Subnet: "subnet-1",
			SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"), PrimaryIP: netip.MustParseAddr("10.0.0.4"),
		},
		Attached: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")},
	}
	if err := b.change(t.Context(), func(l *ipam.Ledger) ([]ipam.Record, error) {
		rows, _ := l.Observe([]ipam.Observed{seen}, time.Now())
		return rows, nil
	}); err != nil {
		t.Fatal(err)
	}
}

func assign(t *testing.T, b *book, name string) attachment {
	t.Helper()
	owner := ipam.Owner{ContainerID: name, IfName: "eth0", Namespace: "default", Name: name}
	b.mu.Lock()
	lease, rows, err := b.ledger.Assign(owner, time.Now())
	b.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	at := attachment{Owner: owner, Addr: lease.Addr, Table: 254, MTU: 9001, Link: "eni" + name, Stage: wired, Since: time.Now().UTC().Round(0)}
	if err := b.put(at, rows...).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestTheBookIsTheSameAfterARestart(t *testing.T) {
	cfg := defaults(t)
	b := filled(t, cfg)
	observe(t, b)
	one, two := assign(t, b, "one"), assign(t, b, "two")
	if err := b.quarantine(two, time.Now()).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.journal.Close(); err != nil {
		t.Fatal(err)
	}
	again := filled(t, cfg)
	got, ok := again.get(one.Owner.Key())
	if diff := cmp.Diff(one, got, cmpopts.EquateComparable(netip.Addr{}), cmp.AllowUnexported(attachment{})); !ok || diff != "" {
		t.Errorf("attachment (-before +after):\n%s", diff)
	}
	if got, _ := again.get(two.Owner.Key()); got.Stage != deleting {
		t.Errorf("a pod on its way out is %q after a restart", got.Stage)
	}
	_, leases := again.view(time.Now())
	if len(leases) != 1 || leases[0].Addr != one.Addr {
		t.Errorf("leases %v", leases)
	}
	if q := again.ledger.Quarantined(); len(q) != 1 || q[0].Addr != two.Addr {
		t.Errorf("quarantined %v", q)
	}
	if !again.gone(two.Owner.Key(), time.Now()) || again.gone(two.Owner.Key(), time.Now()) {
		t.Error("a link that went is not freed exactly once")
	}
	if again.gone(one.Owner.Key(), time.Now()) {
		t.Error("the address of a wired pod was freed because a link of its name went")
	}
}

// After a crash the plugin asks for the same pod again while the link of the first
// attempt is still on its way out.
func TestAnAddressIsFreedThoughItsPodWasWiredAnewMeanwhile(t *testing.T) {
	b := filled(t, defaults(t))
	observe(t, b)
	first := assign(t, b, "one")
	if err := b.quarantine(first, time.Now()).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := assign(t, b, "one")
	if !b.gone(first.Owner.Key(), time.Now()) {
		t.Error("nobody heard that the first link is gone")
	}
	if q := b.ledger.Quarantined(); len(q) > 0 {
		t.Errorf("quarantined for ever: %v", q)
	}
	if now, ok := b.get(first.Owner.Key()); !ok || now.Addr != second.Addr || now.Stage != wired {
		t.Errorf("the second attachment became %+v, %v", now, ok)
	}
	if _, leases := b.view(time.Now()); len(leases) != 1 || leases[0].Addr != second.Addr {
		t.Errorf("leases %v, want that of the second attachment", leases)
	}
}

// reboot makes the journal of a closed book one of an earlier boot.
func reboot(t *testing.T, cfg config.Config) {
	t.Helper()
	j, _, err := journal.Open(filepath.Join(cfg.StateDir, "journal"), journal.Options{BootID: "an earlier one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Append(t.Context(), journal.Forget("nothing")), j.Close()); err != nil {
		t.Fatal(err)
	}
}

// The first process after a reboot is killed before it has taken the old pods away.
func TestPodsOfAnEarlierBootAreNotThoseOfThisOne(t *testing.T) {
	cfg := defaults(t)
	b := filled(t, cfg)
	observe(t, b)
	at := assign(t, b, "one")
	if err := b.journal.Close(); err != nil {
		t.Fatal(err)
	}
	reboot(t, cfg)
	for n := range 2 {
		b = filled(t, cfg)
		if got, _ := b.get(at.Owner.Key()); got.Stage != deleting {
			t.Errorf("start %d after the reboot: its pod is %q", n+1, got.Stage)
		}
		if q := b.quarantined(); len(q) != 1 || q[0].Addr != at.Addr {
			t.Errorf("start %d after the reboot: in quarantine %v", n+1, q)
		}
		if err := b.journal.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Its ADD was killed: what should hold the pod back may not be in force.
func TestAPodWhoseADDWasInterruptedIsHeldBack(t *testing.T) {
	cfg := defaults(t)
	b := filled(t, cfg)
	observe(t, b)
	at := assign(t, b, "one")
	at.Stage, at.held = adding, true
	if err := errors.Join(b.put(at).Wait(t.Context()), b.journal.Close()); err != nil {
		t.Fatal(err)
	}
	again, _ := filled(t, cfg).get(at.Owner.Key())
	if !again.pod().Held {
		t.Error("it is let out at the next start")
	}
}

func TestABookThatMakesNoSenseStartsEmpty(t *testing.T) {
	cfg := defaults(t)
	j, _, err := journal.Open(filepath.Join(cfg.StateDir, "journal"), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Append(t.Context(), journal.Record{Key: "pod/c/eth0", Value: json.RawMessage(`{"addr":"not an address"}`)}); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	b := filled(t, cfg)
	if n := len(b.attachments()); n != 0 {
		t.Errorf("%d attachments from nonsense", n)
	}
	_ = b.journal.Close()
	_, records, err := journal.Open(filepath.Join(cfg.StateDir, "journal"), journal.Options{})
	if err != nil || len(records) != 0 {
		t.Errorf("the nonsense is still there: %v, %v", records, err)
	}
}

func TestAnIntentStaysUntilItsOutcomeIsTaken(t *testing.T) {
	cfg := defaults(t)
	b := filled(t, cfg)
	i := intents{b.journal}
	if err := errors.Join(
		i.Begin(t.Context(), ec2.Intent{ID: "a", Kind: ec2.Assign, ENI: "eni-1"}),
		i.Begin(t.Context(), ec2.Intent{ID: "b", Kind: ec2.Assign, ENI: "eni-1"}),
		i.Finish(t.Context(), "b", ec2.Outcome{Done: true}),
		b.journal.Close(),
	); err != nil {
		t.Fatal(err)
	}
	again := filled(t, cfg)
	if a := again.open["a"]; a.Outcome != nil || a.Intent.ENI != "eni-1" {
		t.Errorf("unfinished intent %+v", a)
	}
	if b := again.open["b"]; b.Outcome == nil || !b.Outcome.Done {
		t.Errorf("finished intent %+v", b)
	}
}

func TestFilesAreReplacedWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bin", "plugin")
	for _, content := range []string{"one", "two"} {
		if err := replaceFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("%q, %v", got, err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}

func TestWhatAKilledProcessWasReplacingIsTakenAway(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{tempPrefix + "123", "10-trunkline.conflist", "10-other.conflist"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(sweepTemp(dir), sweepTemp(filepath.Join(dir, "nowhere"))); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left %v, %v", entries, err)
	}
}
