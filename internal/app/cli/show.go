package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/app/cli/render"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Ledgers are the ledgers of several nodes, and the errors of nodes that could not be
// read.
type Ledgers struct {
	Ledgers []introspection.Ledger `json:"books"`
	Errors  map[string]string      `json:"errors,omitempty"` // by node
}

// GatherLedgers reads the ledgers of the named nodes, or of all nodes with an agent.
func GatherLedgers(ctx context.Context, c *kube.Client, nodes []string) (Ledgers, error) {
	if len(nodes) == 0 {
		pods, err := c.Core.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: nameLabel + "=" + agentName})
		if err != nil {
			return Ledgers{}, fmt.Errorf("list agents: %w", err)
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				nodes = append(nodes, p.Spec.NodeName)
			}
		}
	}
	if len(nodes) == 0 {
		return Ledgers{}, fmt.Errorf("no running %s pod in %s: is Trunkline installed?", agentName, systemNamespace)
	}
	slices.Sort(nodes)
	out := Ledgers{Ledgers: []introspection.Ledger{}}
	for _, n := range slices.Compact(nodes) {
		ledger, err := ReadLedger(ctx, c, n)
		if err != nil {
			if out.Errors == nil {
				out.Errors = map[string]string{}
			}
			out.Errors[n] = err.Error()
			continue
		}
		out.Ledgers = append(out.Ledgers, ledger)
	}
	return out, nil
}

// SingleLedger returns the ledger of one node as Ledgers.
func SingleLedger(l introspection.Ledger) Ledgers {
	return Ledgers{Ledgers: []introspection.Ledger{l}}
}

// Setting is a setting of a process in the output of `show config -o json`.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
	// NotServed is, for a variable of AWS's CNI without effect, what is otherwise.
	NotServed string `json:"notServed,omitempty"`
}

// Settings returns the settings of a configuration, and the variables of AWS's CNI that are
// set and have no effect.
func Settings(c config.Config) []Setting {
	var out []Setting
	for _, r := range c.Describe() {
		out = append(out, Setting{Name: r.Name, Value: r.Value, From: r.Origin})
	}
	for _, n := range c.NotServed() {
		out = append(out, Setting{n.Env, n.Value, "environment " + n.Env, n.Means})
	}
	return out
}

// WriteSettings renders a configuration.
func WriteSettings(w io.Writer, c config.Config) {
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range c.Describe() {
		rows = append(rows, []string{s.Name, render.Dash(s.Value), s.Origin})
	}
	render.Table(w, rows)
	for _, n := range c.NotServed() {
		fmt.Fprintf(w, "%s %s\n", markWarning, n)
	}
}

// View is a part of a ledger that `trunkline show` prints.
type View string

// Views.
const (
	ViewAddresses View = "addresses"
	ViewENIs      View = "enis"
	ViewPool      View = "pool"
)

// WriteLedgers renders a view of ledgers; why adds the reasons.
func WriteLedgers(w io.Writer, view View, l Ledgers, why bool) {
	switch view {
	case ViewAddresses:
		writeAddresses(w, l.Ledgers, why)
	case ViewENIs:
		writeENIs(w, l.Ledgers, why)
	case ViewPool:
		writePool(w, l.Ledgers, why)
	}
	for _, ledger := range l.Ledgers {
		writeOutages(w, ledger)
	}
	for _, n := range slices.Sorted(maps.Keys(l.Errors)) {
		fmt.Fprintf(w, "%s %s: %s\n", markBad, n, l.Errors[n])
	}
}

// writeOutages renders the services that do not answer a node, and how old what it knows
// from services is meanwhile.
func writeOutages(w io.Writer, l introspection.Ledger) {
	for _, o := range l.Outages {
		fmt.Fprintf(w, "%s %s: %s\n", markWarning, l.Node, o)
	}
	for _, warning := range l.Warnings {
		fmt.Fprintf(w, "%s %s: %s\n", markWarning, l.Node, warning)
	}
	if len(l.Outages) == 0 || len(l.Facts) == 0 {
		return
	}
	read := make([]string, len(l.Facts))
	for i, f := range l.Facts {
		read[i] = fmt.Sprintf("%s %s ago", f.What, render.Since(f.Read, l.At))
	}
	fmt.Fprintf(w, "  %s: last read: %s\n", l.Node, strings.Join(read, ", "))
}

