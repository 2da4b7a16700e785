package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

// Prefixes of journal keys, one per room.
const (
	keyLedger = "ipam/"
	keyPod    = "pod/"
	keyIntent = "ec2/"
	keyKernel = "kernel/"
)

// attachment is a pod's interface as the journal keeps it: what wiring and
// unwiring need without asking anybody.
type attachment struct {
	Owner ipam.Owner `json:"owner"`
	Addr  netip.Addr `json:"addr"`
	Table uint32     `json:"table"`
	MTU   int        `json:"mtu"`
	Link  string     `json:"link"`
	Stage stage      `json:"stage"`
	Since time.Time  `json:"since"`
	// Asked is when its ADD came; zero: not known.
	Asked time.Time `json:"asked,omitzero"`
	// Network is the name of its configuration; empty: networkName.
	Network string `json:"network,omitempty"`

	held bool // wired but not let out yet
}

type stage string

const (
	adding   stage = "adding"   // an ADD is at work, or died at it
	wired    stage = "wired"    // the ADD was answered
	deleting stage = "deleting" // DEL was taken; the link may still be there
)

func (t attachment) network() string { return cmp.Or(t.Network, networkName) }

func (t attachment) pod() hostnet.Pod {
	return hostnet.Pod{
		Namespace: t.Owner.Namespace, Name: t.Owner.Name, ContainerID: t.Owner.ContainerID, IfName: t.Owner.IfName,
		Addresses: []netip.Addr{t.Addr}, Table: t.Table, MTU: t.MTU, Link: t.Link, Held: t.held,
	}
}

// book is the ledger and the attachments under one lock, and the journal that
// every change goes to in the order it was made. The lock is never held while
// waiting for the disk.
type book struct {
	journal *journal.Journal

	mu     sync.Mutex
	ledger *ipam.Ledger
	pods   map[ipam.Key]attachment
	open   map[string]ec2.Entry // EC2 intents an earlier process left, by id
	begun  []ipam.Action        // by an earlier process and in flight at EC2; fixed by openBook
	agreed agreement            // of an earlier process and this boot; fixed by openBook
}

// openBook replays the journal. One that is damaged, or makes no sense, leaves an
// empty book: EC2 and the kernel fill it.
func openBook(ctx context.Context, cfg config.Config, log *slog.Logger) (*book, error) {
	j, records, err := openJournal(ctx, filepath.Join(cfg.StateDir, "journal"))
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if j.Found.Damage != nil {
		log.Error("the journal is damaged; rebuilding from the kernel and EC2", "kept", j.Found.SetAside, "error", j.Found.Damage)
	}
	b := &book{journal: j, ledger: ipam.New(poolConfig(cfg).Settings()), pods: map[ipam.Key]attachment{}, open: map[string]ec2.Entry{}}
	if err := b.replay(records); err != nil {
		log.Error("the journal makes no sense; rebuilding from the kernel and EC2", "error", err)
		b.ledger, b.pods, b.open = ipam.New(poolConfig(cfg).Settings()), map[ipam.Key]attachment{}, map[string]ec2.Entry{}
		var forget []journal.Record
		for _, r := range records {
			forget = append(forget, journal.Forget(r.Key))
		}
		if err := j.Append(ctx, forget...); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	rows, others := b.ledger.Restart(time.Now()), []journal.Record(nil)
	if j.Found.Rebooted {
		ended, pods := b.endBoot(log, time.Now())
		rows, others = append(rows, ended...), pods
	}
	b.enqueue(rows, others...) // the first append, see journal.Opened
	b.begun = b.ledger.View(time.Now()).InFlight
	return b, nil
}

// endBoot has the attachments of an earlier boot on their way out: their links died
// with it, and their DELs may never come.
func (b *book) endBoot(log *slog.Logger, now time.Time) (rows []ipam.Record, records []journal.Record) {
	for key, t := range b.pods {
		if t.Stage == deleting {
			continue
		}
		log.Info("pod of an earlier boot", "pod", t.Owner.Pod(), "ip", t.Addr)
		t.Stage, t.Since = deleting, now
		b.pods[key] = t
		rows, records = append(rows, b.ledger.Quarantine(t.Owner, now)...), append(records, podRecord(t))
	}
	b.agreed = agreement{}
	return rows, append(records, journal.Forget(keyKernel+"agreed"))
}

func (b *book) replay(records []journal.Record) error {
	var rows []ipam.Record
	for _, r := range records {
		room, rest, _ := strings.Cut(r.Key, "/")
		var err error
		switch room + "/" {
		case keyLedger:
			var row ipam.Record
			err = json.Unmarshal(r.Value, &row)
			rows = append(rows, row)
		case keyPod:
			var t attachment
			err = json.Unmarshal(r.Value, &t)
			t.held = t.Stage == adding // nobody knows what of its ADD is in force
			b.pods[t.Owner.Key()] = t
		case keyIntent:
			var in ec2.Entry
			err = json.Unmarshal(r.Value, &in)
			b.open[rest] = in
		case keyKernel:
			err = json.Unmarshal(r.Value, &b.agreed)
		} // another version's rooms are left as they are
		if err != nil {
			return fmt.Errorf("record %s: %w", r.Key, err)
		}
	}
	return b.ledger.Replay(rows)
}

// enqueue puts ledger records, and others, in the journal's line. Call it with
// mu held, so that the order on disk is the order of the changes.
func (b *book) enqueue(rows []ipam.Record, others ...journal.Record) *journal.Pending {
	return b.journal.Enqueue(listed(rows, others)...)
}

// enqueueForBoot is enqueue for what no longer holds after a reboot: who has which
// address. It survives the agent, not the machine, and needs no wait for the disk.
func (b *book) enqueueForBoot(rows []ipam.Record, others ...journal.Record) *journal.Pending {
	return b.journal.EnqueueForBoot(listed(rows, others)...)
}

func listed(rows []ipam.Record, others []journal.Record) []journal.Record {
	list := make([]journal.Record, 0, len(rows)+len(others))
	for _, row := range rows {
		rec := journal.Forget(keyLedger + row.Key())
		if !row.Drops() {
			raw, err := json.Marshal(row)
			if err != nil {
				panic(fmt.Sprintf("ledger record %s: %v", row.Key(), err)) // plain values
			}
			rec.Value = raw
		}
		list = append(list, rec)
	}
	return append(list, others...)
}

func podRecord(t attachment) journal.Record {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(fmt.Sprintf("attachment %s: %v", t.Owner.Key(), err)) // plain values
	}
	return journal.Record{Key: podKey(t.Owner.Key()), Value: raw}
}

