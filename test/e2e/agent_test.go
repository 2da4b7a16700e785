//go:build lab

package e2e

import (
	"strings"
	"testing"
	"time"
)

func driftIsRepaired(t *testing.T, l lab) {
	n := l.nodes(t)[0]
	pod := n.startPod(t, "drifting")
	for _, damage := range [][]string{
		{"ip", "rule", "flush"},
		{"ip", "route", "del", pod.String()},
		{"nft", "delete", "table", "inet", "trunkline"},
	} {
		before := n.footprint(t)
		n.inNetns(t, damage...)
		if damage[1] == "rule" {
			// Flushing also deletes the kernel's own rules, which the agent does not
			// repair.
			n.inNetns(t, "ip", "rule", "add", "priority", "32766", "lookup", "main")
			n.inNetns(t, "ip", "rule", "add", "priority", "32767", "lookup", "default")
		}
		eventually(t, time.Minute, strings.Join(damage, " ")+" is repaired", func(t testing.TB) error {
			after := n.footprint(t)
			switch {
			case len(after.To) != len(before.To) || len(after.From) != len(before.From):
				return notYet("rules %v %v, were %v %v", after.To, after.From, before.To, before.From)
			case len(after.Route) != len(before.Route):
				return notYet("routes %v, were %v", after.Route, before.Route)
			}
			tables := n.inNetns(t, "nft", "list", "tables")
			for _, table := range []string{"table inet trunkline", "table arp trunkline"} {
				if !strings.Contains(tables, table) {
					return notYet("no %s among\n%s", table, tables)
				}
			}
			return nil
		})
	}
}
