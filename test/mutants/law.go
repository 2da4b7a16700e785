package mutants

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// goal is the part of the mutants that the tests are to notice, in percent. Until all
// targets reach it, each has a minimum.
const goal = 85.0

// minimum is what the report on a target has reached. It only rises.
type minimum struct {
	share float64 // of the mutants that a test can notice, in percent
	open  int     // survivors without an answer
}

// CheckReport returns what is wrong with the report and the answers to it.
func CheckReport(root string) ([]string, error) {
	list, err := readReport(root)
	if err != nil {
		return nil, err
	}
	of, err := readAnswers(root)
	if err != nil {
		return nil, err
	}
	return problems(list, of, minimums(), unmeasured()), nil
}

func problems(list []section, of answers, least map[string]minimum, unmeasured []string) (found []string) {
	survivors := map[string]map[string]bool{}
	for _, s := range list {
		survivors[s.folder] = map[string]bool{}
		for _, v := range s.survivors {
			survivors[s.folder][v.name] = true
		}
		if got := s.caught + len(s.survivors); got != s.all {
			found = append(found, fmt.Sprintf("%s: %d mutants are caught or listed, want %d", s.folder, got, s.all))
		}
		want, known := least[s.folder]
		got := share(s.caught, s.all-s.equivalents(of))
		switch open := s.open(of); {
		case !known:
			found = append(found, fmt.Sprintf("%s has no minimum: enter {%.1f, %d} in test/mutants/minimums.go", s.folder, got, open))
		case got < min(want.share, goal):
			found = append(found, fmt.Sprintf("%s: %d of %d mutants are caught (%.1f %%), want %.1f %%", s.folder, s.caught, s.all-s.equivalents(of), got, min(want.share, goal)))
		case open > want.open:
			found = append(found, fmt.Sprintf("%s: %d survivors have no answer in %s, want at most %d", s.folder, open, AnswersFile, want.open))
		}
	}
	found = append(found, missing(list, unmeasured)...)
	for _, folder := range slices.Sorted(maps.Keys(of)) {
		for _, name := range slices.Sorted(maps.Keys(of[folder])) {
			if survivors[folder] != nil && !survivors[folder][name] || !isTarget(folder) {
				found = append(found, fmt.Sprintf("%s: %s: it is caught, or is no mutant any more: remove its answer from %s", folder, name, AnswersFile))
			}
		}
	}
	return found
}

// missing lists the targets without a section that should have one, and those that have their
// first one.
func missing(list []section, unmeasured []string) (found []string) {
	for _, t := range Targets() {
		has, expected := slices.ContainsFunc(list, func(s section) bool { return s.folder == t.Folder }), !slices.Contains(unmeasured, t.Folder)
		switch {
		case !has && expected:
			found = append(found, fmt.Sprintf("%s has no section in %s: run `go run ./test/mutants/cmd -below %s`", t.Folder, ReportFile, t.Folder))
		case has && !expected:
			found = append(found, t.Folder+" has a section: remove it from unmeasured in test/mutants/minimums.go")
		}
	}
	return found
}

// CheckSample reports whether a sample's share is below the minimums of its targets, beyond
// the chance of the draw.
func CheckSample(drawn []Results) error { return checkSample(drawn, minimums()) }

func checkSample(drawn []Results, least map[string]minimum) error {
	all, noticed, want, variance := 0, 0, 0.0, 0.0
	for _, r := range drawn {
		run, caught := r.Count()
		all, noticed = all+run, noticed+caught
		part := min(least[r.Folder].share, goal) / 100
		want += part * float64(run)
		variance += part * (1 - part) * float64(run)
	}
	if all == 0 {
		return errors.New("no mutant was run in the time of the sample")
	}
	if bound := want - 3*math.Sqrt(variance); float64(noticed) < bound {
		return fmt.Errorf("%d of %d mutants are caught, want %.0f and, in a sample of this size, at least %.0f", noticed, all, want, bound)
	}
	return nil
}