func podKey(k ipam.Key) string { return keyPod + k.ContainerID + "/" + k.IfName }

// change runs f on the ledger and waits for its records to be on the disk.
func (b *book) change(ctx context.Context, f func(l *ipam.Ledger) ([]ipam.Record, error)) error {
	b.mu.Lock()
	rows, err := f(b.ledger)
	pending := b.enqueue(rows)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return pending.Wait(ctx)
}

// get returns what the journal knows of an attachment.
func (b *book) get(k ipam.Key) (attachment, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.pods[k]
	return t, ok
}

// put records an attachment, with ledger rows that belong to it.
func (b *book) put(t attachment, rows ...ipam.Record) *journal.Pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[t.Owner.Key()] = t
	return b.enqueueForBoot(rows, podRecord(t))
}

// giveBack undoes the assignment of an address that no link was made for, and forgets
// the attachment that was to have it: a later DEL must not find it, for the address may
// be another pod's by then.
func (b *book) giveBack(owner ipam.Owner, now time.Time) *journal.Pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, owner.Key())
	return b.enqueue(b.ledger.Return(owner, now), journal.Forget(podKey(owner.Key())))
}

// quarantine takes an attachment's address away and says its link is to go.
func (b *book) quarantine(t attachment, now time.Time) *journal.Pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Stage, t.Since = deleting, now
	b.pods[t.Owner.Key()] = t
	return b.enqueueForBoot(b.ledger.Quarantine(t.Owner, now), podRecord(t))
}

// gone says that the link of an attachment on its way out is no more: its
// address cools down, the rest is forgotten. A newer attachment of the same key,
// whose ADD came meanwhile, stays as it is.
func (b *book) gone(k ipam.Key, now time.Time) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows := b.ledger.Freed(ipam.Owner{ContainerID: k.ContainerID, IfName: k.IfName}, now)
	var forget []journal.Record
	if t, ok := b.pods[k]; ok && t.Stage == deleting {
		delete(b.pods, k)
		forget = append(forget, journal.Forget(podKey(k)))
	}
	if len(rows) == 0 && len(forget) == 0 {
		return false
	}
	b.enqueueForBoot(rows, forget...)
	return true
}

// quarantined returns what waits for its link to go, by the ledger: of a key that
// was wired anew the attachments tell no more.
func (b *book) quarantined() []ipam.Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.Quarantined()
}

// attachments returns them all, in a stable order.
func (b *book) attachments() []attachment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.pods), func(x, y attachment) int { return x.Addr.Compare(y.Addr) })
}

// others returns the attachments beside t that have its link's name.
func (b *book) others(t attachment) []attachment {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []attachment
	for key, other := range b.pods {
		if other.Link == t.Link && key != t.Owner.Key() {
			list = append(list, other)
		}
	}
	return list
}

func (b *book) view(now time.Time) (ipam.View, []ipam.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.View(now), b.ledger.Leases()
}

// intents is the journal as the EC2 executor sees it. An outcome stays until the
// ledger has taken it.
type intents struct{ j *journal.Journal }

// Begin implements ec2.Journal.
func (i intents) Begin(ctx context.Context, in ec2.Intent) error {
	return i.put(ctx, in.ID, ec2.Entry{Intent: in})
}

// Finish implements ec2.Journal.
func (i intents) Finish(ctx context.Context, id string, out ec2.Outcome) error {
	return i.put(ctx, id, ec2.Entry{Intent: ec2.Intent{ID: id}, Outcome: &out})
}

func (i intents) put(ctx context.Context, id string, v ec2.Entry) error {
	rec, err := journal.Put(keyIntent+id, v)
	if err != nil {
		return err
	}
	return i.j.Append(ctx, rec)
}

// poolConfig is the part of the configuration that is the planner's.
func poolConfig(cfg config.Config) ipam.Config {
	c := ipam.DefaultConfig()
	c.WarmIPs, c.Headroom, c.WarmENIs, c.MinIPs, c.MaxENIs = cfg.WarmIPs, cfg.Headroom, cfg.WarmENIs, cfg.MinIPs, cfg.MaxENIs
	c.CoolDown, c.IdleAfter, c.ReleaseEvery = cfg.CoolDown, cfg.IdleAfter, cfg.ReleaseEvery
	for _, r := range cfg.NodeName {
		c.Seed = c.Seed*31 + uint64(r)
	}
	return c
}
