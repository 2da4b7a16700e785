package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Books are what several nodes answered; Errors are of those that did not.
type Books struct {
	Books  []introspection.Ledger `json:"books"`
	Errors map[string]string      `json:"errors,omitempty"` // by node
}

// GatherBooks asks the agents of the named nodes, or of all that have one.
func GatherBooks(ctx context.Context, c *kube.Client, nodes []string) (Books, error) {
	if len(nodes) == 0 {
		pods, err := c.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: nameLabel + "=" + agentName})
		if err != nil {
			return Books{}, fmt.Errorf("list agents: %w", err)
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				nodes = append(nodes, p.Spec.NodeName)
			}
		}
	}
	if len(nodes) == 0 {
		return Books{}, fmt.Errorf("no %s pod runs in %s: is Trunkline installed?", agentName, systemNamespace)
	}
	slices.Sort(nodes)
	out := Books{Books: []introspection.Ledger{}}
	for _, n := range slices.Compact(nodes) {
		book, err := ReadBook(ctx, c, n)
		if err != nil {
			if out.Errors == nil {
				out.Errors = map[string]string{}
			}
			out.Errors[n] = err.Error()
			continue
		}
		out.Books = append(out.Books, book)
	}
	return out, nil
}

// OneBook wraps the book of one node.
func OneBook(b introspection.Ledger) Books { return Books{Books: []introspection.Ledger{b}} }

// Setting is a setting of a process, as `show config -o json` writes it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Settings lists a configuration.
func Settings(rows []config.Row) []Setting {
	out := make([]Setting, len(rows))
	for i, r := range rows {
		out[i] = Setting{r.Name, r.Value, r.Origin}
	}
	return out
}

// WriteSettings renders a configuration.
func WriteSettings(w io.Writer, settings []config.Row) {
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range settings {
		rows = append(rows, []string{s.Name, dash(s.Value), s.Origin})
	}
	table(w, rows)
}

// Show is what `trunkline show` is asked for.
type Show string

// Shows.
const (
	ShowAddresses Show = "addresses"
	ShowENIs      Show = "enis"
	ShowPool      Show = "pool"
)

// WriteBooks renders what was asked for; why adds the reasons.
func WriteBooks(w io.Writer, what Show, b Books, why bool) {
	switch what {
	case ShowAddresses:
		writeAddresses(w, b.Books, why)
	case ShowENIs:
		writeENIs(w, b.Books, why)
	case ShowPool:
		writePool(w, b.Books, why)
	}
	for _, n := range slices.Sorted(maps.Keys(b.Errors)) {
		fmt.Fprintf(w, "%s %s: %s\n", markBad, n, b.Errors[n])
	}
}

func writeAddresses(w io.Writer, books []introspection.Ledger, why bool) {
	head := []string{"NODE", "ADDRESS", "STATE", "POD", "ENI", "DEVICE", "SUBNET", "TABLE", "FOR"}
	if why {
		head = append(head, "WHY")
	}
	rows := [][]string{head}
	for _, b := range books {
		for _, e := range b.ENIs {
			for _, a := range e.Addresses {
				row := []string{b.Node, a.Address.String(), a.State, dash(a.Pod), e.ID, fmt.Sprint(e.Device), dash(e.Subnet), fmt.Sprint(e.Table), since(a.Since, b.At)}
				if why {
					row = append(row, a.Why)
				}
				rows = append(rows, row)
			}
		}
	}
	table(w, rows)
}

func writeENIs(w io.Writer, books []introspection.Ledger, why bool) {
	head := []string{"NODE", "ENI", "DEVICE", "STATE", "PRIMARY", "MAC", "SUBNET", "RANGE", "TABLE", "FREE", "ASSIGNED", "OTHER"}
	if why {
		head = append(head, "WHY")
	}
	rows := [][]string{head}
	for _, b := range books {
		for _, e := range b.ENIs {
			free, assigned, other := 0, 0, 0
			for _, a := range e.Addresses {
				switch a.State {
				case "free":
					free++
				case "assigned":
					assigned++
				default:
					other++
				}
			}
			row := []string{b.Node, e.ID, fmt.Sprint(e.Device), e.State, text(e.Primary.IsValid(), e.Primary), dash(e.MAC), dash(e.Subnet), text(e.CIDR.IsValid(), e.CIDR), fmt.Sprint(e.Table), fmt.Sprint(free), fmt.Sprint(assigned), fmt.Sprint(other)}
			if why {
				row = append(row, e.Why)
			}
			rows = append(rows, row)
		}
	}
	table(w, rows)
}

func writePool(w io.Writer, books []introspection.Ledger, why bool) {
	rows := [][]string{{"NODE", "FREE", "ASSIGNED", "COOLING", "WAITING", "TOTAL", "WARM TARGET", "LIMIT", "BRAKE"}}
	for _, b := range books {
		p := b.Pool
		rows = append(rows, []string{
			b.Node, fmt.Sprint(p.Free), fmt.Sprint(p.Assigned), fmt.Sprint(p.Cooling), fmt.Sprint(p.Waiting),
			fmt.Sprint(p.Total), fmt.Sprint(p.WarmTarget), fmt.Sprint(p.Limit), dash(p.Brake),
		})
	}
	table(w, rows)
	if !why {
		return
	}
	for _, b := range books {
		fmt.Fprintf(w, "\n%s: can the next pod have an address? %s\n", b.Node, dash(b.Pool.Why))
		for _, s := range b.Pool.Steps {
			fmt.Fprintf(w, "  next: %s, because %s\n", s.What, s.Why)
		}
	}
}

func dash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}

func text(valid bool, v fmt.Stringer) string {
	if !valid {
		return "-"
	}
	return v.String()
}

func since(t, now time.Time) string {
	if t.IsZero() || now.Before(t) {
		return "-"
	}
	return now.Sub(t).Round(time.Second).String()
}
