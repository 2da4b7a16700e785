// Package render is the parts that the views of the CLI have in common: tables, empty cells and ages.
// It formats values and decides nothing; app/cli and the views below it call it.
package render

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Table writes rows in aligned columns; the first row is the heading.
func Table(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(r, "\t"), "\t "))
	}
	_ = tw.Flush() // errors of w are reported at the end of the command
}

// Dash is s, or a dash for an empty one.
func Dash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}

// Since is how long ago t was, in seconds; a dash if t is not known or to come.
func Since(t, now time.Time) string {
	if t.IsZero() || now.Before(t) {
		return "-"
	}
	return now.Sub(t).Round(time.Second).String()
}
