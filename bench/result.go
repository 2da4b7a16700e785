package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// Result is one figure. `make bench` writes its JSON, a line each.
type Result struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Baseline is the reference's figure in the same run, nil if there is none; Ratio is
	// the median of the ratios of samples that were taken in pairs, see pairs.
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`

	spread [2]float64 // first and third quartile; equal: one sample
	budget budget
	note   string
}

// budget is the limit of a figure; docs/performance.md lists them. Zero is no budget.
type budget struct {
	limit   float64
	ofRatio bool // the limit is for Ratio
	least   bool // the limit is a minimum
}

func (b budget) String() string {
	if b == (budget{}) {
		return ""
	}
	sign, unit := "≤", ""
	if b.least {
		sign = "≥"
	}
	if b.ofRatio {
		unit = "×"
	}
	return fmt.Sprintf("%s %g%s", sign, b.limit, unit)
}

// within reports whether a result keeps its budget.
func (r Result) within() bool {
	value := r.Value
	if r.budget.ofRatio {
		value = *r.Ratio
	}
	if r.budget.least {
		return value >= r.budget.limit
	}
	return value <= r.budget.limit
}

// single is a figure measured once.
func single(name, unit string, value float64, b budget, note string) Result {
	return Result{Name: name, Value: value, Unit: unit, spread: [2]float64{value, value}, budget: b, note: note}
}

// pairs are samples of ours and of the reference. Those of one index were taken one directly
// after the other.
type pairs struct{ ours, theirs []float64 }

// ratio is the median of the pairs' ratios. What slows the machine down for longer than a
// pair takes is in both samples, and what slows one sample changes one ratio of many.
func (p pairs) ratio() float64 {
	ratios := make([]float64, len(p.ours))
	for i := range ratios {
		ratios[i] = p.ours[i] / p.theirs[i]
	}
	return quantile(ratios, 0.5)
}

// compared is the median of our samples, that of the reference's, and the ratio of the pairs.
func compared(name, unit string, p pairs, b budget) Result {
	value, baseline, ratio := quantile(p.ours, 0.5), quantile(p.theirs, 0.5), p.ratio()
	return Result{
		Name: name, Value: value, Unit: unit, Baseline: &baseline, Ratio: &ratio, budget: b,
		spread: [2]float64{quantile(p.ours, 0.25), quantile(p.ours, 0.75)},
		note:   fmt.Sprintf("median of %d; baseline %.3g–%.3g", len(p.ours), quantile(p.theirs, 0.25), quantile(p.theirs, 0.75)),
	}
}

// quantile is the value below which the share q of the samples lies, interpolated
// linearly between two samples. There must be at least one.
func quantile(samples []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	at := q * float64(len(s)-1)
	low := int(at)
	high := min(low+1, len(s)-1)
	return s[low] + (s[high]-s[low])*(at-float64(low))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// WriteJSON writes one line per result.
func WriteJSON(w io.Writer, results []Result) error {
	enc := json.NewEncoder(w)
	for _, r := range results {
		r.Value = round(r.Value)
		for _, p := range []**float64{&r.Baseline, &r.Ratio} {
			if *p != nil {
				v := round(**p)
				*p = &v
			}
		}
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("write %s: %w", r.Name, err)
		}
	}
	return nil
}

func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// WriteTable writes the results as a table, with spread and budget.
func WriteTable(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tVALUE\tSPREAD\tBASELINE\tRATIO\tBUDGET\t\tNOTE")
	for _, r := range results {
		spread, baseline, ratio, verdict := "", "", "", ""
		if r.spread[0] != r.spread[1] {
			spread = fmt.Sprintf("%.3g–%.3g", r.spread[0], r.spread[1])
		}
		if r.Baseline != nil {
			baseline, ratio = fmt.Sprintf("%.3g", *r.Baseline), fmt.Sprintf("%.2f×", *r.Ratio)
		}
		if r.budget != (budget{}) {
			verdict = map[bool]string{true: "kept", false: "MISSED"}[r.within()]
		}
		fmt.Fprintf(t, "%s\t%.3g %s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, spread, baseline, ratio, r.budget, verdict, r.note)
	}
	return t.Flush()
}
