package mutants

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// kept is the file with the results of a target so far: a line with the code they are about,
// then one for each mutant. An interrupted run continues from it.
type kept struct {
	file    *os.File           // nil: results are not kept
	results map[string]Outcome // by the mutant's name
}

// keptFolder is below the checkout; `make clean` removes it.
const keptFolder = "bin/mutants"

type keptLine struct {
	Code    string  `json:"code,omitempty"`
	Mutant  string  `json:"mutant,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
}

// openKept reads the results about this code, and removes those about other code.
func openKept(root, folder, code string) (*kept, error) {
	path := filepath.Join(root, keptFolder, strings.ReplaceAll(folder, "/", "-")+".jsonl")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	k := &kept{results: map[string]Outcome{}}
	matches, err := k.read(path, code)
	if err != nil {
		return nil, err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if !matches {
		flags |= os.O_TRUNC
	}
	if k.file, err = os.OpenFile(path, flags, 0o644); err != nil {
		return nil, err
	}
	if !matches {
		err = k.write(keptLine{Code: code})
	}
	return k, err
}

// read reports whether the file's results are about this code. A line that was not written
// to its end is of a mutant that is run again.
func (k *kept) read(path, code string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for first := true; lines.Scan(); first = false {
		var line keptLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			continue
		}
		if first && line.Code != code {
			return false, nil
		}
		if line.Mutant != "" {
			k.results[line.Mutant] = line.Outcome
		}
	}
	return len(k.results) > 0, lines.Err()
}

func (k *kept) add(m *mutant, o Outcome) error {
	if k.file == nil {
		return nil
	}
	k.results[m.name.String()] = o
	return k.write(keptLine{Mutant: m.name.String(), Outcome: o})
}

func (k *kept) write(line keptLine) error {
	raw, err := json.Marshal(line)
	if err == nil {
		_, err = k.file.Write(append(raw, '\n'))
	}
	if err != nil {
		return fmt.Errorf("keep result: %w", err)
	}
	return nil
}
