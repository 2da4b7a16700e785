//go:build lab

package e2e

import (
	"strings"
	"testing"
	"time"
)

func driftIsRepaired(t *testing.T, l lab) {
	n := l.status(t).Nodes[0]
	pod := l.podOn(t, "drifting", n.KubeName)
	for _, damage := range [][]string{
		{"ip", "rule", "flush"},
		{"ip", "route", "del", pod.String()},
		{"nft", "delete", "table", "inet", "trunkline"},
	} {
		before := l.footprint(t, n.Name)
		l.inNode(t, n.Name, damage...)
		if damage[1] == "rule" {
			// Flushing also deletes the kernel's own rules, which the agent does not
			// repair.
			l.inNode(t, n.Name, "ip", "rule", "add", "priority", "32766", "lookup", "main")
			l.inNode(t, n.Name, "ip", "rule", "add", "priority", "32767", "lookup", "default")
		}
		eventually(t, time.Minute, strings.Join(damage, " ")+" is repaired", func(t testing.TB) error {
			after := l.footprint(t, n.Name)
			switch {
			case len(after.To) != len(before.To) || len(after.From) != len(before.From):
				return notYet("rules %v %v, were %v %v", after.To, after.From, before.To, before.From)
			case len(after.Route) != len(before.Route):
				return notYet("routes %v, were %v", after.Route, before.Route)
			}
			tables := l.inNode(t, n.Name, "nft", "list", "tables")
			for _, table := range []string{"table inet trunkline", "table arp trunkline"} {
				if !strings.Contains(tables, table) {
					return notYet("no %s among\n%s", table, tables)
				}
			}
			return nil
		})
	}
}
