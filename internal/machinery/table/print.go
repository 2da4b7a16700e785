package table

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Tables returns the names of all tables, sorted.
func (db *DB) Tables() []string {
	var names []string
	for _, t := range db.current.Load().tables {
		names = append(names, t.Name())
	}
	slices.Sort(names)
	return names
}

// Print writes a table as aligned text: its columns, then a line for each row in the
// order of the primary keys. An empty cell is a dash.
func (s *Snapshot) Print(w io.Writer, name string) error {
	columns, rows, err := s.cells(name)
	if err != nil {
		return err
	}
	var text strings.Builder
	aligned := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{columns}, rows...) {
		line := make([]string, len(row))
		for i, cell := range row {
			if line[i] = cell; cell == "" {
				line[i] = "-"
			}
		}
		fmt.Fprintln(aligned, strings.Join(line, "\t"))
	}
	if err := aligned.Flush(); err != nil {
		return fmt.Errorf("align table %s: %w", name, err)
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return fmt.Errorf("print table %s: %w", name, err)
	}
	return nil
}

// PrintJSON writes a table as a JSON array with one object, on a line of its own, for
// each row: a string for each column, in the order that Print has.
func (s *Snapshot) PrintJSON(w io.Writer, name string) error {
	columns, rows, err := s.cells(name)
	if err != nil {
		return err
	}
	var out strings.Builder
	fmt.Fprint(&out, "[")
	for i, row := range rows {
		if i > 0 {
			fmt.Fprint(&out, ",")
		}
		fmt.Fprint(&out, "\n  {")
		for j, cell := range row {
			if j > 0 {
				fmt.Fprint(&out, ", ")
			}
			fmt.Fprintf(&out, "%s: %s", quote(columns[j]), quote(cell))
		}
		fmt.Fprint(&out, "}")
	}
	fmt.Fprint(&out, "\n]\n")
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("print table %s: %w", name, err)
	}
	return nil
}

func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return b
}

func (s *Snapshot) cells(name string) (columns []string, rows [][]string, err error) {
	for _, t := range s.at.tables {
		if t.Name() != name {
			continue
		}
		columns, rows = t.print(s)
		for _, row := range rows {
			if len(row) != len(columns) {
				return nil, nil, fmt.Errorf("print table %s: a row has %d cells for %d columns", name, len(row), len(columns))
			}
		}
		return columns, rows, nil
	}
	return nil, nil, fmt.Errorf("there is no table %s; the tables are %s", name, strings.Join(s.db.Tables(), ", "))
}
