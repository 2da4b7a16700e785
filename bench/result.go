package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
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
	// interval of Ratio, see pairs.interval.
	interval [2]float64
	budget   budget
	note     string
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

// verdict is whether a result keeps its budget. It is inconclusive if the limit is within the
// interval of the ratio: other samples of the same machine could have kept or missed it.
func (r Result) verdict() string {
	low, high := r.Value, r.Value
	if r.budget.ofRatio {
		low, high = r.interval[0], r.interval[1]
	}
	if r.budget.least {
		low, high = -high, -low
	}
	limit := r.budget.limit
	if r.budget.least {
		limit = -limit
	}
	switch {
	case high <= limit:
		return "kept"
	case low > limit:
		return "MISSED"
	default:
		return "inconclusive"
	}
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
func (p pairs) ratio() float64 { return quantile(p.ratios(), 0.5) }

func (p pairs) ratios() []float64 {
	ratios := make([]float64, len(p.ours))
	for i := range ratios {
		ratios[i] = p.ours[i] / p.theirs[i]
	}
	return ratios
}

// draws is how often interval draws.
const draws = 1000

// interval has the middle 80 % of the ratios if as many pairs are drawn from the same again and
// again, by chance: how far another run could be from this one.
func (p pairs) interval() [2]float64 {
	ratios := p.ratios()
	random := rand.New(rand.NewPCG(1, uint64(len(ratios)))) // the same samples have the same interval
	medians := make([]float64, draws)
	drawn := make([]float64, len(ratios))
	for i := range medians {
		for k := range drawn {
			drawn[k] = ratios[random.IntN(len(ratios))]
		}
		medians[i] = quantile(drawn, 0.5)
	}
	return [2]float64{quantile(medians, 0.1), quantile(medians, 0.9)}
}

// compared is the median of our samples, that of the reference's, and the ratio of the pairs.
func compared(name, unit string, p pairs, b budget) Result {
	value, baseline, ratio := quantile(p.ours, 0.5), quantile(p.theirs, 0.5), p.ratio()
	return Result{
		Name: name, Value: value, Unit: unit, Baseline: &baseline, Ratio: &ratio, budget: b,
		spread: [2]float64{quantile(p.ours, 0.25), quantile(p.ours, 0.75)}, interval: p.interval(),
		note: fmt.Sprintf("median of %d; baseline %.3g–%.3g", len(p.ours), quantile(p.theirs, 0.25), quantile(p.theirs, 0.75)),
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

// ReadJSON reads what WriteJSON has written.
func ReadJSON(r io.Reader) (results []Result, err error) {
	for dec := json.NewDecoder(r); ; {
		var one Result
		if err := dec.Decode(&one); errors.Is(err, io.EOF) {
			return results, nil
		} else if err != nil {
			return nil, err
		}
		results = append(results, one)
	}
}

// Merge returns results in which newer ones replace those of the same names, and others follow.
func Merge(old, newer []Result) []Result {
	merged := slices.Clone(old)
	for _, r := range newer {
		if i := slices.IndexFunc(merged, func(o Result) bool { return o.Name == r.Name }); i >= 0 {
			merged[i] = r
		} else {
			merged = append(merged, r)
		}
	}
	return merged
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
			baseline, ratio = fmt.Sprintf("%.3g", *r.Baseline), fmt.Sprintf("%.2f× (%.2f–%.2f)", *r.Ratio, r.interval[0], r.interval[1])
		}
		if r.budget != (budget{}) {
			verdict = r.verdict()
		}
		fmt.Fprintf(t, "%s\t%.3g %s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Value, r.Unit, spread, baseline, ratio, r.budget, verdict, r.note)
	}
	return t.Flush()
}
