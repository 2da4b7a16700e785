package laws

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// text is one piece of a file that is matched against the list.
type text struct {
	line int
	body string // as it is written
	name bool   // an identifier
}

// textsOf returns the identifiers, comments and strings of a Go file, and the lines
// of any other.
func textsOf(path string, source []byte) (list []text) {
	if !strings.HasSuffix(path, ".go") {
		for i, body := range strings.Split(string(source), "\n") {
			list = append(list, text{line: i + 1, body: body})
		}
		return list
	}
	file := token.NewFileSet().AddFile(path, -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		switch kind {
		case token.EOF:
			return list
		case token.IDENT:
			list = append(list, text{line: file.Line(pos), body: literal, name: true})
		case token.COMMENT, token.STRING:
			for i, body := range strings.Split(literal, "\n") {
				list = append(list, text{line: file.Line(pos) + i, body: body})
			}
		default: // operators, keywords and numbers hold no words
		}
	}
}

// split parts an identifier into lower-case words: "ENIBookOf" is "eni book of".
func split(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		after := i > 0 && !unicode.IsUpper(runes[i-1])
		before := i > 0 && i+1 < len(runes) && unicode.IsLower(runes[i+1])
		switch {
		case r == '_':
			b.WriteByte(' ')
			continue
		case upper && (after || before):
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// found is one use of a word of the list.
type found struct {
	line int
	text string
	word word
}

func (f found) String() string {
	return fmt.Sprintf("%q: %s (%s): write %s", f.text, f.word.name, f.word.reason, f.word.instead)
}

// find returns the uses of the words in a file, less those that are allowed there,
// and marks the exceptions that applied.
func find(path string, source []byte, list []word, except []allowed, used []bool) (uses []found) {
	seen := map[string]bool{} // identifiers without a use
	for _, t := range textsOf(path, source) {
		if t.name && seen[t.body] {
			continue
		}
		body, before := t.body, len(uses)
		for i, e := range except {
			if inside(path, e.below) && e.phrase.MatchString(body) {
				body, used[i] = e.phrase.ReplaceAllString(body, "-"), true
			}
		}
		if t.name {
			body = split(body)
		} else {
			// Only identifiers match ^ and $.
			body = " " + strings.ToLower(body) + " "
		}
		for _, w := range list {
			if w.pattern.MatchString(body) {
				uses = append(uses, found{t.line, strings.TrimSpace(t.body), w})
			}
		}
		seen[t.body] = t.name && len(uses) == before
	}
	return uses
}

func inside(path, folder string) bool {
	return folder == "" || path == folder || strings.HasPrefix(path, folder+"/")
}

// eachText visits the project's Go files and documents.
func eachText(t *testing.T, visit func(path string, source []byte)) {
	t.Helper()
	base, files := root(t), 0
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(base, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel == "bin" || strings.HasPrefix(d.Name(), ".") && rel != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".md" {
			return nil
		}
		source, err := os.ReadFile(path)
		files++
		visit(filepath.ToSlash(rel), source)
		return err
	})
	if err != nil || files < 100 {
		t.Fatalf("read the project's texts: %d files, %v", files, err)
	}
}

func TestTextsArePlainTechnicalEnglish(t *testing.T) {
	list, except := words(), exceptions()
	used := make([]bool, len(except))
	eachText(t, func(path string, source []byte) {
		for _, use := range find(path, source, list, except, used) {
			t.Errorf("%s:%d: %s", path, use.line, use)
		}
	})
	for i, e := range except {
		if !used[i] {
			t.Errorf("the exception %q below %q (%s) applies to nothing any more: take it out", e.phrase, e.below, e.reason)
		}
	}
}

func TestEveryWordHasAReasonAndABetterWord(t *testing.T) {
	var names []string
	for _, w := range words() {
		if w.reason == "" || w.instead == "" || slices.Contains(names, w.name) {
			t.Errorf("%+v: want a name of its own, a reason and what to write instead", w)
		}
		names = append(names, w.name)
	}
	for _, e := range exceptions() {
		if e.reason == "" {
			t.Errorf("the exception %q has no reason", e.phrase)
		}
	}
}

// The list must be able to fail, for every place a word can stand in, and must pass
// the true uses of the same letters.
func TestABadSampleFailsTheWordList(t *testing.T) {
	for sample, want := range map[string]string{
		"package p // the rooms of a floor":                                             "1 room, 1 floor",
		"package p\nvar s = `\na book of addresses\n`":                                  "3 book",
		"package p\nfunc bookProblems() {}":                                             "2 book",
		"package p\nfunc (n *Node) LookOutside() {}":                                    "2 look",
		"package p\ntype ENISight struct{}":                                             "2 sight",
		"package p\n/* a\nnobody's\n*/":                                                 "3 nobody",
		"package p // callers that wait in line":                                        "1 line",
		"package p // a line of callers":                                                "1 line",
		"package p // it is on its way; no one is told":                                 "1 nobody, 1 tell, 1 on its way",
		"package p // changed behind the agent's back":                                  "1 behind its back",
		"package p // mended without a word, and put right":                             "1 put right, 1 mend, 1 a word",
		"package p\nvar _ = \"whoever lets it through\"":                                "2 whoever, 2 let",
		"package p // a log line, a command line, a line of text":                       "",
		"package p // a thread of the process; wake a thread":                           "",
		"package p // look up a name; the lookup; looks like this":                      "",
		"package p\nfunc LookupHost(threads, line, newline int) {}":                     "",
		"package p // remind, notebook, bookkeeping, chatroom, wallet, outlet, booklet": "",
	} {
		var got []string
		for _, use := range find("p.go", []byte(sample), words(), nil, nil) {
			got = append(got, fmt.Sprint(use.line, " ", use.word.name))
		}
		if list := strings.Join(got, ", "); list != want {
			t.Errorf("%s\ngot  %s\nwant %s", sample, list, want)
		}
	}
	bad := []byte("# Rooms\n\nSome text.\n")
	if got := find("a/b.md", bad, words(), nil, nil); len(got) != 1 || got[0].line != 1 {
		t.Errorf("a document: %v, want its heading", got)
	}
	for below, want := range map[string]int{"": 0, "a": 0, "a/b.md": 0, "b": 1, "a/b": 1} {
		used := make([]bool, 1)
		got := find("a/b.md", bad, words(), []allowed{{below, regexp.MustCompile(`Rooms`), "a test"}}, used)
		if len(got) != want || used[0] != (want == 0) {
			t.Errorf("with an exception below %q: %v, used %v; want %d", below, got, used, want)
		}
	}
}