func writeAddresses(w io.Writer, ledgers []introspection.Ledger, why bool) {
	head := []string{"NODE", "ADDRESS", "STATE", "POD", "ENI", "DEVICE", "SUBNET", "TABLE", "FOR"}
	if why {
		head = append(head, "WHY")
	}
	rows := [][]string{head}
	for _, l := range ledgers {
		add := func(a introspection.Address, eni, device, subnet string, table int) {
			row := []string{l.Node, a.Address.String(), a.State, render.Dash(a.Pod), render.Dash(eni), device, render.Dash(subnet), fmt.Sprint(table), render.Since(a.Since, l.At)}
			if why {
				row = append(row, a.Why)
			}
			rows = append(rows, row)
		}
		for _, e := range l.ENIs {
			for _, a := range e.Addresses {
				add(a, e.ID, fmt.Sprint(e.Device), e.Subnet, e.Table)
			}
		}
		if r := l.PodCIDR; r != nil {
			for _, a := range r.Addresses {
				add(a, "", "-", "", r.Table)
			}
		}
	}
	render.Table(w, rows)
	for _, l := range ledgers {
		if l.PodCIDR != nil {
			fmt.Fprintf(w, "%s: addresses of the pod CIDR %s; free ones are not listed\n", l.Node, text(l.PodCIDR.CIDR.IsValid(), l.PodCIDR.CIDR))
		}
	}
}

func writeENIs(w io.Writer, ledgers []introspection.Ledger, why bool) {
	head := []string{"NODE", "ENI", "DEVICE", "STATE", "PRIMARY", "MAC", "SUBNET", "RANGE", "TABLE", "FREE", "ASSIGNED", "OTHER"}
	if why {
		head = append(head, "WHY")
	}
	rows := [][]string{head}
	for _, l := range ledgers {
		for _, e := range l.ENIs {
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
			row := []string{l.Node, e.ID, fmt.Sprint(e.Device), e.State, text(e.Primary.IsValid(), e.Primary), render.Dash(e.MAC), render.Dash(e.Subnet), text(e.CIDR.IsValid(), e.CIDR), fmt.Sprint(e.Table), fmt.Sprint(free), fmt.Sprint(assigned), fmt.Sprint(other)}
			if why {
				row = append(row, e.Why)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) > 1 {
		render.Table(w, rows)
	}
	for _, l := range ledgers {
		if l.WithoutEC2 != "" {
			fmt.Fprintf(w, "%s: no ENIs: EC2 is %s\n", l.Node, l.WithoutEC2)
		}
	}
}

func writePool(w io.Writer, ledgers []introspection.Ledger, why bool) {
	rows := [][]string{{"NODE", "FREE", "ASSIGNED", "COOLING", "WAITING", "TOTAL", "WARM TARGET", "LIMIT", "BRAKE"}}
	for _, l := range ledgers {
		p := l.Pool
		rows = append(rows, []string{
			l.Node, fmt.Sprint(p.Free), fmt.Sprint(p.Assigned), fmt.Sprint(p.Cooling), fmt.Sprint(p.Waiting),
			fmt.Sprint(p.Total), fmt.Sprint(p.WarmTarget), fmt.Sprint(p.Limit), render.Dash(p.Brake),
		})
	}
	render.Table(w, rows)
	if !why {
		return
	}
	for _, l := range ledgers {
		fmt.Fprintf(w, "\n%s: address available for the next pod: %s\n", l.Node, render.Dash(l.Pool.Why))
		for _, s := range l.Pool.Steps {
			fmt.Fprintf(w, "  next: %s, because %s\n", s.What, s.Why)
		}
	}
}

func text(valid bool, v fmt.Stringer) string {
	if !valid {
		return "-"
	}
	return v.String()
}
