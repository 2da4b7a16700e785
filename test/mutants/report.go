package mutants

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The files of the report and of the answers to its survivors, in the checkout.
const (
	ReportFile  = "test/reports/mutants.txt"
	AnswersFile = "test/mutants/answers.txt"
)

// section is the report on one target. A section begins with "== folder: code …", and has a
// line per survivor, each with its answer below it.
type section struct {
	folder, code string
	all, caught  int
	survivors    []survivor
}

type survivor struct {
	name    string
	outcome Outcome
}

const (
	headMark   = "== "
	answerMark = "\t"
	unanswered = "not answered"
	equivalent = "equivalent: " // no test can notice the mutant
	accepted   = "accepted: "   // one could, but is not worth it
)

func preface() string {
	return "Small changes of the source that no test noticed, by package; written by `make mutants`.\n" +
		"The code is that of the package, of its tests and of the packages with tests that are run for\n" +
		"it too (test/mutants/target.go), by its content. \"not reached\": the change makes a difference\n" +
		"in no test.\n"
}

// sectionOf makes the section of a target's results.
func sectionOf(r Results) section {
	s := section{folder: r.Folder, code: r.Code}
	s.all, s.caught = r.Count()
	for _, n := range r.Names {
		if o := r.Outcomes[n.String()]; !o.Notices() {
			s.survivors = append(s.survivors, survivor{n.String(), o})
		}
	}
	return s
}

// answers are the reasons of survivors, by folder and name.
type answers map[string]map[string]string

// readAnswers reads the answers: below the heading of a package, names of mutants in lines of
// their own, and under them, indented, the reason that they share.
func readAnswers(root string) (answers, error) {
	raw, err := os.ReadFile(filepath.Join(root, AnswersFile))
	if err != nil {
		return nil, err
	}
	return parseAnswers(string(raw))
}

func parseAnswers(text string) (answers, error) {
	all, folder, names, answered := answers{}, "", []string(nil), true
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "#") || line == "":
		case strings.HasPrefix(line, headMark):
			folder, names = strings.TrimPrefix(line, headMark), nil
			all[folder] = map[string]string{}
		case folder == "":
			return nil, fmt.Errorf("%s:%d: no package yet; begin with %sFOLDER", AnswersFile, i+1, headMark)
		case strings.HasPrefix(line, answerMark):
			reason := strings.TrimSpace(line)
			if !strings.HasPrefix(reason, equivalent) && !strings.HasPrefix(reason, accepted) {
				return nil, fmt.Errorf("%s:%d: a reason begins with %q or %q", AnswersFile, i+1, equivalent, accepted)
			}
			for _, name := range names {
				all[folder][name] = reason
			}
			answered = true
		default:
			if answered {
				names, answered = nil, false
			}
			names = append(names, line)
		}
	}
	if !answered {
		return nil, fmt.Errorf("%s: %q has no reason", AnswersFile, names)
	}
	return all, nil
}

// equivalents counts the survivors that no test can notice.
func (s section) equivalents(of answers) (n int) {
	for _, v := range s.survivors {
		if strings.HasPrefix(of[s.folder][v.name], equivalent) {
			n++
		}
	}
	return n
}

// open counts the survivors without an answer.
func (s section) open(of answers) (n int) {
	for _, v := range s.survivors {
		if of[s.folder][v.name] == "" {
			n++
		}
	}
	return n
}

// share is the part of mutants that the tests noticed, in percent.
func share(caught, all int) float64 {
	if all == 0 {
		return 100
	}
	return 100 * float64(caught) / float64(all)
}

func (s section) text(of answers) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s: code %s, %d of %d caught (%.1f %%), %d equivalent, %d not answered\n",
		headMark, s.folder, s.code, s.caught, s.all, share(s.caught, s.all), s.equivalents(of), s.open(of))
	for _, v := range s.survivors {
		answer := of[s.folder][v.name]
		if answer == "" {
			answer = unanswered
		}
		fmt.Fprintf(&b, "%s: %s\n%s%s\n", v.name, v.outcome, answerMark, answer)
	}
	return b.String()
}

var headPattern = regexp.MustCompile(`^== (\S+): code (\w+), (\d+) of (\d+) caught`)

// readReport reads the sections of the report; none if there is no report.
func readReport(root string) ([]section, error) {
	raw, err := os.ReadFile(filepath.Join(root, ReportFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseReport(string(raw)), nil
}

func parseReport(text string) (list []section) {
	for _, line := range strings.Split(text, "\n") {
		if head := headPattern.FindStringSubmatch(line); head != nil {
			s := section{folder: head[1], code: head[2]}
			s.caught, _ = strconv.Atoi(head[3]) // the pattern has digits here
			s.all, _ = strconv.Atoi(head[4])
			list = append(list, s)
			continue
		}
		cut := strings.LastIndex(line, ": ")
		if len(list) == 0 || cut < 0 || strings.HasPrefix(line, answerMark) {
			continue
		}
		s := &list[len(list)-1]
		s.survivors = append(s.survivors, survivor{line[:cut], Outcome(line[cut+2:])})
	}
	return list
}

// WriteReport replaces the sections of the given results, and leaves the others.
func WriteReport(root string, results []Results) error {
	list, err := readReport(root)
	if err != nil {
		return err
	}
	of, err := readAnswers(root)
	if err != nil {
		return err
	}
	for _, r := range results {
		list = slices.DeleteFunc(list, func(s section) bool { return s.folder == r.Folder })
		list = append(list, sectionOf(r))
	}
	list = slices.DeleteFunc(list, func(s section) bool { return !isTarget(s.folder) })
	slices.SortFunc(list, func(a, b section) int { return strings.Compare(a.folder, b.folder) })
	text := preface()
	for _, s := range list {
		text += "\n" + s.text(of)
	}
	return os.WriteFile(filepath.Join(root, ReportFile), []byte(text), 0o644)
}

func isTarget(folder string) bool {
	return slices.ContainsFunc(Targets(), func(t Target) bool { return t.Folder == folder })
}

// staleSections lists the sections about other code than that of the checkout.
func staleSections(root string, list []section) (stale []string, err error) {
	for _, t := range Targets() {
		code, err := t.code(root)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list, func(s section) bool { return s.folder == t.Folder && s.code != code }) {
			stale = append(stale, t.Folder)
		}
	}
	return stale, nil
}
