package bench

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestQuantileInterpolatesBetweenSamples(t *testing.T) {
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.5, 2.5}, {0.25, 1.75}, {1, 4}} {
		if got := quantile([]float64{4, 1, 3, 2}, c.q); got != c.want {
			t.Errorf("quantile %g: %g, want %g", c.q, got, c.want)
		}
	}
	if got := quantile([]float64{7}, 0.99); got != 7 {
		t.Errorf("of one sample: %g", got)
	}
}

func TestBudgetLimitsTheValueOrTheRatio(t *testing.T) {
	for _, c := range []struct {
		name   string
		result Result
		want   string
	}{
		{"faster than allowed", compared("a", "ms", pairs{[]float64{3}, []float64{10}}, budget{limit: 0.35, ofRatio: true}), "kept"},
		{"slower than allowed", compared("a", "ms", pairs{[]float64{4}, []float64{10}}, budget{limit: 0.35, ofRatio: true}), "MISSED"},
		{"a rate that is high enough", compared("a", "1/s", pairs{[]float64{30}, []float64{10}}, budget{limit: 3, ofRatio: true, least: true}), "kept"},
		{"a rate that is too low", compared("a", "1/s", pairs{[]float64{29}, []float64{10}}, budget{limit: 3, ofRatio: true, least: true}), "MISSED"},
		{"too much memory", single("a", "MiB", 61, budget{limit: 60}, ""), "MISSED"},
		{"less time than allowed", single("a", "s", 19, budget{limit: 20}, ""), "kept"},
		{"samples on both sides of the limit", compared("a", "ms", pairs{[]float64{3, 3, 4, 4, 3, 4, 3, 4, 4}, []float64{10, 10, 10, 10, 10, 10, 10, 10, 10}}, budget{limit: 0.35, ofRatio: true}), "inconclusive"},
		{"one slow sample of many", compared("a", "ms", pairs{[]float64{3, 3, 3, 9, 3, 3, 3, 3, 3}, []float64{10, 10, 10, 10, 10, 10, 10, 10, 10}}, budget{limit: 0.35, ofRatio: true}), "kept"},
	} {
		if got := c.result.verdict(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// In the second half the machine is three times slower. That begins within a pair.
func TestASlowerMachineDoesNotChangeTheRatioOfPairs(t *testing.T) {
	p := pairs{[]float64{3, 3, 3, 3, 9, 9, 9}, []float64{9, 9, 9, 27, 27, 27, 27}}
	if got := p.ratio(); got != 1.0/3 {
		t.Errorf("%.3g, want a third", got)
	}
	if value, baseline := quantile(p.ours, 0.5), quantile(p.theirs, 0.5); value/baseline == p.ratio() {
		t.Error("the ratio of the medians is the same: the samples show nothing")
	}
}

// Each side has half of the first calls, and its own containers.
func TestPairsAreTakenInTurns(t *testing.T) {
	var turn turns
	var got pairs
	var order []int
	for range 4 {
		turn.pair(&got, func(side int) float64 { order = append(order, side); return float64(10 * (side + 1)) })
	}
	if want := []int{0, 1, 1, 0, 0, 1, 1, 0}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if !slices.Equal(got.ours, []float64{10, 10, 10, 10}) || !slices.Equal(got.theirs, []float64{20, 20, 20, 20}) {
		t.Errorf("%v", got)
	}
}

func TestJSONIsNullWithoutABaseline(t *testing.T) {
	var out strings.Builder
	results := []Result{
		single("agent.rss_mib", "MiB", 51.19531, budget{}, ""),
		compared("cni.add.p50_ms", "ms", pairs{[]float64{1, 3, 2}, []float64{8, 8, 8}}, budget{}),
	}
	if err := WriteJSON(&out, results); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := `{"name":"agent.rss_mib","value":51.195,"unit":"MiB","baseline":null,"ratio":null}`; lines[0] != want {
		t.Errorf("%s, want %s", lines[0], want)
	}
	var second map[string]any
	if err := json.Unmarshal([]byte(lines[1]), &second); err != nil || second["ratio"] != 0.25 || second["baseline"] != 8.0 {
		t.Errorf("%v, %v", second, err)
	}
}

func TestTheTableShowsTheSpreadOfRounds(t *testing.T) {
	var out strings.Builder
	results := []Result{
		compared("cni.add_during_del.p99_ratio", "×", pairs{[]float64{1, 1.5, 4, 1.2, 1.1}, []float64{2, 3, 2.4, 2.2, 2.7}}, budget{limit: 1.5}),
		single("lab.up_s", "s", 19, budget{limit: 20}, ""),
	}
	if err := WriteTable(&out, results); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if got := strings.Join(strings.Fields(lines[1]), " "); got != "cni.add_during_del.p99_ratio 1.2 × 1.1–1.5 2.4 0.50× (0.50–0.55) ≤ 1.5 kept median of 5; baseline 2.2–2.7" {
		t.Errorf("of rounds: %s", got)
	}
	if got := strings.Join(strings.Fields(lines[2]), " "); got != "lab.up_s 19 s ≤ 20 kept" {
		t.Errorf("of one sample: %s", got)
	}
}

func TestTheFigureOfASimulatedDayIsReadFromTheTestsOutput(t *testing.T) {
	got, err := readDay("=== RUN   " + dayTest + "\n    polling_test.go:35: ec2.idle_reads_per_hour 4.917\n--- PASS: " + dayTest)
	if err != nil || got != 4.917 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readDay("ok  \ttesting: warning: no tests to run"); err == nil {
		t.Error("a test that did not run has a figure")
	}
}

func TestSomeFiguresReplaceTheirLinesAndNoOther(t *testing.T) {
	var file strings.Builder
	old := []Result{single("a", "ms", 1, budget{}, ""), compared("b", "ms", pairs{[]float64{1}, []float64{2}}, budget{})}
	if err := WriteJSON(&file, old); err != nil {
		t.Fatal(err)
	}
	read, err := ReadJSON(strings.NewReader(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	var merged strings.Builder
	if err := WriteJSON(&merged, Merge(read, []Result{single("a", "ms", 3, budget{}, ""), single("c", "ms", 4, budget{}, "")})); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(file.String(), `"value":1,"unit":"ms","baseline":null`, `"value":3,"unit":"ms","baseline":null`, 1) + `{"name":"c","value":4,"unit":"ms","baseline":null,"ratio":null}` + "\n"
	if merged.String() != want {
		t.Errorf("%s, want %s", merged.String(), want)
	}
	if _, err := ReadJSON(strings.NewReader("{")); err == nil {
		t.Error("a damaged file is read")
	}
}
